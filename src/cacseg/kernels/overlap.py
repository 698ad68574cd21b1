"""The overlap of logits with labels of their size: two reads for the loss, two reads and one write for its gradient.

A thread owns a pixel, so that sums over the classes stay within it. Each program leaves the sums of its pixels, which
are added up in a fixed order; the loss of these is one small kernel, which also writes what the gradient takes of them.
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


# Strides of 1 stay unknown, as in the distillation: then a thread owns a pixel.
@triton.jit(do_not_specialize=["logits_l"])
def _sums(
    logits, labels, powers, parts, n, length, pixels, logits_b, logits_n, logits_l,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each pixel that has a label the largest score, and one over the sum of powers from there: [2, b, L]. Of the
    program's pixels, for each class: probabilities on its pixels, on all, and how many it has: [3, parts, n]."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    label = tl.load(labels + batch * length + place, mask=inside, other=-1)
    known = (label >= 0) & (label < n)
    of_pixel = logits + batch * logits_b + place.to(tl.int64) * logits_l
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK_N):
        score = _scores(of_pixel, start + tl.arange(0, BLOCK_N), n, logits_n, known)
        new_largest = tl.maximum(largest, tl.max(score, axis=0))
        top = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # so far all of them are -inf
        total = total * tl.exp(largest - top) + tl.sum(tl.exp(score - top[None, :]), axis=0)
        largest = new_largest
    top = tl.where(known, largest, 0.0)
    share = tl.where(known, 1.0 / tl.where(known, total, 1.0), 0.0)
    here = powers + batch * length + place
    tl.store(here, top, mask=inside)
    tl.store(here + pixels, share, mask=inside)
    count = tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * n
    part = parts + (batch * tl.num_programs(0) + tl.program_id(0)) * n
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        probability = tl.exp(_scores(of_pixel, k, n, logits_n, known) - top[None, :]) * share[None, :]
        own = label[None, :] == k[:, None]
        tl.store(part + k, tl.sum(tl.where(own, probability, 0.0), axis=1), mask=k < n)
        tl.store(part + count + k, tl.sum(probability, axis=1), mask=k < n)
        tl.store(part + 2 * count + k, tl.sum(own.to(tl.float32), axis=1), mask=k < n)


@triton.jit
def _loss(sums, loss, of_sums, n, BLOCK: tl.constexpr):
    """The loss from its sums [3, n], and its derivatives by the first two of them, [2, n]."""
    k = tl.arange(0, BLOCK)
    known = k < n
    shared = tl.load(sums + k, mask=known, other=0.0)
    answered = tl.load(sums + n + k, mask=known, other=0.0)
    there = tl.load(sums + 2 * n + k, mask=known, other=0.0)
    present = there > 0.0
    classes = tl.maximum(tl.sum(present.to(tl.float32)), 1.0)
    union = tl.where(present, there + answered - shared, 1.0)
    overlap = shared / union
    tl.store(loss, tl.sum(tl.where(present, 1.0 - overlap, 0.0)) / classes)
    share = tl.where(present, 1.0 / (union * classes), 0.0)
    tl.store(of_sums + k, -(1.0 + overlap) * share, mask=known)
    tl.store(of_sums + n + k, overlap * share, mask=known)


@triton.jit(do_not_specialize=["logits_l", "gradient_l"])
def _backward(
    of_loss, of_sums, logits, labels, powers, gradient, n, length, pixels,
    logits_b, logits_n, logits_l, gradient_b, gradient_n, gradient_l,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """q_k (g_k - sum_j q_j g_j), where the sums' derivatives give g_k to the probability q_k of a pixel."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    label = tl.load(labels + batch * length + place, mask=inside, other=-1)
    known = (label >= 0) & (label < n)
    top = tl.load(powers + batch * length + place, mask=inside, other=0.0)
    share = tl.load(powers + pixels + batch * length + place, mask=inside, other=0.0)
    of_pixel = logits + batch * logits_b + place.to(tl.int64) * logits_l
    of_shared = tl.load(of_sums + label, mask=known, other=0.0)
    own_score = tl.load(of_pixel + label * logits_n, mask=known, other=float("-inf")).to(tl.float32)
    mean = tl.exp(own_score - top) * share * of_shared
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        of_answered = tl.load(of_sums + n + k, mask=k < n, other=0.0)
        score = _scores(of_pixel, k, n, logits_n, known)
        mean += tl.sum(tl.exp(score - top[None, :]) * share[None, :] * of_answered[:, None], axis=0)
    factor = tl.load(of_loss).to(tl.float32)
    out = gradient + batch * gradient_b + place.to(tl.int64) * gradient_l
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        of_answered = tl.load(of_sums + n + k, mask=k < n, other=0.0)
        score = _scores(of_pixel, k, n, logits_n, known)
        probability = tl.exp(score - top[None, :]) * share[None, :]
        own = label[None, :] == k[:, None]
        of_probability = of_answered[:, None] + tl.where(own, of_shared[None, :], 0.0)
        value = tl.where(known[None, :], probability * (of_probability - mean[None, :]) * factor, 0.0)
        where = out[None, :] + k.to(tl.int64)[:, None] * gradient_n
        mask = (k < n)[:, None] & inside[None, :]
        tl.store(where, value.to(gradient.dtype.element_ty), mask=mask)


def forward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of logits [b, n, L] and labels [b, L], its derivatives by the sums of each class, [2, n], and what makes
    probabilities of a pixel's scores, [2, b, L].

    Labels that are no class take no part.
    """
    b, n, length = logits.shape
    powers = torch.empty(2, b, length, dtype=torch.float32, device=logits.device)
    blocks = cdiv(length, BLOCK)
    parts = torch.empty(3, b * blocks, n, dtype=torch.float32, device=logits.device)
    _sums[(blocks, b)](logits, labels, powers, parts, n, length, b * length, *logits.stride(), BLOCK_N=8, BLOCK=BLOCK)
    loss = torch.empty((), dtype=torch.float32, device=logits.device)
    of_sums = torch.empty(2, n, dtype=torch.float32, device=logits.device)
    _loss[(1,)](parts.sum(dim=1), loss, of_sums, n, BLOCK=power_of_2(n))
    return loss, of_sums, powers


def backward(of_loss: Tensor, logits: Tensor, labels: Tensor, of_sums: Tensor, powers: Tensor) -> Tensor:
    """The gradient of the logits, in their dtype."""
    b, n, length = logits.shape
    gradient = torch.empty_like(logits)
    _backward[(cdiv(length, BLOCK), b)](
        of_loss, of_sums, logits, labels, powers, gradient, n, length, b * length, *logits.stride(), *gradient.stride(),
        BLOCK_N=4, BLOCK=BLOCK,
    )  # fmt: skip
    return gradient
