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
from cacseg.kernels.matmul import long_product, product


class Projector(NamedTuple):
    """theta: Linear(2d, hidden, no bias), ReLU, Linear(hidden, d)."""

    first: Tensor
    second: Tensor
    bias: Tensor


@triton.jit
def _means(
    parts, labels, weight, concatenated, shares, n, d, count, length, images,
    BATCH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Oracle prototypes (the weight, where absent) beside the weight, [images, n, 2d], and 1 / the number of pixels."""
    k = tl.program_id(0)
    group = tl.program_id(1)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    fixed = tl.load(weight + k * d + channel, mask=known, other=0.0).to(tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    pixels = tl.zeros([BLOCK_L], tl.int32)
    wide = tl.full([], 0, tl.int64)  # added to a loop's index, which may be narrow
    first = 0 if BATCH else group
    last = images if BATCH else group + 1
    for image in range(first, last):
        here = labels + (wide + image) * length
        for start in range(0, length, BLOCK_L):
            place = start + tl.arange(0, BLOCK_L)
            pixels += (tl.load(here + place, mask=place < length, other=-1) == k).to(tl.int32)
        for part in range(count):
            of_part = parts + ((part * images + image) * n + k) * d
            sums += tl.load(of_part + channel, mask=known, other=0.0)
    total = tl.sum(pixels).to(tl.float32)
    share = tl.where(total > 0.0, 1.0 / tl.maximum(total, 1.0), 0.0)
    mean = tl.where(total > 0.0, sums * share, fixed)
    out = concatenated + (group * n + k) * 2 * d + channel
    tl.store(out, mean.to(concatenated.dtype.element_ty), mask=known)
    tl.store(out + d, fixed.to(concatenated.dtype.element_ty), mask=known)
    tl.store(shares + group * n + k, share)


@triton.jit
def _join(parts, weight, concatenated, n, d, count, images, BLOCK: tl.constexpr):
    """Context prototypes from their parts, beside the weight: [images, n, 2d]."""
    k = tl.program_id(0)
    image = tl.program_id(1)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    sums = tl.zeros([BLOCK], tl.float32)
    for part in range(count):
        sums += tl.load(parts + ((part * images + image) * n + k) * d + channel, mask=known, other=0.0)
    out = concatenated + (image * n + k) * 2 * d + channel
    fixed = tl.load(weight + k * d + channel, mask=known, other=0.0)
    tl.store(out, sums.to(concatenated.dtype.element_ty), mask=known)
    tl.store(out + d, fixed.to(concatenated.dtype.element_ty), mask=known)


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
    parts, channel_scale, of_context, of_oracle, out, n, d, count, images, oracle_images,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """dC: from the plain scores, and from its place beside the prototypes of both branches [images, n, 2d]."""
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
        here = of_context + (image * n + k) * 2 * d + d
        total += sums + tl.load(here + channel, mask=known, other=0.0).to(tl.float32)
    if of_oracle is not None:
        for image in range(oracle_images):
            here = of_oracle + (image * n + k) * 2 * d + d
            total += tl.load(here + channel, mask=known, other=0.0).to(tl.float32)
    tl.store(out + k * d + channel, total.to(out.dtype.element_ty), mask=known)


def _project(projector: Projector, concatenated: Tensor, residual: bool, out: Tensor) -> Tensor:
    """Writes the rows, with `residual` the weight (second half of `concatenated`) added. Returns the hidden units."""
    flat, rows = concatenated.flatten(0, 1), out.flatten(0, 1)
    hidden = torch.mm(flat, projector.first.T).relu_()
    torch.addmm(projector.bias, hidden, projector.second.T, out=rows)
    if residual:
        rows += flat[:, rows.shape[1] :]
    return hidden.view(*concatenated.shape[:2], -1)


def _project_backward(
    projector: Projector, concatenated: Tensor, hidden: Tensor, of_rows: Tensor, residual: bool
) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the concatenated prototypes and weight [images, n, 2d], and those of the projector."""
    flat, hidden = of_rows.flatten(0, 1), hidden.flatten(0, 1)
    of_hidden = torch.ops.aten.threshold_backward(torch.mm(flat, projector.second), hidden, 0.0)
    of_first = torch.mm(of_hidden.T, concatenated.flatten(0, 1))
    of_concatenated = torch.mm(of_hidden, projector.first)
    if residual:
        of_concatenated[:, flat.shape[1] :] += flat
    return of_concatenated.view(concatenated.shape), [of_first, torch.mm(flat.T, hidden), flat.sum(0)]


def forward(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    channel_scale: Tensor | None,
    context: Projector,
    oracle: Projector | None,
    labels: Tensor | None,
    scale: float,
    over_batch: bool,
    residual: bool,
    epsilon: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """[plain, context, oracle] scores [b, n, L], and what the backward pass needs.

    features [b, d, L]; weight [n, d]; channel_scale [b, d], what dropout multiplies the features with before the plain
    scores; labels [b, L], -1 where they take no part. Without an oracle its scores are left out. With `residual` the
    weight is added to what the projectors give. `epsilon` is added to what context prototypes are divided by.
    """
    (b, d, _), n, device = features.shape, weight.shape[0], weight.device
    with_oracle = oracle is not None and labels is not None
    groups = 0 if not with_oracle else 1 if over_batch else b
    fixed = weight[None] if channel_scale is None else weight * channel_scale[:, None]
    plain = product(fixed, features, bias=bias, dtype=features.dtype)
    of_pixels, totals = prototypes.shares_of(plain, epsilon)
    parts = long_product(plain, features.transpose(1, 2), softmax=(totals, of_pixels), wide_range=True)
    concatenated = torch.empty(b, n, 2 * d, dtype=weight.dtype, device=device)
    block = power_of_2(d)
    _join[(n, b)](parts, weight, concatenated, n, d, parts.shape[0], b, BLOCK=block)
    inverse_pixels = cosine.inverse_norms(features)
    rows = torch.empty(b + groups, n, d, dtype=weight.dtype, device=device)  # of the images, then of the oracle
    of_context = [concatenated, _project(context, concatenated, residual, rows[:b])]
    of_oracle = []
    if oracle is not None and labels is not None:
        parts = long_product(labels[:, None], features.transpose(1, 2), one_hot=n)
        concatenated = torch.empty(groups, n, 2 * d, dtype=weight.dtype, device=device)
        shares = torch.empty(groups, n, dtype=torch.float32, device=device)
        _means[(n, groups)](
            parts, labels, weight, concatenated, shares, n, d, parts.shape[0], labels.shape[1], b,
            BATCH=over_batch, BLOCK=block, BLOCK_L=4096,
        )  # fmt: skip
        of_oracle = [shares, concatenated, _project(oracle, concatenated, residual, rows[b:])]
    inverse_rows = cosine.inverse_norms(rows.transpose(1, 2))
    scores = [
        product(
            rows[own], features, dtype=features.dtype,
            scale=scale, row_scale=inverse_rows[own], column_scale=inverse_pixels,
        )
        for own in (slice(b), slice(b, None))[: 1 + with_oracle]
    ]  # fmt: skip
    return [plain, *scores], [of_pixels, totals, inverse_pixels, rows, inverse_rows, *of_context, *of_oracle]


def backward(
    gradients: list[Tensor | None],
    features: Tensor,
    weight: Tensor,
    channel_scale: Tensor | None,
    context: Projector,
    oracle: Projector | None,
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
    of_plain, of_context, of_oracle = gradients
    of_pixels, totals, inverse_pixels, rows, inverse_rows, concatenated, hidden, *saved_of_oracle = saved
    assert of_context is not None
    of_scores, count = [of_context], 1
    if of_oracle is not None and oracle is not None:
        of_scores, count = [of_context, of_oracle], 2
    # One after the other along the inner dimension of the last product: plain, context, oracle, shares.
    dtype = features.dtype if features.dtype == torch.bfloat16 else torch.float32
    stack = torch.empty(b, (2 + count) * n, length, dtype=dtype, device=device)
    along_rows = torch.empty(b, length, dtype=torch.float32, device=device)
    scaled = stack[:, n : (1 + count) * n]
    lengths = cosine.scale_gradient(
        of_scores, outputs[1 : 1 + count], inverse_pixels, inverse_rows, scaled, along_rows, scale
    )
    parts = long_product(scaled, features.transpose(1, 2), wide_range=True)
    block = power_of_2(d)
    rows = rows if count > 1 else rows[:b]
    of_rows, groups = torch.empty_like(rows), rows.shape[0]
    _rows_gradient[(n, groups)](
        parts, lengths, rows, of_rows, n, d, parts.shape[0], lengths.shape[1], b, scaled.shape[1],
        BATCH=groups < count * b, BLOCK=block, BLOCK_L=128,
    )  # fmt: skip
    of_concatenated, of_projectors = _project_backward(context, concatenated, hidden, of_rows[:b], residual)
    of_oracle_concatenated = by_label = None
    if count > 1:
        assert oracle is not None
        assert labels is not None
        shares, concatenated_of_oracle, hidden_of_oracle = saved_of_oracle
        of_oracle_concatenated, of_projector = _project_backward(
            oracle, concatenated_of_oracle, hidden_of_oracle, of_rows[b:], residual
        )
        of_projectors += of_projector
        by_label = of_oracle_concatenated[..., :d], shares, labels

    of_prototypes = of_concatenated[..., :d]
    inner = (of_prototypes * concatenated[..., :d]).sum(-1, dtype=torch.float32)
    of_shares = product(of_prototypes, features, wide_range=True)
    pixel_shares = stack[:, (1 + count) * n :]
    prototypes.share_gradient(outputs[0], of_pixels, totals, inner, of_shares, of_plain, stack[:, :n], pixel_shares)
    del of_shares
    parts = long_product(stack[:, :n], features.transpose(1, 2), wide_range=True)
    of_weight = torch.empty_like(weight)
    _weight_gradient[(n,)](
        parts, channel_scale, of_concatenated, of_oracle_concatenated, of_weight, n, d, parts.shape[0], b,
        0 if of_oracle_concatenated is None else of_oracle_concatenated.shape[0], BLOCK=block,
    )  # fmt: skip

    fixed = weight[None] if channel_scale is None else weight * channel_scale[:, None]
    left = [fixed, rows[:b], *([rows[b:]] if count > 1 else []), of_prototypes]
    of_features = product(
        torch.cat([one.expand(b, -1, -1) for one in left], dim=1).transpose(1, 2),
        stack,
        out=torch.empty_like(features),
        minus=(features, along_rows),
        by_label=by_label,
    )
    of_bias = [stack[:, :n].sum((0, 2), dtype=torch.float32)] if with_bias else []
    return [of_features, of_weight, *of_bias, *of_projectors]
