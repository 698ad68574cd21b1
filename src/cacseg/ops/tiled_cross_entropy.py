"""Cross-entropy of bilinearly upsampled logits, a tile of the upsampled map at a time.

A tile is upsampled, turned into its loss and its gradient, and brought back to the logits' resolution
while it is still in the cache; the upsampled map never exists as a whole. The gradient is formed in the
forward pass (the loss is a scalar: the backward pass only scales it), so nothing is computed twice.
Interpolation is linear in the logits and separable, so each direction is one small matrix product, and its
backward pass is the product with the transpose: deterministic, any ratio of sizes. The Triton kernels read the same
interpolation from the tables of `cells`.
"""

# No `from __future__ import annotations` here: torch.library reads the operator's annotations as objects.

from functools import lru_cache
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from cacseg._checks import check_label_range
from cacseg.functional._precision import exact_products, no_autocast, ratio, widen
from cacseg.functional.cross_entropy import pixel_denominator
from cacseg.functional.labels import labelled

# Elements of one upsampled tile, b * n * rows * columns. On a CPU: 2 MiB of float32, the second-level cache of a
# core. Elsewhere: 64 MiB, enough to fill a GPU, little beside one map of full resolution.
CPU_TILE_ELEMENTS = 2**19
GPU_TILE_ELEMENTS = 2**24
# Tables of so many sizes are kept: those of a training run repeat, and take a few KiB each. A recorded CUDA graph reads
# them where they lie, so it may be replayed until as many other sizes have come.
KEPT = 64
# Narrow tiles keep the interpolation matrices small: each column is mixed from a few dozen, not from all.
TILE_COLUMNS = 128


