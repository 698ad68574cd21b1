"""Distillation and overlap, the losses of logits with labels of their size: one of them, or both in the same passes.

A thread owns a pixel, so that sums over the classes stay within it. Each program leaves the sums of its pixels by
class, which are added up in a fixed order. One small kernel makes the losses of these, and the coefficients of their
gradient:
- all four distillations are a weighted mean of one cost, so a pixel's gradient is its weight times one of its class;
- the overlap has one for the probability of a class on its own pixels, and one for that on all.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cdiv, power_of_2

BLOCK = 128  # pixels of a program


@triton.jit
def _scores(logits, k, n, logits_n, known):
    """Those of some classes, in float32; -inf, which no power is left of, where there is no class or no label."""
    mask = (k < n)[:, None] & known[None, :]
    where = logits[None, :] + k.to(tl.int64)[:, None] * logits_n
    return tl.load(where, mask=mask, other=float("-inf")).to(tl.float32)


@triton.jit
def _raise_top(largest, score):
    """The largest score so far; and the same, 0 while all of them are -inf, for powers to be taken from."""
    largest = tl.maximum(largest, tl.max(score, axis=0))
    return largest, tl.where(largest == float("-inf"), 0.0, largest)


# Strides of 1 stay unknown: then a thread owns a pixel.
@triton.jit(do_not_specialize=["logits_l", "oracle_l"])
def _sums(
    logits, oracle, labels, values, parts, n, length, pixels, soft,
    logits_b, logits_n, logits_l, oracle_b, oracle_n, oracle_l,
    WEIGHTED: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each pixel that has a label [2 or 4, b, L]: the largest score, one over the sum of powers from there; the
    oracle's logsumexp, and the weight. Of the program's pixels, for each class [3 or 5, b, programs, n]: how many it
    has, their weights and weighted costs; probabilities on its pixels, and on all."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    label = tl.load(labels + batch * length + place, mask=inside, other=-1)
    known = (label >= 0) & (label < n)
    of_pixel = logits + batch * logits_b + place.to(tl.int64) * logits_l
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    if oracle is not None:
        of_oracle = oracle + batch * oracle_b + place.to(tl.int64) * oracle_l
        oracle_largest = tl.full([BLOCK], float("-inf"), tl.float32)
        oracle_total = tl.zeros([BLOCK], tl.float32)
        mean_oracle = tl.zeros([BLOCK], tl.float32)
        mean_score = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        score = _scores(of_pixel, k, n, logits_n, known)
        new_largest, top = _raise_top(largest, score)
        total = total * tl.exp(largest - top) + tl.sum(tl.exp(score - top[None, :]), axis=0)
        largest = new_largest
        if oracle is not None:
            there = (k < n)[:, None] & known[None, :]
            target = _scores(of_oracle, k, n, oracle_n, known)
            new_largest, oracle_top = _raise_top(oracle_largest, target)
            power = tl.exp(target - oracle_top[None, :])
            shrink = tl.exp(oracle_largest - oracle_top)
            # Taken from the top: the entropy of a sure prediction would else be a small difference of large numbers.
            moved = tl.where(oracle_largest > float("-inf"), oracle_largest - oracle_top, 0.0)
            from_top = tl.where(there, target - oracle_top[None, :], 0.0)
            mean_oracle = (mean_oracle + moved * oracle_total) * shrink + tl.sum(power * from_top, axis=0)
            mean_score = mean_score * shrink + tl.sum(power * tl.where(there, score, 0.0), axis=0)
            oracle_total = oracle_total * shrink + tl.sum(power, axis=0)
            oracle_largest = new_largest
    top = tl.where(known, largest, 0.0)
    total = tl.where(known, total, 1.0)
    share = tl.where(known, 1.0 / total, 0.0)
    here = values + batch * length + place
    tl.store(here, top, mask=inside)
    tl.store(here + pixels, share, mask=inside)
    if oracle is not None:
        oracle_total = tl.where(known, oracle_total, 1.0)
        log_total = tl.log(oracle_total)
        lse = top + tl.log(total)
        own_score = tl.load(of_pixel + label * logits_n, mask=known, other=0.0).to(tl.float32)
        cost = soft * (lse - mean_score / oracle_total) + (1.0 - soft) * (lse - own_score)
        weight = known.to(tl.float32)
        if WEIGHTED:
            weight = log_total - mean_oracle / oracle_total
        tl.store(here + 2 * pixels, tl.where(known, oracle_largest, 0.0) + log_total, mask=inside)
        tl.store(here + 3 * pixels, weight, mask=inside)
    kind = tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * n
    part = parts + (batch * tl.num_programs(0) + tl.program_id(0)) * n
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        own = label[None, :] == k[:, None]
        out = part + k
        tl.store(out, tl.sum(own.to(tl.float32), axis=1), mask=k < n)
        if oracle is not None:
            tl.store(out + kind, tl.sum(tl.where(own, weight[None, :], 0.0), axis=1), mask=k < n)
            tl.store(out + 2 * kind, tl.sum(tl.where(own, (weight * cost)[None, :], 0.0), axis=1), mask=k < n)
            out += 2 * kind
        if OVERLAP:
            probability = tl.exp(_scores(of_pixel, k, n, logits_n, known) - top[None, :]) * share[None, :]
            tl.store(out + kind, tl.sum(tl.where(own, probability, 0.0), axis=1), mask=k < n)
            tl.store(out + 2 * kind, tl.sum(probability, axis=1), mask=k < n)


@triton.jit
def _losses(
    sums, distillation, overlap, coefficients, b, n,
    DISTILLED: tl.constexpr, BY_CLASS: tl.constexpr, BATCH: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The losses from the sums [3 or 5, b, n], 0 if left out; the coefficients of their gradient [b + 2, n]: of the
    distillation for each image, of the overlap by probabilities on a class's own pixels and on all."""
    k = tl.arange(0, BLOCK)
    known = k < n
    kind = b * n
    total = 0.0
    missed = 0.0
    if DISTILLED:
        groups = 1 if BATCH else b
        for group in range(groups):
            first = 0 if BATCH else group
            last = b if BATCH else group + 1
            count = tl.zeros([BLOCK], tl.float32)
            weight = tl.zeros([BLOCK], tl.float32)
            cost = tl.zeros([BLOCK], tl.float32)
            for image in range(first, last):
                here = sums + image * n + k
                count += tl.load(here, mask=known, other=0.0)
                weight += tl.load(here + kind, mask=known, other=0.0)
                cost += tl.load(here + 2 * kind, mask=known, other=0.0)
            classes = tl.sum((count > 0).to(tl.float32))
            if not BY_CLASS:
                classes = 1.0
                weight = tl.sum(weight) + tl.zeros([BLOCK], tl.float32)
                cost = tl.where(k == 0, tl.sum(cost), 0.0)
            whole = weight * classes * groups
            share = tl.where(whole != 0.0, 1.0 / tl.where(whole != 0.0, whole, 1.0), 0.0)
            total += tl.sum(cost * share)
            for image in range(first, last):
                tl.store(coefficients + image * n + k, share, mask=known)
    if OVERLAP:
        of_overlap = sums + k
        if DISTILLED:
            of_overlap += 2 * kind
        there = tl.zeros([BLOCK], tl.float32)
        shared = tl.zeros([BLOCK], tl.float32)
        answered = tl.zeros([BLOCK], tl.float32)
        for image in range(b):
            there += tl.load(sums + image * n + k, mask=known, other=0.0)
            shared += tl.load(of_overlap + kind + image * n, mask=known, other=0.0)
            answered += tl.load(of_overlap + 2 * kind + image * n, mask=known, other=0.0)
        present = there > 0.0
        classes = tl.maximum(tl.sum(present.to(tl.float32)), 1.0)
        union = tl.where(present, there + answered - shared, 1.0)
        jaccard = shared / union
        missed = tl.sum(tl.where(present, 1.0 - jaccard, 0.0)) / classes
        share = tl.where(present, 1.0 / (union * classes), 0.0)
        tl.store(coefficients + kind + k, -(1.0 + jaccard) * share, mask=known)
        tl.store(coefficients + kind + n + k, jaccard * share, mask=known)
    tl.store(distillation, total)
    tl.store(overlap, missed)


