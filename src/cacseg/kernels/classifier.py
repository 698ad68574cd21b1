"""The whole classifier of the paper's design as one forward and one backward pass: as few launches as it takes.

The gradient of the features is a single product. Everything that reaches them linearly is stacked along its inner
dimension: the plain weight with the gradient of its scores, both image classifiers with theirs, and the gradient of the
context prototypes with the shares of the pixels; what comes from the lengths and from the oracle prototypes is added at
its end. Dropout of channels before the plain classifier is a weight of each image's own, so no dropped copy exists.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cosine, power_of_2, prototypes
from cacseg.kernels.cosine import inverse_of
from cacseg.kernels.matmul import long_product, product


class Projector(NamedTuple):
    """theta: Linear(2d, hidden, no bias), ReLU, Linear(hidden, d)."""

    first: Tensor
    second: Tensor
    bias: Tensor


@triton.jit
def _concatenate(
    parts, oracle_parts, labels, weight, concatenated, shares, n, d, count, length, images,
    BATCH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Prototypes from their parts, beside the weight: [groups, n, 2d]. First those of the images, then the oracle's.

    Of the oracle also 1 / the number of pixels; the weight stands in for the prototype of a class without any.
    """
    k = tl.program_id(0)
    group = tl.program_id(1)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    fixed = tl.load(weight + k * d + channel, mask=known, other=0.0).to(tl.float32)
    mean = tl.zeros([BLOCK], tl.float32)
    if group < images:
        for part in range(count):
            mean += tl.load(parts + ((part * images + group) * n + k) * d + channel, mask=known, other=0.0)
    elif labels is not None:
        pixels = tl.zeros([BLOCK_L], tl.int32)
        wide = tl.full([], 0, tl.int64)  # added to a loop's index, which may be narrow
        first = 0 if BATCH else group - images
        last = images if BATCH else group - images + 1
        for image in range(first, last):
            here = labels + (wide + image) * length
            for start in range(0, length, BLOCK_L):
                place = start + tl.arange(0, BLOCK_L)
                pixels += (tl.load(here + place, mask=place < length, other=-1) == k).to(tl.int32)
            for part in range(count):
                of_part = oracle_parts + ((part * images + image) * n + k) * d
                mean += tl.load(of_part + channel, mask=known, other=0.0)
        total = tl.sum(pixels).to(tl.float32)
        share = tl.where(total > 0.0, 1.0 / tl.maximum(total, 1.0), 0.0)
        mean = tl.where(total > 0.0, mean * share, fixed)
        tl.store(shares + (group - images) * n + k, share)
    out = concatenated + (group * n + k) * 2 * d + channel
    tl.store(out, mean.to(concatenated.dtype.element_ty), mask=known)
    tl.store(out + d, fixed.to(concatenated.dtype.element_ty), mask=known)


@triton.jit
def _finish_rows(rows, weight, inverse_norms, n, d, RESIDUAL: tl.constexpr, BLOCK: tl.constexpr):
    """1 / |A| of each row of [groups, n, d]; with a residual the weight is added to it first."""
    row = tl.program_id(1) * n + tl.program_id(0)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    value = tl.load(rows + row * d + channel, mask=known, other=0.0)
    if RESIDUAL:
        fixed = tl.load(weight + tl.program_id(0) * d + channel, mask=known, other=0.0)
        value = (value.to(tl.float32) + fixed.to(tl.float32)).to(rows.dtype.element_ty)
        tl.store(rows + row * d + channel, value, mask=known)
    value = value.to(tl.float32)
    tl.store(inverse_norms + row, inverse_of(tl.sum(value * value)))


