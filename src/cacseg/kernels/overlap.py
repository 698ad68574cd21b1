"""The overlap of logits with labels of their size: one read for its sums, one read and one write for its gradient.

A tile holds all classes of a few pixels, so softmax and sums need its logits once. Each program leaves the sums of its
own pixels, which are added up in a fixed order; the loss of these is one small kernel, which also writes what the
gradient takes from them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels.launch import cdiv, launch, power_of_2

ELEMENTS = 8192  # of a tile, classes times pixels
PROGRAMS = 512  # at most, of the forward pass: what they leave is added up


@triton.jit
def _tile(logits, labels, batch, place, last, n, length, logits_b, logits_n, logits_l, BLOCK_N: tl.constexpr):
    """Probabilities [classes, pixels] and own class of pixels that have one, 0 and False of all others."""
    k = tl.arange(0, BLOCK_N)
    label = tl.load(labels + batch * length + place, mask=place < last, other=-1)
    known = (label >= 0) & (label < n)
    mask = (k < n)[:, None] & known[None, :]
    where = k.to(tl.int64)[:, None] * logits_n + place.to(tl.int64)[None, :] * logits_l
    score = tl.load(logits + batch * logits_b + where, mask=mask, other=0.0).to(tl.float32)
    score = tl.where((k < n)[:, None], score, float("-inf"))
    power = tl.exp(score - tl.max(score, axis=0)[None, :])
    probability = tl.where(known[None, :], power / tl.sum(power, axis=0)[None, :], 0.0)
    return probability, known[None, :] & (label[None, :] == k[:, None])


# Strides of 1 stay unknown, as in the distillation: neighbouring threads have neighbouring pixels.
@triton.jit(do_not_specialize=["logits_l"])
def _sums(
    logits, labels, parts, n, length, span, logits_b, logits_n, logits_l,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a span of pixels, for each class: probabilities on its pixels, on all, and how many it has: [3, parts, n]."""
    batch = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * span
    last = tl.minimum(first + span, length)
    shared = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    answered = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    there = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    for start in range(first, last, BLOCK):
        place = start + tl.arange(0, BLOCK)
        probability, own = _tile(
            logits, labels, batch, place, last, n, length, logits_b, logits_n, logits_l, BLOCK_N
        )  # fmt: skip
        shared += tl.where(own, probability, 0.0)
        answered += probability
        there += own.to(tl.float32)
    k = tl.arange(0, BLOCK_N)
    here = parts + (batch * tl.num_programs(0) + tl.program_id(0)) * n + k
    kind = tl.num_programs(0).to(tl.int64) * tl.num_programs(1) * n
    tl.store(here, tl.sum(shared, axis=1), mask=k < n)
    tl.store(here + kind, tl.sum(answered, axis=1), mask=k < n)
    tl.store(here + 2 * kind, tl.sum(there, axis=1), mask=k < n)


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
    of_loss, of_sums, logits, labels, gradient, n, length,
    logits_b, logits_n, logits_l, gradient_b, gradient_n, gradient_l,
    BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, BLOCK_N)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    probability, own = _tile(
        logits, labels, batch, place, length, n, length, logits_b, logits_n, logits_l, BLOCK_N
    )  # fmt: skip
    factor = tl.load(of_loss).to(tl.float32)
    of_shared = tl.load(of_sums + k, mask=k < n, other=0.0) * factor
    of_answered = tl.load(of_sums + n + k, mask=k < n, other=0.0) * factor
    of_probability = of_answered[:, None] + tl.where(own, of_shared[:, None], 0.0)
    mean = tl.sum(probability * of_probability, axis=0)
    value = probability * (of_probability - mean[None, :])
    where = batch * gradient_b + k.to(tl.int64)[:, None] * gradient_n + place.to(tl.int64)[None, :] * gradient_l
    mask = (k < n)[:, None] & (place < length)[None, :]
    tl.store(gradient + where, value.to(gradient.dtype.element_ty), mask=mask)


def _blocks(n: int) -> tuple[int, int]:
    """Classes and pixels of a tile."""
    classes = power_of_2(n)
    return classes, max(ELEMENTS // classes, 1)


def forward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of logits [b, n, L] and labels [b, L], and its derivatives by the sums of each class, [2, n].

    Labels that are no class take no part.
    """
    b, n, length = logits.shape
    classes, pixels = _blocks(n)
    span = pixels * cdiv(cdiv(length, pixels), max(PROGRAMS // b, 1))
    grid = (cdiv(length, span), b)
    parts = torch.empty(3, grid[0] * b, n, dtype=torch.float32, device=logits.device)
    launch(
        _sums, grid,
        logits, labels, parts, n, length, span, *logits.stride(),
        BLOCK_N=classes, BLOCK=pixels, num_warps=8,
    )  # fmt: skip
    loss = torch.empty((), dtype=torch.float32, device=logits.device)
    of_sums = torch.empty(2, n, dtype=torch.float32, device=logits.device)
    launch(_loss, (1,), parts.sum(dim=1), loss, of_sums, n, BLOCK=classes)
    return loss, of_sums


def backward(of_loss: Tensor, logits: Tensor, labels: Tensor, of_sums: Tensor) -> Tensor:
    """The gradient of the logits, in their dtype."""
    b, n, length = logits.shape
    classes, pixels = _blocks(n)
    gradient = torch.empty_like(logits)
    launch(
        _backward, (cdiv(length, pixels), b),
        of_loss, of_sums, logits, labels, gradient, n, length, *logits.stride(), *gradient.stride(),
        BLOCK_N=classes, BLOCK=pixels, num_warps=8,
    )  # fmt: skip
    return gradient
