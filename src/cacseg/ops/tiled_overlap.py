"""What the overlap of upsampled logits with their labels needs, a tile of the upsampled map at a time.

Three sums for each class are all that the forward pass keeps. The gradient depends on them all, so the backward pass
upsamples each tile again. Tiles are upsampled by small matrix products, as in `tiled_cross_entropy`.
"""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cacseg.functional._precision import exact_products, no_autocast, widen
from cacseg.functional.labels import fit_labels
from cacseg.ops._choice import with_gradient
from cacseg.ops.interpolation import Span, add_to_rows, tile_spans, upsample_rows


def _tiled_overlap(logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool) -> Tensor:
    """For each class the probabilities on its pixels, on all pixels, and how many pixels it has: [3, n].

    logits [b, n, h, w], labels [b, H, W]; ignored pixels take no part.
    """
    n = logits.shape[1]
    sums = torch.zeros(3, n, dtype=widen(logits[:0]).dtype, device=logits.device)
    classes = torch.arange(n, device=logits.device).view(-1, 1)
    with no_autocast(logits), exact_products(logits):
        for _, _, probabilities, targets in _tiles(logits, labels, ignore_index, align_corners):
            own = targets == classes
            sums[1] += probabilities.sum((0, 1, 3))
            sums[2] += own.sum((0, 1, 3))
            sums[0] += probabilities.mul_(own).sum((0, 1, 3))
    return sums


def _tiled_overlap_backward(
    of_sums: Tensor, logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool
) -> Tensor:
    """The gradient of the logits.

    Where the sums' gradients give a pixel of class y the gradient g_k = of_answered_k + [k = y] of_shared_k for its
    probability q_k, its score has q_k (g_k - sum_j q_j g_j).
    """
    of_shared, of_answered, _ = of_sums
    everywhere = of_answered.view(-1, 1)
    with no_autocast(logits), exact_products(logits):
        gradient = torch.zeros(logits.shape, dtype=of_sums.dtype, device=logits.device)
        for down, across, scores, targets in _tiles(logits, labels, ignore_index, align_corners):
            own = targets.clamp_min(0)
            extra = scores.gather(2, own) * of_shared[own]  # 0 where ignored
            mean = (scores * everywhere).sum(2, keepdim=True) + extra
            scores.mul_(everywhere - mean)
            scores.scatter_(2, own, scores.gather(2, own) + extra)
            add_to_rows(gradient[..., across.source], down, scores @ across.matrix)
    return gradient.to(logits.dtype)


def _tiles(
    logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool
) -> Iterator[tuple[Span, Span, Tensor, Tensor]]:
    """Where each tile is, its probabilities [rows, b, n, columns], 0 where ignored, and its labels, there -1."""
    size = labels.shape[1:]
    fitted = fit_labels(labels, size, logits.shape[1], ignore_index).movedim(1, 0)[:, :, None]  # [H, b, 1, W]
    dtype = widen(logits[:0]).dtype
    rows, columns = tile_spans(logits.shape, size, align_corners, dtype, logits.device)
    for down in rows:
        band = upsample_rows(down, logits)
        for across in columns:
            targets = fitted[down.output, ..., across.output]
            scores = band[..., across.source] @ across.matrix.T
            yield down, across, scores.softmax(dim=2).masked_fill_(targets < 0, 0.0), targets


tiled_overlap_operator = torch.library.custom_op("cacseg::tiled_overlap", mutates_args=())(_tiled_overlap)
tiled_overlap_backward_operator = torch.library.custom_op("cacseg::tiled_overlap_backward", mutates_args=())(
    _tiled_overlap_backward
)


@tiled_overlap_operator.register_fake
def _(logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool) -> Tensor:
    return logits.new_empty(3, logits.shape[1], dtype=widen(logits[:0]).dtype)


@tiled_overlap_backward_operator.register_fake
def _(of_sums: Tensor, logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool) -> Tensor:
    return logits.new_empty(logits.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, labels, ctx.ignore_index, ctx.align_corners = inputs
    ctx.save_for_backward(logits, labels)


def _backward(run: Any, ctx: Any, of_sums: Tensor) -> tuple[Any, ...]:
    return run(of_sums, *ctx.saved_tensors, ctx.ignore_index, ctx.align_corners), None, None, None


tiled_overlap = with_gradient(
    tiled_overlap_operator,
    _tiled_overlap,
    _setup_context,
    _backward,
    tiled_overlap_backward_operator,
    _tiled_overlap_backward,
)