def positions(source: int, output: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """For each output position the input below it, and how much of the next one it takes; in float64."""
    position = torch.arange(output, dtype=torch.float64, device="cpu")  # whatever torch.device is the default
    if align_corners:
        position = position * ((source - 1) / (output - 1)) if output > 1 else position
    else:
        position = ((position + 0.5) * (source / output) - 0.5).clamp_min(0.0)
    low = position.floor().long().clamp_max(source - 1)
    return low, torch.where(low < source - 1, position - low, 0.0)


@lru_cache(maxsize=KEPT)
def cells(
    source: int, output: int, align_corners: tuple[bool, ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The stretches between neighbouring inputs, a row of each table for each `align_corners`.

    The first output position of each cell, [m, source + 1]; the cell of each output position and its share of the far
    end, [m, output]; and the most positions that any cell has.
    """
    tables = []
    for one in align_corners:
        low, share = positions(source, output, one)
        tables.append((torch.searchsorted(low, torch.arange(source + 1, device="cpu")), low, share))
    start, low, share = (torch.stack(table) for table in zip(*tables, strict=True))
    most = int(start.diff().max())
    start, low, share = (table.to(device, non_blocking=True) for table in (start.int(), low.int(), share.float()))
    return start, low, share, most


class Span(NamedTuple):
    """A stretch of output positions along one axis, and the inputs it is interpolated from."""

    output: slice
    source: slice
    matrix: Tensor  # [output positions, source positions]


@lru_cache(maxsize=KEPT)
def interpolation_spans(
    source: int, output: int, step: int, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Span, ...]:
    """Linear interpolation from `source` to `output` positions, cut into spans of `step` positions."""
    low, high_share = positions(source, output, align_corners)  # on the CPU, so that slices need no synchronisation
    high = (low + 1).clamp_max(source - 1)
    spans = []
    for start in range(0, output, step):
        stop = min(start + step, output)
        first, last = int(low[start]), int(high[stop - 1])
        matrix = torch.zeros(stop - start, last + 1 - first, dtype=torch.float64, device="cpu")
        here = slice(start, stop)
        matrix.scatter_add_(1, low[here, None] - first, 1.0 - high_share[here, None])
        matrix.scatter_add_(1, high[here, None] - first, high_share[here, None])
        spans.append(Span(here, slice(first, last + 1), matrix.to(dtype).to(device, non_blocking=True)))
    return tuple(spans)


@torch.library.custom_op("cacseg::tiled_cross_entropy", mutates_args=())
def tiled_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    ignore_index: int,
    label_smoothing: float,
    align_corners: bool,
    count_ignored: bool,
    with_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient with respect to the logits (empty unless asked for).

    logits [b, n, h, w], labels [b, H, W]. `count_ignored` divides by the number of all pixels.
    """
    if labels.device.type == "cpu":
        check_label_range(labels, logits.shape[1], ignore_index)
    b, n, h, w = logits.shape
    with no_autocast(logits), exact_products(logits):
        kept = labelled(labels, n, ignore_index)
        targets = torch.where(kept, labels.long(), 0)
        dtype = widen(logits[:0]).dtype
        denominator = pixel_denominator(targets, kept, weight, "all" if count_ignored else "labelled", dtype)
        share = kept.to(dtype) * ratio(torch.ones_like(denominator), denominator)  # of each pixel in the mean
        elements = CPU_TILE_ELEMENTS if logits.device.type == "cpu" else GPU_TILE_ELEMENTS
        rows = max(1, elements // (b * n * min(TILE_COLUMNS, labels.shape[2])))
        kind = (align_corners, dtype, logits.device)
        row_spans = interpolation_spans(h, labels.shape[1], rows, *kind)
        column_spans = interpolation_spans(w, labels.shape[2], TILE_COLUMNS, *kind)
        class_weights = None if weight is None else weight.to(dtype)
        targets, share = (one.movedim(1, 0)[:, :, None] for one in (targets, share))  # [H, b, 1, W], as tiles have it

        loss = torch.zeros((), dtype=dtype, device=logits.device)
        gradient = torch.zeros((b, n, h, w) if with_gradient else (0,), dtype=dtype, device=logits.device)
        for down in row_spans:
            source = logits[:, :, down.source].movedim(2, 0).to(dtype)
            # [rows, b, n, w] by one product, where a batched one is many small ones.
            band = (down.matrix @ source.reshape(len(source), -1)).view(-1, b, n, w)
            band_gradient = torch.zeros_like(band) if with_gradient else band
            for across in column_spans:
                scores = band[..., across.source] @ across.matrix.T  # [rows, b, n, columns]
                here = (down.output, ..., across.output)
                of_pixels = (targets[here], share[here])
                loss += _pixels_in_place(scores, *of_pixels, class_weights, label_smoothing, with_gradient)
                if with_gradient:
                    band_gradient[..., across.source] += scores @ across.matrix
            if with_gradient:
                of_source = down.matrix.T @ band_gradient.reshape(len(band), -1)
                gradient[:, :, down.source] += of_source.view(-1, b, n, w).movedim(0, 2)
        return loss, gradient


def _pixels_in_place(
    scores: Tensor,  # [rows, b, n, columns]
    targets: Tensor,  # [rows, b, 1, columns]
    share: Tensor,  # [rows, b, 1, columns]: 0 where ignored
    class_weights: Tensor | None,
    label_smoothing: float,
    with_gradient: bool,
) -> Tensor:
    """The summed loss of a tile; its scores become the gradient with respect to them.

    With q = (1 - s) w_y one_hot(y) + s/n w the target of a pixel, its loss is -sum_k q_k log softmax_k and its
    gradient softmax * sum(q) - q.
    """
    hard = share * (1.0 - label_smoothing)
    if class_weights is not None:
        hard = hard * class_weights[targets]
    mass = hard
    largest = scores.amax(dim=2, keepdim=True)
    scores.sub_(largest)
    target_scores = (scores.gather(2, targets) * hard).sum()
    soft = None
    if label_smoothing > 0.0:
        smoothed = torch.ones_like(scores[0, 0, :, 0]) if class_weights is None else class_weights
        smoothed = smoothed * (label_smoothing / scores.shape[2])
        soft = share * smoothed.view(-1, 1)
        mass = mass + share * smoothed.sum()
        target_scores = target_scores + (scores * soft).sum()
    scores.exp_()
    sums = scores.sum(dim=2, keepdim=True)
    loss = (mass * sums.log()).sum() - target_scores
    if with_gradient:
        scores.mul_(mass / sums)
        scores.scatter_(2, targets, scores.gather(2, targets) - hard)
        if soft is not None:
            scores.sub_(soft)
    return loss


@tiled_cross_entropy.register_fake
def _(logits: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    with_gradient = others[-1]
    dtype = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    return logits.new_empty((), dtype=dtype), logits.new_empty(logits.shape if with_gradient else (0,), dtype=dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.dtype = inputs[0].dtype
    # In float32 for half-precision logits: a mean over a million pixels is below what float16 can hold.
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, of_loss: Tensor | None, of_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
    if of_gradient is not None:
        raise NotImplementedError(
            "upsampled_cross_entropy is differentiable once; for second derivatives use "
            "cacseg.functional.upsampled_cross_entropy."
        )
    (gradient,) = ctx.saved_tensors
    of_logits = None if of_loss is None else (gradient * of_loss).to(ctx.dtype)
    return (of_logits, *[None] * 7)


tiled_cross_entropy.register_autograd(_backward, setup_context=_setup_context)
