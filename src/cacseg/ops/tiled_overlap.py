"""What the overlap of upsampled logits with their labels needs, a tile of the upsampled map at a time.

Three sums for each class are all that the forward pass keeps. The gradient depends on them all, so the backward pass
upsamples each tile again. Tiles are upsampled by small matrix products, as in `tiled_cross_entropy`.
"""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from cacseg.functional._precision import exact_products, no_autocast, widen
from cacseg.functional.labels import fit_labels
from cacseg.ops._choice import with_gradient
from cacseg.ops.dense_overlap import of_scores, sums_of
from cacseg.ops.interpolation import Span, add_to_rows, tile_spans, upsample_rows


def _tiled_overlap(logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool) -> Tensor:
    """For each class the probabilities on its pixels, on all pixels, and how many pixels it has: [3, n].

    logits [b, n, h, w], labels [b, H, W]; ignored pixels take no part.
    """
    with no_autocast(logits), exact_products(logits):
        tiles = _tiles(logits, labels, ignore_index, align_corners)
        return reduce(torch.add, (sums_of(probabilities, targets, dim=2) for _, _, probabilities, targets in tiles))


def _tiled_overlap_backward(
    of_sums: Tensor, logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool
) -> Tensor:
    """The gradient of the logits."""
    with no_autocast(logits), exact_products(logits):
        gradient = torch.zeros(logits.shape, dtype=of_sums.dtype, device=logits.device)
        for down, across, probabilities, targets in _tiles(logits, labels, ignore_index, align_corners):
            of_tile = of_scores(of_sums, probabilities, targets, dim=2)
            add_to_rows(gradient[..., across.source], down, of_tile @ across.matrix)
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
