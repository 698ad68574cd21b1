"""Cross-entropy at the labels' resolution: what Eq. (8) sums, in its plain and wasteful form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cacseg._checks import check_choice, check_class_weights, check_label_smoothing, check_labels, check_logits
from cacseg.functional._precision import no_autocast, ratio, widen
from cacseg.functional.labels import labelled

PixelAverage = Literal["labelled", "all"]
PIXEL_AVERAGES = ("labelled", "all")
INTERPOLATION_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
IGNORED = -100


def upsample(
    logits: Float[Tensor, "b n *spatial"], size: Sequence[int], align_corners: bool = False
) -> Float[Tensor, "b n *full"]:
    """Logits at another size by (bi-, tri-) linear interpolation; the logits themselves at their own."""
    if tuple(logits.shape[2:]) == tuple(size):
        return logits
    mode = INTERPOLATION_MODES[logits.ndim - 2]
    return F.interpolate(logits, size=tuple(size), mode=mode, align_corners=align_corners)


def upsampled_cross_entropy(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    weight: Float[Tensor, " n"] | None = None,
    label_smoothing: float = 0.0,
    align_corners: bool = False,
    average: PixelAverage = "labelled",
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the upsampled logits; a term of Eq. (8).

        F.cross_entropy(F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=...), labels,
                        weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)

    `average="labelled"` is that mean: ignored pixels count neither above nor below the line. `"all"`
    divides by the number of all pixels, ignored ones included, as the authors' code does for p_p.
    Unlike `F.cross_entropy`, a batch whose pixels are all ignored gives 0, not NaN.
    """
    check_arguments(logits, weight, label_smoothing, average)
    check_labels(labels, logits, logits.shape[1], ignore_index, packed=logits.ndim == 2)
    kept = labelled(labels, logits.shape[1], ignore_index)
    with no_autocast(logits):
        scores = upsample(widen(logits), labels.shape[1:], align_corners)
        targets = torch.where(kept, labels.long(), IGNORED)
        total = F.cross_entropy(
            scores,
            targets,
            weight=None if weight is None else weight.to(scores.dtype),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
        return ratio(total, pixel_denominator(targets, kept, weight, average, total.dtype))


def check_arguments(logits: Tensor, weight: Tensor | None, label_smoothing: float, average: str) -> None:
    """What must hold of everything but the labels."""
    check_logits(logits)
    check_choice("average", average, PIXEL_AVERAGES)
    check_label_smoothing(label_smoothing)
    if weight is not None:
        check_class_weights(weight, logits.shape[1])


def pixel_denominator(
    labels: Int[Tensor, "b *full"],
    kept: Bool[Tensor, "b *full"],
    weight: Float[Tensor, " n"] | None,
    average: PixelAverage,
    dtype: torch.dtype,
) -> Float[Tensor, ""]:
    """What the summed cross-entropy is divided by: labelled pixels (by class weight), or all pixels."""
    if average == "all":
        return torch.full((), labels.numel(), dtype=dtype, device=labels.device)
    if weight is None:
        return kept.sum().to(dtype)
    return (weight.to(dtype)[torch.where(kept, labels, 0)] * kept).sum()
