"""Cross-entropy of bilinearly upsampled logits, a tile of the upsampled map at a time.

A tile is upsampled, turned into its loss and its gradient, and brought back to the logits' resolution
while it is still in the cache; the upsampled map never exists as a whole. The gradient is formed in the
forward pass (the loss is a scalar: the backward pass only scales it), so nothing is computed twice.
Interpolation is linear in the logits and separable, so each direction is one small matrix product, and its
backward pass is the product with the transpose: deterministic, any ratio of sizes.
"""

# No `from __future__ import annotations` here: torch 2.4 reads the operator's annotations as objects.

from typing import Any, Optional

import torch
from torch import Tensor

from cacseg._checks import check_label_range
from cacseg.functional._precision import exact_products, no_autocast, ratio, widen
from cacseg.functional.cross_entropy import pixel_denominator
from cacseg.functional.labels import labelled
from cacseg.ops.interpolation import add_to_rows, tile_spans, upsample_rows


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
        row_spans, column_spans = tile_spans(logits.shape, labels.shape[1:], align_corners, dtype, logits.device)
        class_weights = None if weight is None else weight.to(dtype)
        targets, share = (one.movedim(1, 0)[:, :, None] for one in (targets, share))  # [H, b, 1, W], as tiles have it

        loss = torch.zeros((), dtype=dtype, device=logits.device)
        gradient = torch.zeros((b, n, h, w) if with_gradient else (0,), dtype=dtype, device=logits.device)
        for down in row_spans:
            band = upsample_rows(down, logits)  # [rows, b, n, w]
            band_gradient = torch.zeros_like(band) if with_gradient else band
            for across in column_spans:
                scores = band[..., across.source] @ across.matrix.T  # [rows, b, n, columns]
                here = (down.output, ..., across.output)
                loss += _pixels_in_place(
                    scores, targets[here], share[here], class_weights, label_smoothing, with_gradient
                )
                if with_gradient:
                    band_gradient[..., across.source] += scores @ across.matrix
            if with_gradient:
                add_to_rows(gradient, down, band_gradient)
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
def _(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    align_corners: bool,
    count_ignored: bool,
    with_gradient: bool,
) -> tuple[Tensor, Tensor]:
    dtype = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    gradient = torch.empty(logits.shape if with_gradient else (0,), dtype=dtype, device=logits.device)
    return torch.empty((), dtype=dtype, device=logits.device), gradient


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