@triton.jit(do_not_specialize=["logits_l", "oracle_l", "gradient_l"])
def _backward(
    of_distillation, of_overlap, logits, oracle, labels, coefficients, values, gradient, n, length, pixels, soft,
    logits_b, logits_n, logits_l, oracle_b, oracle_n, oracle_l, gradient_b, gradient_n, gradient_l,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Distillation: weight * coefficient * (q - target). Overlap: q_k (g_k - sum_j q_j g_j), where the coefficients
    give g_k to the probability q_k of a pixel."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    label = tl.load(labels + batch * length + place, mask=inside, other=-1)
    known = (label >= 0) & (label < n)
    here = values + batch * length + place
    top = tl.load(here, mask=inside, other=0.0)
    share = tl.load(here + pixels, mask=inside, other=0.0)
    of_pixel = logits + batch * logits_b + place.to(tl.int64) * logits_l
    if of_distillation is not None:
        of_oracle = oracle + batch * oracle_b + place.to(tl.int64) * oracle_l
        oracle_lse = tl.load(here + 2 * pixels, mask=inside, other=0.0)
        factor = tl.load(coefficients + batch * n + label, mask=known, other=0.0)
        factor *= tl.load(here + 3 * pixels, mask=inside, other=0.0) * tl.load(of_distillation).to(tl.float32)
    if of_overlap is not None:
        of_shared = coefficients + tl.num_programs(1) * n
        of_answered = of_shared + n
        of_own = tl.load(of_shared + label, mask=known, other=0.0)
        own_score = tl.load(of_pixel + label * logits_n, mask=known, other=float("-inf")).to(tl.float32)
        mean = tl.exp(own_score - top) * share * of_own
        for start in range(0, n, BLOCK_N):
            k = start + tl.arange(0, BLOCK_N)
            of_class = tl.load(of_answered + k, mask=k < n, other=0.0)
            score = _scores(of_pixel, k, n, logits_n, known)
            mean += tl.sum(tl.exp(score - top[None, :]) * share[None, :] * of_class[:, None], axis=0)
        overlap_factor = tl.load(of_overlap).to(tl.float32)
    out = gradient + batch * gradient_b + place.to(tl.int64) * gradient_l
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        probability = tl.exp(_scores(of_pixel, k, n, logits_n, known) - top[None, :]) * share[None, :]
        own = label[None, :] == k[:, None]
        value = tl.zeros([BLOCK_N, BLOCK], tl.float32)
        if of_distillation is not None:
            target = soft * tl.exp(_scores(of_oracle, k, n, oracle_n, known) - oracle_lse[None, :])
            value += (probability - target - tl.where(own, 1.0 - soft, 0.0)) * factor[None, :]
        if of_overlap is not None:
            of_class = tl.load(of_answered + k, mask=k < n, other=0.0)
            of_probability = of_class[:, None] + tl.where(own, of_own[None, :], 0.0)
            value += probability * (of_probability - mean[None, :]) * overlap_factor
        where = out[None, :] + k.to(tl.int64)[:, None] * gradient_n
        value = tl.where(known[None, :], value, 0.0).to(gradient.dtype.element_ty)
        tl.store(where, value, mask=(k < n)[:, None] & inside[None, :])


def forward(
    logits: Tensor,
    oracle: Tensor | None,
    labels: Tensor,
    soft: float,
    by_entropy: bool,
    by_class: bool,
    over_batch: bool,
    overlap: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distillation (0 without an oracle) and overlap (or 0) of logits [b, n, L] and labels [b, L]; the coefficients of
    their gradient [b + 2, n], and what it takes of each pixel [2 or 4, b, L].

    Labels that are no class take no part.
    """
    (b, n, length), distilled = logits.shape, oracle is not None
    blocks = cdiv(length, BLOCK)
    values = torch.empty(4 if distilled else 2, b, length, dtype=torch.float32, device=logits.device)
    parts = values.new_empty(1 + 2 * distilled + 2 * overlap, b, blocks, n)
    _sums[(blocks, b)](
        logits, oracle, labels, values, parts, n, length, b * length, soft, *logits.stride(), *_strides(oracle),
        WEIGHTED=by_entropy, OVERLAP=overlap, BLOCK_N=8, BLOCK=BLOCK,
    )  # fmt: skip
    losses, coefficients = (values.new_empty(()), values.new_empty(())), values.new_empty(b + 2, n)
    _losses[(1,)](
        parts.sum(dim=2), *losses, coefficients, b, n,
        DISTILLED=distilled, BY_CLASS=by_class, BATCH=over_batch, OVERLAP=overlap, BLOCK=power_of_2(n),
    )  # fmt: skip
    return *losses, coefficients, values


def backward(
    of_distillation: Tensor | None,
    of_overlap: Tensor | None,
    logits: Tensor,
    oracle: Tensor | None,
    labels: Tensor,
    coefficients: Tensor,
    values: Tensor,
    soft: float,
) -> Tensor:
    """The gradient of the logits, in their dtype, from those losses that have one."""
    b, n, length = logits.shape
    gradient = torch.empty_like(logits)
    _backward[(cdiv(length, BLOCK), b)](
        of_distillation, of_overlap, logits, oracle, labels, coefficients, values, gradient, n, length, b * length,
        soft, *logits.stride(), *_strides(oracle), *gradient.stride(), BLOCK_N=4, BLOCK=BLOCK,
    )  # fmt: skip
    return gradient


def _strides(maps: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if maps is None else maps.stride()
