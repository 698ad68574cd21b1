"""The choice of implementation for cross-entropy at the labels' resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_label_range, check_labels, check_logits
from cacseg.functional.cross_entropy import PixelAverage, check_arguments
from cacseg.ops._choice import Implementation, use_triton
from cacseg.ops.fused_cross_entropy import fused_cross_entropy
from cacseg.ops.tiled_cross_entropy import tiled_cross_entropy


def upsampled_cross_entropy(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    weight: Float[Tensor, " n"] | None = None,
    label_smoothing: float = 0.0,
    align_corners: bool = False,
    average: PixelAverage = "labelled",
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """Mean cross-entropy of bilinearly upsampled logits that are never materialised.

        F.cross_entropy(F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=...), labels,
                        weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)

    The same value and gradient as `functional.upsampled_cross_entropy`, in float32 for half-precision logits.
    1-D and 2-D maps take a Triton kernel on a CUDA device and go a tile at a time elsewhere, differentiable once, by
    autograd (not by torch.func); 3-D maps take the plain expression, and so do logits of the labels' size outside
    of CUDA.
    """
    check_arguments(logits, weight, label_smoothing, average)
    flat = logits.ndim in (3, 4)
    fused = use_triton(impl, logits, dense=flat)
    if not flat or (logits.shape[2:] == labels.shape[1:] and not fused):
        return functional.upsampled_cross_entropy(
            logits,
            labels,
            ignore_index=ignore_index,
            weight=weight,
            label_smoothing=label_smoothing,
            align_corners=align_corners,
            average=average,
        )
    check_labels(labels, logits, logits.shape[1], ignore_index, read_values=False)  # the operator reads them
    if logits.ndim == 3:  # a line is a map of one row
        logits, labels = logits[:, :, None], labels[:, None]
    if fused:
        if labels.device.type == "cpu" and not torch.compiler.is_compiling():
            check_label_range(labels, logits.shape[1], ignore_index)
        over_all = average == "all"
        return fused_cross_entropy(
            logits, None, None, labels, weight, ignore_index, label_smoothing, [align_corners], [over_all]
        )[0].squeeze(0)
    with_gradient = logits.requires_grad and torch.is_grad_enabled()
    loss, _ = tiled_cross_entropy(
        logits,
        labels,
        weight,
        ignore_index,
        label_smoothing,
        align_corners,
        average == "all",
        with_gradient,
    )
    return loss


def upsampled_cross_entropies(
    logits: Sequence[Float[Tensor, "b n *spatial"]],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    weight: Float[Tensor, " n"] | None = None,
    label_smoothing: float = 0.0,
    align_corners: Sequence[bool],
    averages: Sequence[PixelAverage],
    impl: Implementation = "auto",
) -> list[Float[Tensor, ""]]:
    """`upsampled_cross_entropy` of up to three logits of one shape, from one launch where kernels run."""
    flat = logits[0].ndim in (3, 4)
    if not 1 < len(logits) <= 3 or not use_triton(impl, logits[0], dense=flat or impl == "auto") or not flat:
        return [
            upsampled_cross_entropy(
                one,
                labels,
                ignore_index=ignore_index,
                weight=weight,
                label_smoothing=label_smoothing,
                align_corners=corners,
                average=average,
                impl=impl,
            )
            for one, corners, average in zip(logits, align_corners, averages, strict=True)
        ]
    for one, average in zip(logits, averages, strict=True):
        check_arguments(one, weight, label_smoothing, average)
    check_logits(*logits)
    check_labels(labels, logits[0], logits[0].shape[1], ignore_index)
    if logits[0].ndim == 3:
        logits, labels = [one[:, :, None] for one in logits], labels[:, None]
    losses = fused_cross_entropy(
        *logits,
        *[None] * (3 - len(logits)),
        labels,
        weight,
        ignore_index,
        label_smoothing,
        list(align_corners),
        [average == "all" for average in averages],
    )[0]
    return list(losses.unbind())
