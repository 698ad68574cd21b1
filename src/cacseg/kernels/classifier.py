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
from cacseg.kernels.distillation import class_sums
from cacseg.kernels.matmul import long_product, product


class Projector(NamedTuple):
    """theta: Linear(2d, hidden, no bias), ReLU, Linear(hidden, d)."""

    first: Tensor
    second: Tensor
    bias: Tensor


class Saved(NamedTuple):
    """What the backward pass needs of a branch besides its projector."""

    concatenated: Tensor  # [images, n, 2d]: prototypes and weight
    hidden: Tensor  # [images, n, hidden]
    rows: Tensor  # [images, n, d]
    inverse_rows: Tensor  # [images, n]
    scores: Tensor  # [b, n, L]


def _saved(tensors: list[Tensor], scores: Tensor) -> Saved:
    concatenated, hidden, rows, inverse_rows = tensors
    return Saved(concatenated, hidden, rows, inverse_rows, scores)


@triton.jit
def _means(
    parts,
    counts,
    weight,
    concatenated,
    shares,
    n,
    d,
    count,
    count_parts,
    images,
    BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Oracle prototypes (the weight, where absent) beside the weight, [images, n, 2d], and 1 / the number of pixels."""
    k = tl.program_id(0)
    group = tl.program_id(1)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    fixed = tl.load(weight + k * d + channel, mask=known, other=0.0).to(tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    total = 0.0
    first = 0 if BATCH else group
    last = images if BATCH else group + 1
    for image in range(first, last):
        for part in range(count_parts):
            total += tl.load(counts + (part * images + image) * n + k)
        for part in range(count):
            here = parts + ((part * images + image) * n + k) * d
            sums += tl.load(here + channel, mask=known, other=0.0)
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
    parts, lengths, rows, out, n, d, count, blocks, images, first_row, all_rows,
    BATCH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """dA from the parts of G F^T [count, images, all_rows, d], less A times the parts of its lengths' share."""
    k = tl.program_id(0)
    group = tl.program_id(1)
    channel = tl.arange(0, BLOCK)
    known = channel < d
    sums = tl.zeros([BLOCK], tl.float32)
    along = tl.zeros([BLOCK_L], tl.float32)
    first = 0 if BATCH else group
    last = images if BATCH else group + 1
    for image in range(first, last):
        for part in range(count):
            here = parts + ((part * images + image) * all_rows + first_row + k) * d
            sums += tl.load(here + channel, mask=known, other=0.0)
        for block in range(0, blocks, BLOCK_L):
            index = block + tl.arange(0, BLOCK_L)
            along += tl.load(lengths + (index * images + image) * n + k, mask=index < blocks, other=0.0)
    row = tl.load(rows + (group * n + k) * d + channel, mask=known, other=0.0).to(tl.float32)
    value = sums - row * tl.sum(along)
    tl.store(out + (group * n + k) * d + channel, value.to(out.dtype.element_ty), mask=known)


@triton.jit
def _weight_gradient(
    parts, channel_scale, of_context, of_oracle, out, n, d, count, images, oracle_images,
    DROPPED: tl.constexpr, ORACLE: tl.constexpr, BLOCK: tl.constexpr,
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
        if DROPPED:
            sums *= tl.load(channel_scale + image * d + channel, mask=known, other=0.0)
        here = of_context + (image * n + k) * 2 * d + d
        total += sums + tl.load(here + channel, mask=known, other=0.0).to(tl.float32)
    if ORACLE:
        for image in range(oracle_images):
            here = of_oracle + (image * n + k) * 2 * d + d
            total += tl.load(here + channel, mask=known, other=0.0).to(tl.float32)
    tl.store(out + k * d + channel, total.to(out.dtype.element_ty), mask=known)


def _project(projector: Projector, concatenated: Tensor, residual: bool) -> tuple[Tensor, Tensor]:
    """The hidden units and the rows; with `residual` the weight, second half of `concatenated`, is added to these."""
    flat = concatenated.flatten(0, 1)
    hidden = torch.mm(flat, projector.first.T).relu_()
    rows = torch.addmm(projector.bias, hidden, projector.second.T)
    if residual:
        rows += flat[:, rows.shape[1] :]
    return hidden.view(*concatenated.shape[:2], -1), rows.view(*concatenated.shape[:2], -1)


def _project_backward(projector: Projector, saved: Saved, of_rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the concatenated prototypes and weight [images, n, 2d], and those of the projector."""
    flat, hidden = of_rows.flatten(0, 1), saved.hidden.flatten(0, 1)
    of_hidden = torch.ops.aten.threshold_backward(torch.mm(flat, projector.second), hidden, 0.0)
    of_first = torch.mm(of_hidden.T, saved.concatenated.flatten(0, 1))
    of_concatenated = torch.mm(of_hidden, projector.first)
    return of_concatenated.view(saved.concatenated.shape), [of_first, torch.mm(flat.T, hidden), flat.sum(0)]


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
    (b, d, _), n = features.shape, weight.shape[0]
    fixed = weight[None] if channel_scale is None else weight * channel_scale[:, None]
    plain = product(fixed, features, bias=bias, dtype=features.dtype)
    of_pixels, totals = prototypes.shares_of(plain, epsilon)
    parts = long_product(plain, features.transpose(1, 2), softmax=(totals, of_pixels), wide_range=True)
    concatenated = torch.empty(b, n, 2 * d, dtype=weight.dtype, device=weight.device)
    block = power_of_2(d)
    _join[(n, b)](parts, weight, concatenated, n, d, parts.shape[0], b, BLOCK=block)
    inverse_pixels = cosine.inverse_norms(features)
    hidden, rows = _project(context, concatenated, residual)
    scores, inverse_rows = cosine.forward(features, rows, inverse_pixels, scale)
    saved = [of_pixels, totals, inverse_pixels, concatenated, hidden, rows, inverse_rows]
    outputs = [plain, scores]
    if oracle is not None and labels is not None:
        parts = long_product(labels[:, None], features.transpose(1, 2), one_hot=n)
        counts = class_sums(labels, n)[0]
        groups = 1 if over_batch else b
        concatenated = torch.empty(groups, n, 2 * d, dtype=weight.dtype, device=weight.device)
        shares = torch.empty(groups, n, dtype=torch.float32, device=weight.device)
        _means[(n, groups)](
            parts,
            counts,
            weight,
            concatenated,
            shares,
            n,
            d,
            parts.shape[0],
            counts.shape[0],
            b,
            BATCH=over_batch,
            BLOCK=block,
        )
        hidden, rows = _project(oracle, concatenated, residual)
        scores, inverse_rows = cosine.forward(features, rows, inverse_pixels, scale)
        outputs.append(scores)
        saved += [shares, concatenated, hidden, rows, inverse_rows]
    return outputs, saved


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
    of_pixels, totals, inverse_pixels = saved[:3]
    branches = [(of_context, context, _saved(saved[3:7], outputs[1]))]
    if of_oracle is not None and oracle is not None:
        branches.append((of_oracle, oracle, _saved(saved[8:12], outputs[2])))
    # One after the other along the inner dimension of the last product: plain, context, oracle, shares.
    dtype = features.dtype if features.dtype == torch.bfloat16 else torch.float32
    stack = torch.empty(b, (2 + len(branches)) * n, length, dtype=dtype, device=device)
    along_rows = torch.empty(b, length, dtype=torch.float32, device=device)
    lengths = []
    for index, (gradient, _, branch) in enumerate(branches):
        assert gradient is not None
        into = stack[:, (1 + index) * n : (2 + index) * n]
        lengths.append(
            cosine.scale_gradient(
                gradient, branch.scores, inverse_pixels, branch.inverse_rows, into, along_rows, scale, index > 0
            )
        )
    scaled = stack[:, n : (1 + len(branches)) * n]
    parts = long_product(scaled, features.transpose(1, 2), wide_range=True)
    block = power_of_2(d)
    of_projectors, of_concatenated = [], []
    for index, (_, projector, branch) in enumerate(branches):
        of_rows = torch.empty_like(branch.rows)
        groups, blocks = branch.rows.shape[0], lengths[index].shape[0]
        _rows_gradient[(n, groups)](
            parts, lengths[index], branch.rows, of_rows, n, d, parts.shape[0], blocks, b, index * n, scaled.shape[1],
            BATCH=groups < b, BLOCK=block, BLOCK_L=128,
        )  # fmt: skip
        of_both, of_projector = _project_backward(projector, branch, of_rows)
        if residual:
            of_both[..., d:] += of_rows
        of_concatenated.append(of_both)
        of_projectors += of_projector

    of_prototypes = of_concatenated[0][..., :d]
    shares = stack[:, (1 + len(branches)) * n :]
    inner = (of_prototypes * saved[3][..., :d]).sum(-1, dtype=torch.float32)
    of_shares = product(of_prototypes, features, wide_range=True)
    prototypes.share_gradient(outputs[0], of_pixels, totals, inner, of_shares, of_plain, stack[:, :n], shares)
    del of_shares
    parts = long_product(stack[:, :n], features.transpose(1, 2), wide_range=True)
    of_weight = torch.empty_like(weight)
    of_oracle_weight = of_concatenated[-1] if len(branches) > 1 else None
    _weight_gradient[(n,)](
        parts, channel_scale, of_concatenated[0], of_oracle_weight, of_weight, n, d, parts.shape[0], b,
        0 if of_oracle_weight is None else of_oracle_weight.shape[0],
        DROPPED=channel_scale is not None, ORACLE=of_oracle_weight is not None, BLOCK=block,
    )  # fmt: skip

    fixed = weight[None] if channel_scale is None else weight * channel_scale[:, None]
    left = [*(branch.rows for _, _, branch in branches), of_prototypes]
    by_label = None
    if len(branches) > 1:
        assert labels is not None
        by_label = of_concatenated[1][..., :d], saved[7], labels
    of_features = product(
        torch.cat([one.expand(b, -1, -1) for one in (fixed, *left)], dim=1).transpose(1, 2),
        stack,
        out=torch.empty_like(features),
        minus=(features, along_rows),
        by_label=by_label,
    )
    of_bias = [stack[:, :n].sum((0, 2), dtype=torch.float32)] if with_bias else []
    return [of_features, of_weight, *of_bias, *of_projectors]
