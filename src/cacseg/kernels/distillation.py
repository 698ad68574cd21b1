"""The four distillations: one pass for the cost and the entropy of each pixel, one for the sums over the classes.

All four are a weighted mean of one cost, so the gradient of a pixel is its weight times a coefficient of its class:
the last kernel of the forward pass writes these coefficients beside the loss.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cdiv, power_of_2


# Strides of 1 stay unknown: then a thread owns a pixel, and sums over classes stay within it.
@triton.jit(do_not_specialize=["context_l", "oracle_l"])
def _pixels(
    context, oracle, labels, out, n, length, pixels, soft,
    context_b, context_n, context_l, oracle_b, oracle_n, oracle_l,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Cost, entropy of the oracle and both logsumexps of each pixel: out [4, b, L]."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    of_context = context + batch * context_b + place.to(tl.int64) * context_l
    of_oracle = oracle + batch * oracle_b + place.to(tl.int64) * oracle_l
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    oracle_largest = tl.full([BLOCK], float("-inf"), tl.float32)
    oracle_sums = tl.zeros([BLOCK], tl.float32)
    mean_context = tl.zeros([BLOCK], tl.float32)
    mean_oracle = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        wide_k, mask = k.to(tl.int64)[:, None], (k < n)[:, None] & inside[None, :]
        score = tl.load(of_context[None, :] + wide_k * context_n, mask=mask, other=0.0).to(tl.float32)
        target = tl.load(of_oracle[None, :] + wide_k * oracle_n, mask=mask, other=0.0).to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(tl.where((k < n)[:, None], score, float("-inf")), axis=0))
        power = tl.where((k < n)[:, None], tl.exp(score - new_largest[None, :]), 0.0)
        sums = sums * tl.exp(largest - new_largest) + tl.sum(power, axis=0)
        largest = new_largest
        new_largest = tl.maximum(oracle_largest, tl.max(tl.where((k < n)[:, None], target, float("-inf")), axis=0))
        power = tl.where((k < n)[:, None], tl.exp(target - new_largest[None, :]), 0.0)
        shrink = tl.exp(oracle_largest - new_largest)
        # Taken from the top: the entropy of a sure prediction would else be a small difference of large numbers.
        from_top = tl.where((k < n)[:, None], target - new_largest[None, :], 0.0)
        moved = tl.where(oracle_largest > float("-inf"), oracle_largest - new_largest, 0.0)
        mean_oracle = (mean_oracle + moved * oracle_sums) * shrink + tl.sum(power * from_top, axis=0)
        oracle_sums = oracle_sums * shrink + tl.sum(power, axis=0)
        mean_context = mean_context * shrink + tl.sum(power * score, axis=0)
        oracle_largest = new_largest
    lse = largest + tl.log(sums)
    oracle_lse = oracle_largest + tl.log(oracle_sums)
    entropy = tl.log(oracle_sums) - mean_oracle / oracle_sums
    label = tl.load(labels + batch * length + place, mask=inside, other=-1)
    known = inside & (label >= 0) & (label < n)
    own = tl.load(of_context + label * context_n, mask=known, other=0.0).to(tl.float32)
    soft_cost = lse - mean_context / oracle_sums
    cost = soft * soft_cost + (1.0 - soft) * tl.where(known, lse - own, 0.0)
    here = out + batch * length + place
    tl.store(here, cost, mask=inside)
    tl.store(here + pixels, entropy, mask=inside)
    tl.store(here + 2 * pixels, lse, mask=inside)
    tl.store(here + 3 * pixels, oracle_lse, mask=inside)


@triton.jit
def _class_sums(
    labels, cost, weight, parts, n, length, span,
    WEIGHTED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Over the pixels of each class, within one span of pixels: sums of 1, of weight and of weight * cost."""
    k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    batch = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * span
    counts = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    weights = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    costs = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    for start in range(first, tl.minimum(first + span, length), BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < tl.minimum(first + span, length)
        label = tl.load(labels + batch * length + place, mask=inside, other=-1)
        own = label[None, :] == k[:, None]
        counts += own.to(tl.float32)
        one_cost = tl.load(cost + batch * length + place, mask=inside, other=0.0)
        one_weight = inside.to(tl.float32)
        if WEIGHTED:
            one_weight = tl.load(weight + batch * length + place, mask=inside, other=0.0)
        weights += tl.where(own, one_weight[None, :], 0.0)
        costs += tl.where(own, (one_weight * one_cost)[None, :], 0.0)
    split_size = tl.num_programs(2).to(tl.int64) * n
    here = parts + tl.program_id(1) * split_size + batch * n + k
    kind = tl.num_programs(1) * split_size
    tl.store(here, tl.sum(counts, axis=1), mask=k < n)
    tl.store(here + kind, tl.sum(weights, axis=1), mask=k < n)
    tl.store(here + 2 * kind, tl.sum(costs, axis=1), mask=k < n)


@triton.jit
def _average(
    sums, loss, coefficients, parts, b, n,
    BY_CLASS: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss from the sums [3, parts, b, n], and what pixels' weights are multiplied with in the gradient, [b, n]."""
    k = tl.arange(0, BLOCK)
    known = k < n
    groups = 1 if BATCH else b
    total = 0.0
    for group in range(groups):
        first = 0 if BATCH else group
        last = b if BATCH else group + 1
        count = tl.zeros([BLOCK], tl.float32)
        weight = tl.zeros([BLOCK], tl.float32)
        cost = tl.zeros([BLOCK], tl.float32)
        for image in range(first, last):
            for part in range(parts):
                here = sums + (part * b + image) * n + k
                count += tl.load(here, mask=known, other=0.0)
                weight += tl.load(here + parts * b * n, mask=known, other=0.0)
                cost += tl.load(here + 2 * parts * b * n, mask=known, other=0.0)
        if BY_CLASS:
            classes = tl.sum((count > 0).to(tl.float32))
        else:
            classes = 1.0
            weight = tl.sum(weight) + tl.zeros([BLOCK], tl.float32)
            cost = tl.where(k == 0, tl.sum(cost), 0.0)
        whole = weight * classes * groups
        share = tl.where(whole != 0.0, 1.0 / tl.where(whole != 0.0, whole, 1.0), 0.0)
        total += tl.sum(cost * share)
        for image in range(first, last):
            tl.store(coefficients + image * n + k, share, mask=known)
    tl.store(loss, total)


@triton.jit
def _backward(
    of_loss, context, oracle, labels, pixel_values, coefficients, gradient, n, length, pixels, soft,
    context_b, context_n, context_l, oracle_b, oracle_n, oracle_l, gradient_b, gradient_n, gradient_l,
    WEIGHTED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(2).to(tl.int64)
    inside = place < length
    wide_k, wide_place = k.to(tl.int64)[:, None], place.to(tl.int64)[None, :]
    mask = (k < n)[:, None] & inside[None, :]
    here = pixel_values + batch * length + place
    lse = tl.load(here + 2 * pixels, mask=inside, other=0.0)
    oracle_lse = tl.load(here + 3 * pixels, mask=inside, other=0.0)
    label = tl.load(labels + batch * length + place, mask=inside, other=-1)
    known = inside & (label >= 0) & (label < n)
    factor = tl.load(coefficients + batch * n + label, mask=known, other=0.0) * tl.load(of_loss).to(tl.float32)
    if WEIGHTED:
        factor *= tl.load(here + pixels, mask=inside, other=0.0)
    score = tl.load(context + batch * context_b + wide_k * context_n + wide_place * context_l, mask=mask, other=0.0)
    target = tl.load(oracle + batch * oracle_b + wide_k * oracle_n + wide_place * oracle_l, mask=mask, other=0.0)
    change = tl.exp(score.to(tl.float32) - lse[None, :]) - soft * tl.exp(target.to(tl.float32) - oracle_lse[None, :])
    change -= tl.where(label[None, :] == k[:, None], 1.0 - soft, 0.0)
    value = tl.where(known[None, :], change * factor[None, :], 0.0)
    where = batch * gradient_b + wide_k * gradient_n + wide_place * gradient_l
    tl.store(gradient + where, value.to(gradient.dtype.element_ty), mask=mask)


def class_sums(labels: Tensor, n: int, cost: Tensor, weight: Tensor | None) -> Tensor:
    """Over the pixels of each image and class: sums of 1, of weight and of weight * cost.

    In parts that are to be added up: [3, parts, b, n].
    """
    b, length = labels.shape
    span = max(1024, cdiv(length, 32))
    grid = (cdiv(n, 16), cdiv(length, span), b)
    parts = torch.empty(3, grid[1], b, n, dtype=torch.float32, device=labels.device)
    _class_sums[grid](labels, cost, weight, parts, n, length, span, WEIGHTED=weight is not None, BLOCK_N=16, BLOCK=128)
    return parts


def forward(
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    soft: float,
    by_entropy: bool,
    by_class: bool,
    over_batch: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, its coefficients [b, n], and cost, entropy and both logsumexps of each pixel [4, b, L]."""
    b, n, length = context.shape
    values = torch.empty(4, b, length, dtype=torch.float32, device=context.device)
    block = 128
    _pixels[(cdiv(length, block), b)](
        context, oracle, labels, values, n, length, b * length, soft, *context.stride(), *oracle.stride(),
        BLOCK_N=8, BLOCK=block,
    )  # fmt: skip
    sums = class_sums(labels, n, values[0], values[1] if by_entropy else None)
    loss = torch.empty((), dtype=torch.float32, device=context.device)
    coefficients = torch.empty(b, n, dtype=torch.float32, device=context.device)
    _average[(1,)](
        sums, loss, coefficients, sums.shape[1], b, n,
        BY_CLASS=by_class, BATCH=over_batch, BLOCK=power_of_2(n),
    )  # fmt: skip
    return loss, coefficients, values


def backward(
    of_loss: Tensor,
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    coefficients: Tensor,
    values: Tensor,
    soft: float,
    by_entropy: bool,
) -> Tensor:
    """The gradient of the context logits, in their dtype."""
    b, n, length = context.shape
    gradient = torch.empty_like(context)
    _backward[(cdiv(length, 128), cdiv(n, 16), b)](
        of_loss, context, oracle, labels, values, coefficients, gradient, n, length, b * length, soft,
        *context.stride(), *oracle.stride(), *gradient.stride(),
        WEIGHTED=by_entropy, BLOCK_N=16, BLOCK=128,
    )  # fmt: skip
    return gradient
