"""The soft Jaccard loss, a differentiable mIoU; not part of the paper."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg._checks import check_labels, check_logits
from cacseg.functional._precision import no_autocast, ratio, widen
from cacseg.functional.labels import LabelSampling, class_masks, fit_labels


def overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    label_sampling: LabelSampling = "centred",
) -> Float[Tensor, ""]:
    """Soft Jaccard loss: 1 - soft intersection over union of the probabilities q and the labels M.

        L = mean over the classes k present of 1 - (sum_i M_ki q_ki) / (sum_i M_ki + sum_i (1 - M_ki) q_ki)
        1 - JaccardIndex, with probabilities as predictions

    The sums are over the labelled pixels of the batch, dense or packed; 0 without any. Labels of another size are
    resized as `label_sampling` says (`resize_labels`).
    """
    check_logits(logits)
    num_classes = logits.shape[1]
    check_labels(labels, logits, num_classes, ignore_index, packed=logits.ndim == 2)
    fitted = fit_labels(labels, logits.shape[2:], num_classes, ignore_index, label_sampling)
    kept = (fitted >= 0)[:, None]
    pixels = [dim for dim in range(logits.ndim) if dim != 1]
    with no_autocast(logits):
        probabilities = torch.where(kept, torch.where(kept, widen(logits), 0.0).softmax(dim=1), 0.0)
        masks = class_masks(fitted, num_classes, ignore_index=-1, dtype=probabilities.dtype)
        shared, answered, there = (masks * probabilities).sum(pixels), probabilities.sum(pixels), masks.sum(pixels)
        missed = 1.0 - ratio(shared, there + answered - shared)
        present = there > 0
        return ratio(torch.where(present, missed, 0.0).sum(), present.sum())
