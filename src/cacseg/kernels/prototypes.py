"""Class prototypes: means of the features by predicted probability or by label, features read once.

The softmax over the pixels of log softmax(p) is exp(p - pixel - total): `pixel`, the logsumexp over the classes of each
pixel, and `total`, the logsumexp of p - pixel over the pixels of each class. Both come from one pass over the logits.
The product with the features makes its weights from them on the fly.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cdiv
from cacseg.kernels.cosine import inverse_of


@triton.jit
def _pixels(
    logits, features, of_pixels, inverse_norms, parts, n, d, length,
    logits_b, logits_n, logits_l, features_b, features_d, features_l, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each pixel: logsumexp over the classes, and 1 / |f|. Of each class: that of the difference over the pixels."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    squares = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    pointer = features + batch * features_b + place.to(tl.int64)[None, :] * features_l
    for start in range(0, d, BLOCK_N):
        channel = start + tl.arange(0, BLOCK_N)
        mask = (channel < d)[:, None] & inside[None, :]
        one = tl.load(pointer + channel.to(tl.int64)[:, None] * features_d, mask=mask, other=0.0).to(tl.float32)
        squares += one * one
    tl.store(inverse_norms + batch * length + place, inverse_of(tl.sum(squares, axis=0)), mask=inside)
    pointer = logits + batch * logits_b + place.to(tl.int64)[None, :] * logits_l
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        mask = (k < n)[:, None] & inside[None, :]
        score = tl.load(pointer + k.to(tl.int64)[:, None] * logits_n, mask=mask, other=0.0).to(tl.float32)
        score = tl.where((k < n)[:, None], score, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(score, axis=0))
        sums = sums * tl.exp(largest - new_largest) + tl.sum(tl.exp(score - new_largest[None, :]), axis=0)
        largest = new_largest
    pixel = largest + tl.log(sums)
    tl.store(of_pixels + batch * length + place, pixel, mask=inside)
    part = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + batch
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        mask = (k < n)[:, None] & inside[None, :]
        score = tl.load(pointer + k.to(tl.int64)[:, None] * logits_n, mask=mask, other=0.0).to(tl.float32)
        score = tl.where(inside[None, :], score - pixel[None, :], float("-inf"))
        row_largest = tl.max(score, axis=1)
        row_sum = tl.sum(tl.exp(score - row_largest[:, None]), axis=1)
        tl.store(parts + part * n + k, row_largest + tl.log(row_sum), mask=k < n)


@triton.jit
def _combine(parts, totals, count, rows, log_epsilon, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr):
    """log(sum of exp + epsilon) over the parts [count, rows] of each row."""
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    largest = tl.full([BLOCK_N], float("-inf"), tl.float32)
    sums = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, count, BLOCK):
        part = start + tl.arange(0, BLOCK)
        mask = (part < count)[:, None] & (row < rows)[None, :]
        value = tl.load(parts + part.to(tl.int64)[:, None] * rows + row[None, :], mask=mask, other=float("-inf"))
        new_largest = tl.maximum(tl.maximum(largest, tl.max(value, axis=0)), -1e38)
        sums = sums * tl.exp(largest - new_largest) + tl.sum(tl.exp(value - new_largest[None, :]), axis=0)
        largest = new_largest
    top = tl.maximum(largest, log_epsilon)
    sums = sums * tl.exp(largest - top) + tl.exp(log_epsilon - top)
    tl.store(totals + row, top + tl.log(tl.maximum(sums, 1e-38)), mask=row < rows)


@triton.jit
def _share_gradient(
    logits, of_pixels, totals, inner, of_shares, earlier, gradient, shares,
    n, length, logits_b, logits_n, logits_l, earlier_b, earlier_n, earlier_l, gradient_b, gradient_n, gradient_l,
    shares_b, HAS_EARLIER: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From the gradient of the shares to that of the logits, added to an earlier one; and the shares themselves."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    wide_place = place.to(tl.int64)[None, :]
    pixel = tl.load(of_pixels + batch * length + place, mask=inside, other=0.0)
    column = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        wide_k, mask = k.to(tl.int64)[:, None], (k < n)[:, None] & inside[None, :]
        where = batch * logits_b + wide_k * logits_n + wide_place * logits_l
        score = tl.load(logits + where, mask=mask, other=float("-inf"))
        total = tl.load(totals + batch * n + k, mask=k < n, other=0.0)
        mean = tl.load(inner + batch * n + k, mask=k < n, other=0.0)
        share = tl.exp(score.to(tl.float32) - pixel[None, :] - total[:, None])
        of_share = tl.load(of_shares + batch * n * length + wide_k * length + wide_place, mask=mask, other=0.0)
        column += tl.sum(tl.where(mask, share * (of_share - mean[:, None]), 0.0), axis=0)
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        wide_k, mask = k.to(tl.int64)[:, None], (k < n)[:, None] & inside[None, :]
        where = batch * logits_b + wide_k * logits_n + wide_place * logits_l
        score = tl.load(logits + where, mask=mask, other=float("-inf"))
        total = tl.load(totals + batch * n + k, mask=k < n, other=0.0)
        mean = tl.load(inner + batch * n + k, mask=k < n, other=0.0)
        centred = score.to(tl.float32) - pixel[None, :]
        share = tl.exp(centred - total[:, None])
        of_share = tl.load(of_shares + batch * n * length + wide_k * length + wide_place, mask=mask, other=0.0)
        value = share * (of_share - mean[:, None]) - tl.exp(centred) * column[None, :]
        if HAS_EARLIER:
            where = batch * earlier_b + wide_k * earlier_n + wide_place * earlier_l
            value += tl.load(earlier + where, mask=mask, other=0.0).to(tl.float32)
        where = batch * gradient_b + wide_k * gradient_n + wide_place * gradient_l
        tl.store(gradient + where, value.to(gradient.dtype.element_ty), mask=mask)
        where = batch * shares_b + wide_k * length + wide_place
        tl.store(shares + where, share.to(shares.dtype.element_ty), mask=mask)


def shares_of(logits: Tensor, features: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """The two logarithms of the shares, of logits [b, n, L]: of each pixel [b, L] and of each class [b, n]. Beside them
    1 / |f| of the features [b, d, L], for their cosines: [b, L].

    `epsilon` is added to the sum of a class's probabilities.
    """
    log_epsilon = math.log(epsilon) if epsilon > 0.0 else -math.inf
    b, n, length = logits.shape
    of_pixels = torch.empty(b, length, dtype=torch.float32, device=logits.device)
    inverse_norms, totals = torch.empty_like(of_pixels), of_pixels.new_empty(b, n)
    block = 128
    blocks = cdiv(length, block)
    parts = of_pixels.new_empty(blocks, b, n)
    _pixels[(blocks, b)](
        logits, features, of_pixels, inverse_norms, parts, n, features.shape[1], length,
        *logits.stride(), *features.stride(), BLOCK_N=16, BLOCK=block,
    )  # fmt: skip
    _combine[(cdiv(b * n, 16),)](parts, totals, blocks, b * n, log_epsilon, BLOCK=128, BLOCK_N=16)
    return of_pixels, totals, inverse_norms


def share_gradient(
    logits: Tensor,
    of_pixels: Tensor,
    totals: Tensor,
    inner: Tensor,
    of_shares: Tensor,
    earlier: Tensor | None,
    gradient: Tensor,
    shares: Tensor,
) -> None:
    """Fills `gradient`, that of the logits plus an `earlier` one, and `shares` [b, n, L] (contiguous in each image).

    `of_shares` is the gradient of the shares [b, n, L], `inner` its mean by them, [b, n].
    """
    b, n, length = logits.shape
    block = 128
    strides = (0, 0, 0) if earlier is None else earlier.stride()
    _share_gradient[(cdiv(length, block), b)](
        logits, of_pixels, totals, inner, of_shares, earlier, gradient, shares,
        n, length, *logits.stride(), *strides, *gradient.stride(), shares.stride(0),
        HAS_EARLIER=earlier is not None, BLOCK_N=16, BLOCK=block,
    )  # fmt: skip
