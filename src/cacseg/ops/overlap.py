"""The loss for overlap at the labels' resolution, one image at a time."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cacseg import functional
from cacseg._checks import check_labels, check_logits
from cacseg.functional._precision import no_autocast, widen
from cacseg.functional.overlap import loss_of_sums, overlap_sums


def upsampled_overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    align_corners: bool = False,
) -> Float[Tensor, ""]:
    """`functional.upsampled_overlap_loss`, which holds the upsampled maps of one image at a time.

    overlap_loss(F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=...), labels)

    The loss needs three sums for each class, and no more is kept of an image; the backward pass upsamples it again, so
    that it takes longer than the readable form. By autograd, not by torch.func; compiled anew for each batch size.
    """
    check_logits(logits)
    if logits.ndim == 2:  # points have one size
        return functional.overlap_loss(logits, labels, ignore_index=ignore_index)
    check_labels(labels, logits, logits.shape[1], ignore_index)
    images = zip(logits.split(1), labels.split(1), strict=True)
    sums = [
        checkpoint(_sums_of_image, *image, ignore_index, align_corners, use_reentrant=False, preserve_rng_state=False)
        for image in images
    ]
    shared, answered, there = (torch.stack(one).sum(dim=0) for one in zip(*sums, strict=True))
    return loss_of_sums(shared, answered, there)


def _sums_of_image(
    logits: Tensor, labels: Tensor, ignore_index: int, align_corners: bool
) -> tuple[Tensor, Tensor, Tensor]:
    size, num_classes = labels.shape[1:], logits.shape[1]
    with no_autocast(logits):
        upsampled = functional.upsample(widen(logits), size, align_corners)
        return overlap_sums(upsampled, functional.fit_labels(labels, size, num_classes, ignore_index))