@triton.jit
def _rows_gradient(
    parts, lengths, rows, out, n, d, count, blocks, images, all_rows,
    BATCH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """dA from the parts of G F^T [count, images, all_rows, d], less A times the parts of its lengths' share.

    The rows of the oracle come after those of the images' own classifiers; with BATCH they are one set for all images.
    """
    k = tl.program_id(0)
    group = tl.program_id(1)
    branch = (group >= images).to(tl.int32)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    sums = tl.zeros([BLOCK], tl.float32)
    along = tl.zeros([BLOCK_L], tl.float32)
    first = group - branch * images
    last = first + 1
    if BATCH:
        last = tl.where(branch == 1, images, last)
    for image in range(first, last):
        for part in range(count):
            here = parts + ((part * images + image) * all_rows + branch * n + k) * d
            sums += tl.load(here + channel, mask=known, other=0.0)
        for block in range(0, blocks, BLOCK_L):
            index = block + tl.arange(0, BLOCK_L)
            here = lengths + ((branch * blocks + index) * images + image) * n + k
            along += tl.load(here, mask=index < blocks, other=0.0)
    row = tl.load(rows + (group * n + k) * d + channel, mask=known, other=0.0).to(tl.float32)
    value = sums - row * tl.sum(along)
    tl.store(out + (group * n + k) * d + channel, value.to(out.dtype.element_ty), mask=known)


@triton.jit
def _weight_gradient(
    parts, channel_scale, of_concatenated, of_rows, out, n, d, count, images, groups, BLOCK: tl.constexpr
):
    """dC: from the plain scores, from its place beside the prototypes [groups, n, 2d], and from residual rows."""
    k = tl.program_id(0)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    total = tl.zeros([BLOCK], tl.float32)
    for image in range(images):
        sums = tl.zeros([BLOCK], tl.float32)
        for part in range(count):
            sums += tl.load(parts + ((part * images + image) * n + k) * d + channel, mask=known, other=0.0)
        if channel_scale is not None:
            sums *= tl.load(channel_scale + image * d + channel, mask=known, other=0.0)
        total += sums
    for group in range(groups):
        here = (group * n + k) * d + channel
        total += tl.load(of_concatenated + here + (group * n + k + 1) * d, mask=known, other=0.0).to(tl.float32)
        if of_rows is not None:
            total += tl.load(of_rows + here, mask=known, other=0.0).to(tl.float32)
    tl.store(out + k * d + channel, total.to(out.dtype.element_ty), mask=known)


def _project(projectors: list[Projector], concatenated: Tensor, cut: int) -> tuple[Tensor, Tensor]:
    """Hidden units [rows, hidden] and rows [rows, d] of concatenated prototypes and weights [rows, 2d].

    The rows of the images' own classifiers end at `cut`; those of the oracle, no more of them, follow.
    """
    count, (d, width) = concatenated.shape[0], projectors[0].second.shape
    hidden, rows = concatenated.new_empty(count, width), concatenated.new_empty(count, d)
    units = hidden.split(cut)
    for projector, given, out in zip(projectors, concatenated.split(cut), units, strict=True):
        torch.mm(given, projector.first.T, out=out)
    hidden.relu_()
    for projector, given, out in zip(projectors, units, rows.split(cut), strict=True):
        torch.addmm(projector.bias, given, projector.second.T, out=out)
    return hidden, rows


def _project_backward(
    projectors: list[Projector], concatenated: Tensor, hidden: Tensor, of_rows: Tensor, cut: int
) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the concatenated prototypes and weights, and those of the projectors."""
    of_hidden, of_concatenated, of_projectors = torch.empty_like(hidden), torch.empty_like(concatenated), []
    of_parts = of_rows.split(cut)
    for projector, of_part, out in zip(projectors, of_parts, of_hidden.split(cut), strict=True):
        torch.mm(of_part, projector.second, out=out)
    of_hidden = torch.ops.aten.threshold_backward(of_hidden, hidden, 0.0)
    branches = (of_parts, of_hidden.split(cut), concatenated.split(cut), hidden.split(cut), of_concatenated.split(cut))
    for projector, of_part, of_units, given, units, out in zip(projectors, *branches, strict=True):
        torch.mm(of_units, projector.first, out=out)
        of_projectors += [torch.mm(of_units.T, given), torch.mm(of_part.T, units), of_part.sum(0)]
    return of_concatenated, of_projectors


def forward(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    channel_scale: Tensor | None,
    projectors: list[Projector],
    labels: Tensor | None,
    scale: float,
    over_batch: bool,
    residual: bool,
    epsilon: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """[plain, context, oracle] scores [b, n, L], and what the backward pass needs.

    features [b, d, L]; weight [n, d]; channel_scale [b, d], what dropout multiplies the features with before the plain
    scores; projectors of the context and, with labels, of the oracle; labels [b, L], -1 where they take no part.
    Without labels the oracle's scores are left out. With `residual` the weight is added to what the projectors give.
    `epsilon` is added to what context prototypes are divided by.
    """
    (b, d, length), n = features.shape, weight.shape[0]
    fixed = weight[None] if channel_scale is None else weight * channel_scale[:, None]
    plain, pixels = product(fixed, features, bias=bias, dtype=features.dtype), features.transpose(1, 2)
    of_pixels, totals, inverse_pixels = prototypes.shares_of(plain, features, epsilon)
    parts = long_product(plain, pixels, softmax=(totals, of_pixels), wide_range=True)
    groups, outputs, oracle_parts = b, [plain, torch.empty_like(plain)], None
    if labels is not None:
        groups, outputs = b + (1 if over_batch else b), [*outputs, torch.empty_like(plain)]
        oracle_parts = long_product(labels[:, None], pixels, one_hot=n)
    concatenated, shares = weight.new_empty(groups * n, 2 * d), totals.new_empty(groups - b, n)
    block = power_of_2(d)
    _concatenate[(n, groups)](
        parts, oracle_parts, labels, weight, concatenated, shares, n, d, parts.shape[0], length, b,
        BATCH=over_batch, BLOCK=block, BLOCK_L=4096,
    )  # fmt: skip
    hidden, rows = _project(projectors, concatenated, b * n)
    inverse_rows = totals.new_empty(groups, n)
    _finish_rows[(n, groups)](rows, weight, inverse_rows, n, d, RESIDUAL=residual, BLOCK=block)
    rows = rows.view(groups, n, d)  # of the images, then of the oracle
    product(
        rows, features, out=outputs[1], second=outputs[2] if labels is not None else None,
        scale=scale, row_scale=inverse_rows, column_scale=inverse_pixels,
    )  # fmt: skip
    return outputs, [of_pixels, totals, inverse_pixels, rows, inverse_rows, concatenated, hidden, shares]


def backward(
    gradients: list[Tensor | None],
    features: Tensor,
    weight: Tensor,
    channel_scale: Tensor | None,
    projectors: list[Projector],
    labels: Tensor | None,
    outputs: list[Tensor],
    saved: list[Tensor],
    scale: float,
    with_bias: bool,
    residual: bool,
) -> list[Tensor]:
    """The gradients of features, weight, bias (if there is one), and of the projectors whose scores have a gradient.

    `gradients` are those of the plain, the context and the oracle scores; the first and the last may be None.
    """
    (b, d, length), n, device = features.shape, weight.shape[0], features.device
    of_plain, of_scores = gradients[0], [one for one in gradients[1:] if one is not None]
    count, projectors = len(of_scores), projectors[: len(of_scores)]
    of_pixels, totals, inverse_pixels, rows, inverse_rows, concatenated, hidden, shares = saved
    if count == 1:  # the oracle has no part in it
        rows, concatenated, hidden = rows[:b], concatenated[: b * n], hidden[: b * n]
    groups, pixels = rows.shape[0], features.transpose(1, 2)
    # One after the other along the inner dimension of the last product: plain, context, oracle, shares.
    dtype = features.dtype if features.dtype == torch.bfloat16 else torch.float32
    stack = torch.empty(b, (2 + count) * n, length, dtype=dtype, device=device)
    of_logits, scaled, pixel_shares = stack.split([n, count * n, n], dim=1)
    along_rows = torch.empty(b, length, dtype=torch.float32, device=device)
    lengths = cosine.scale_gradient(
        of_scores, outputs[1 : 1 + count], inverse_pixels, inverse_rows, scaled, along_rows, scale
    )
    parts = long_product(scaled, pixels, wide_range=True)
    block = power_of_2(d)
    of_rows = torch.empty(groups * n, d, dtype=rows.dtype, device=device)
    _rows_gradient[(n, groups)](
        parts, lengths, rows, of_rows, n, d, parts.shape[0], lengths.shape[1], b, count * n,
        BATCH=groups < count * b, BLOCK=block, BLOCK_L=128,
    )  # fmt: skip
    of_concatenated, of_projectors = _project_backward(projectors, concatenated, hidden, of_rows, b * n)
    of_all_prototypes = of_concatenated.view(groups, n, 2 * d)[..., :d]
    of_prototypes = of_all_prototypes[:b]
    by_label = None if count == 1 or labels is None else (of_all_prototypes[b:], shares, labels)

    inner = (of_prototypes * concatenated[: b * n, :d].view_as(of_prototypes)).sum(-1, dtype=torch.float32)
    of_shares = product(of_prototypes, features, wide_range=True)
    prototypes.share_gradient(outputs[0], of_pixels, totals, inner, of_shares, of_plain, of_logits, pixel_shares)
    del of_shares
    parts = long_product(of_logits, pixels, wide_range=True)
    of_weight = torch.empty_like(weight)
    _weight_gradient[(n,)](
        parts, channel_scale, of_concatenated, of_rows if residual else None, of_weight,
        n, d, parts.shape[0], b, groups, BLOCK=block,
    )  # fmt: skip

    fixed = weight[None] if channel_scale is None else weight * channel_scale[:, None]
    left = [one.expand(b, -1, -1) for one in (fixed, *rows.split(b), of_prototypes)]
    of_features = torch.empty_like(features)
    if features.stride() != of_features.stride():  # they are not dense
        features = of_features.copy_(features)
    product(
        torch.cat(left, dim=1).transpose(1, 2), stack,
        out=of_features, minus=(features, along_rows), by_label=by_label,
    )  # fmt: skip
    of_bias = [of_logits.sum((0, 2), dtype=torch.float32)] if with_bias else []
    return [of_features, of_weight, *of_bias, *of_projectors]
