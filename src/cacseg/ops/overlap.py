"""The loss for overlap, at the logits' resolution and at that of the labels."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_labels, check_logits
from cacseg.functional.labels import LabelSampling
from cacseg.functional.overlap import loss_of_sums
from cacseg.ops._choice import Implementation, use_triton
from cacseg.ops.dense_overlap import overlap_sums
from cacseg.ops.fused_overlap import fused_overlap
from cacseg.ops.labels import fit_labels
from cacseg.ops.tiled_overlap import tiled_overlap


def overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    label_sampling: LabelSampling = "centred",
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """`functional.overlap_loss`, with no float32 map of the probabilities kept for the backward pass.

        L = mean over the classes k present of 1 - (sum_i M_ki q_ki) / (sum_i M_ki + sum_i (1 - M_ki) q_ki)

    For maps of any number of dimensions, and for points [P, n]; where Triton's kernels cannot run, a tile at a time.
    Differentiable once, by autograd (for torch.func take that of `functional`).
    """
    check_logits(logits)
    num_classes = logits.shape[1]
    check_labels(labels, logits, num_classes, ignore_index, packed=logits.ndim == 2)
    fitted = fit_labels(labels, logits.shape[2:], num_classes, ignore_index, label_sampling)
    return fitted_overlap_loss(logits, fitted, impl=impl)


def fitted_overlap_loss(
    logits: Float[Tensor, "b n *spatial"], fitted: Int[Tensor, "b *spatial"], *, impl: Implementation = "auto"
) -> Float[Tensor, ""]:
    """`overlap_loss` for labels of the logits' size that are -1 where they take no part."""
    if use_triton(impl, logits):
        return fused_overlap(logits, fitted)[0]
    return loss_of_sums(*overlap_sums(logits, fitted).unbind())


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
    3-D maps take the plain expression, logits of the labels' size and points [P, n] `overlap_loss`. Logits of another
    size must be finite: a tile is upsampled by products, and one NaN reaches all of them, also from under ignored
    pixels.
    """
    check_logits(logits)
    if logits.ndim == 2 or logits.shape[2:] == labels.shape[1:]:
        return overlap_loss(logits, labels, ignore_index=ignore_index)
    if logits.ndim not in (3, 4):
        return functional.upsampled_overlap_loss(logits, labels, ignore_index=ignore_index, align_corners=align_corners)
    check_labels(labels, logits, logits.shape[1], ignore_index)
    if logits.ndim == 3:  # a line is a map of one row
        logits, labels = logits[:, :, None], labels[:, None]
    return loss_of_sums(*tiled_overlap(logits, labels, ignore_index, align_corners).unbind())
