"""The overlap that mIoU scores, as a loss; an idea of segmentation at large, not of the paper."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg._checks import check_labels, check_logits
from cacseg.functional._precision import no_autocast, ratio, widen
from cacseg.functional.cross_entropy import upsample
from cacseg.functional.labels import LabelSampling, class_masks, fit_labels

OverlapSize = Literal["features", "labels"]
OVERLAP_SIZES = ("features", "labels")


def overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    label_sampling: LabelSampling = "centred",
) -> Float[Tensor, ""]:
    """How far the probabilities q of each class are from covering its pixels, and these alone.

        L = mean over the classes k present of 1 - (sum_i M_ki q_ki) / (sum_i M_ki + sum_i (1 - M_ki) q_ki)
        1 - JaccardIndex, with probabilities for the answer

    The sums are over the labelled pixels of the batch, dense or packed; 0 without any. Labels of another size are
    resized as `label_sampling` says (`resize_labels`).
    """
    check_logits(logits)
    num_classes = logits.shape[1]
    check_labels(labels, logits, num_classes, ignore_index, packed=logits.ndim == 2)
    return loss_of_sums(
        *overlap_sums(logits, fit_labels(labels, logits.shape[2:], num_classes, ignore_index, label_sampling))
    )


def upsampled_overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    align_corners: bool = False,
) -> Float[Tensor, ""]:
    """`overlap_loss` at the labels' resolution, where mIoU is scored and nothing thin has vanished.

    overlap_loss(F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=...), labels)
    """
    check_logits(logits)
    check_labels(labels, logits, logits.shape[1], ignore_index)
    with no_autocast(logits):
        return overlap_loss(upsample(widen(logits), labels.shape[1:], align_corners), labels, ignore_index=ignore_index)


def overlap_sums(
    logits: Float[Tensor, "b n *spatial"], fitted: Int[Tensor, "b *spatial"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """For each class the probabilities on its pixels, on all pixels, and how many pixels it has; labels are fitted."""
    kept = (fitted >= 0)[:, None]
    pixels = [dim for dim in range(logits.ndim) if dim != 1]
    with no_autocast(logits):
        probabilities = torch.where(kept, torch.where(kept, widen(logits), 0.0).softmax(dim=1), 0.0)
        masks = class_masks(fitted, logits.shape[1], ignore_index=-1, dtype=probabilities.dtype)
        return (masks * probabilities).sum(pixels), probabilities.sum(pixels), masks.sum(pixels)


def loss_of_sums(
    shared: Float[Tensor, " n"], answered: Float[Tensor, " n"], there: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """The loss of what `overlap_sums` gives, or of sums of it."""
    with no_autocast(shared):
        missed = 1.0 - ratio(shared, there + answered - shared)
        present = there > 0
        return ratio(torch.where(present, missed, 0.0).sum(), present.sum())
