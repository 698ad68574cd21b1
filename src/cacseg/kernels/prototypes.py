"""Class prototypes: means of the features by predicted probability or by label, features read once.

The softmax over the pixels of log softmax(p) is exp(p - pixel - total): `pixel`, the logsumexp over the classes of each
pixel, and `total`, the logsumexp of p - pixel over the pixels of each class. Both come from one pass over the logits.
The product with the features makes its weights from them on the fly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels.launch import cdiv, launch
from cacseg.kernels.matmul import long_product, product


@triton.jit
def _totals(
    logits, of_pixels, parts, n, length, logits_b, logits_n, logits_l, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr
):
    """logsumexp over the classes of each pixel; that of the difference over a block's pixels, for each class."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
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
def _combine(parts, totals, count, rows, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr):
    """logsumexp over the parts [count, rows] of each row."""
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
    tl.store(totals + row, largest + tl.log(tl.maximum(sums, 1e-38)), mask=row < rows)


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
        score = tl.load(logits + batch * logits_b + wide_k * logits_n + wide_place * logits_l, mask=mask, other=0.0)
        total = tl.load(totals + batch * n + k, mask=k < n, other=0.0)
        mean = tl.load(inner + batch * n + k, mask=k < n, other=0.0)
        share = tl.exp(score.to(tl.float32) - pixel[None, :] - total[:, None])
        of_share = tl.load(of_shares + batch * n * length + wide_k * length + wide_place, mask=mask, other=0.0)
        column += tl.sum(tl.where(mask, share * (of_share - mean[:, None]), 0.0), axis=0)
    for start in range(0, n, BLOCK_N):
        k = start + tl.arange(0, BLOCK_N)
        wide_k, mask = k.to(tl.int64)[:, None], (k < n)[:, None] & inside[None, :]
        score = tl.load(logits + batch * logits_b + wide_k * logits_n + wide_place * logits_l, mask=mask, other=0.0)
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


@triton.jit
def _shares(logits, of_pixels, totals, shares, n, length, logits_b, logits_n, logits_l, shares_b, BLOCK: tl.constexpr):
    """What part of a class's prototype each pixel is."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    inside = place < length
    wide = place.to(tl.int64)
    score = tl.load(logits + batch * logits_b + k.to(tl.int64) * logits_n + wide * logits_l, mask=inside, other=0.0)
    pixel = tl.load(of_pixels + batch * length + place, mask=inside, other=0.0)
    share = tl.exp(score.to(tl.float32) - pixel - tl.load(totals + batch * n + k))
    tl.store(shares + batch * shares_b + k.to(tl.int64) * length + wide, share.to(shares.dtype.element_ty), mask=inside)


@triton.jit
def _spread_to_pixels(
    table, labels, out, n, d, length, table_b, out_b, out_d, out_l, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr
):
    """out[:, l] = table[:, label of l], 0 where it has none. The table is [1 or b, d, n]."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    batch = tl.program_id(2).to(tl.int64)
    inside = (place < length)[None, :] & (channel < d)[:, None]
    label = tl.load(labels + batch * length + place, mask=place < length, other=-1)
    known = (label >= 0) & (label < n)
    here = table + batch * table_b + channel[:, None] * n + label[None, :]
    value = tl.load(here, mask=inside & known[None, :], other=0.0)
    where = batch * out_b + channel.to(tl.int64)[:, None] * out_d + place.to(tl.int64)[None, :] * out_l
    tl.store(out + where, value.to(out.dtype.element_ty), mask=inside)


def shares_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The two logarithms of the shares, of logits [b, n, L]: of each pixel [b, L] and of each class [b, n]."""
    (b, n, length), device = logits.shape, logits.device
    of_pixels = torch.empty(b, length, dtype=torch.float32, device=device)
    block = 128
    grid = (cdiv(length, block), b)
    parts = torch.empty(grid[0], b, n, dtype=torch.float32, device=device)
    totals = torch.empty(b, n, dtype=torch.float32, device=device)
    launch(_totals, grid, logits, of_pixels, parts, n, length, *logits.stride(), BLOCK_N=16, BLOCK=block, num_warps=4)
    launch(_combine, (cdiv(b * n, 16),), parts, totals, grid[0], b * n, BLOCK=128, BLOCK_N=16, num_warps=4)
    return of_pixels, totals


def shares(logits: Tensor, of_pixels: Tensor, totals: Tensor, out: Tensor) -> None:
    """Fills the shares [b, n, L] (contiguous in each image) from their logarithms."""
    b, n, length = logits.shape
    block = 1024
    launch(
        _shares, (cdiv(length, block), n, b),
        logits, of_pixels, totals, out, n, length, *logits.stride(), out.stride(0), BLOCK=block,
    )  # fmt: skip


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
    launch(
        _share_gradient, (cdiv(length, block), b),
        logits, of_pixels, totals, inner, of_shares, earlier, gradient, shares,
        n, length, *logits.stride(), *strides, *gradient.stride(), shares.stride(0),
        HAS_EARLIER=earlier is not None, BLOCK_N=16, BLOCK=block, num_warps=4,
    )  # fmt: skip


def context_forward(features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Prototypes [b, n, d], and the two logarithms of the shares: [b, L] and [b, n]."""
    of_pixels, totals = shares_of(logits)
    parts = long_product(logits, features.transpose(1, 2), softmax=(totals, of_pixels), wide_range=True)
    return parts.sum(0), of_pixels, totals


def context_backward(
    gradient: Tensor, prototypes: Tensor, features: Tensor, logits: Tensor, of_pixels: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of features and logits, each in its dtype and memory format."""
    inner = (gradient * prototypes).sum(-1)
    shares = product(gradient, features, wide_range=True)
    of_logits = torch.empty_like(logits)
    share_gradient(logits, of_pixels, totals, inner, shares, None, of_logits, shares)
    of_features = product(gradient.transpose(1, 2), shares, out=torch.empty_like(features))
    return of_features, of_logits


def label_sums(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Sums of the features of each label, [b, n, d]; labels are [b, L], a label outside [0, n) is left out."""
    return long_product(labels[:, None], features.transpose(1, 2), one_hot=num_classes).sum(0)


def label_sums_backward(gradient: Tensor, labels: Tensor, features: Tensor) -> Tensor:
    """The gradient of the features: each pixel takes the row of its label from gradient [1 or b, n, d]."""
    (b, d, length), n = features.shape, gradient.shape[1]
    out = torch.empty_like(features)
    table = gradient.transpose(1, 2).contiguous()
    grid = (cdiv(length, 128), cdiv(d, 16), b)
    launch(
        _spread_to_pixels,
        grid,
        table,
        labels,
        out,
        n,
        d,
        length,
        d * n * (table.shape[0] > 1),
        *out.stride(),
        BLOCK_D=16,
        BLOCK=128,
    )
    return out
