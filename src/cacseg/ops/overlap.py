"""The loss for overlap at the labels' resolution."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_labels, check_logits
from cacseg.functional.overlap import loss_of_sums
from cacseg.ops.tiled_overlap import tiled_overlap


def upsampled_overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    align_corners: bool = False,
) -> Float[Tensor, ""]:
    """`functional.upsampled_overlap_loss` of logits that are never upsampled as a whole.

    overlap_loss(F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=...), labels)

    1-D and 2-D maps go a tile at a time, differentiable once, by autograd (for torch.func take that of `functional`);
    3-D maps, logits of the labels' size and points [P, n] take the plain expression. Logits must be finite: a tile is
    upsampled by products, and one NaN reaches all of them, also from under ignored pixels.
    """
    check_logits(logits)
    if logits.ndim == 2 or logits.shape[2:] == labels.shape[1:]:
        return functional.overlap_loss(logits, labels, ignore_index=ignore_index)
    if logits.ndim not in (3, 4):
        return functional.upsampled_overlap_loss(logits, labels, ignore_index=ignore_index, align_corners=align_corners)
    check_labels(labels, logits, logits.shape[1], ignore_index)
    if logits.ndim == 3:  # a line is a map of one row
        logits, labels = logits[:, :, None], labels[:, None]
    return loss_of_sums(*tiled_overlap(logits, labels, ignore_index, align_corners).unbind())
