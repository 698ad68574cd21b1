"""Counts of labels against predictions, and the scores that follow from them.

Counts are integers and add up: over images, batches and devices, in any order. Scores are read from the sum, so mIoU is
that of the whole data set and not a mean over images. A pixel is left out when its label says so and for no other
reason. Why not torchmetrics: its confusion matrix drops ignored pixels by boolean indexing, which makes a GPU wait for
the host in every batch, and its mean scores an absent class as 0 unless told of it beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg._checks import check_label_range


class Scores(NamedTuple):
    """From 0 to 1, in float64 on the CPU; NaN where there is nothing to divide by."""

    iou: Float[Tensor, " n"]  # hits / (labelled + predicted - hits); NaN for a class in neither labels nor predictions
    accuracy: Float[Tensor, " n"]  # hits / labelled; NaN for a class that is in no label
    mean_iou: float  # over the classes whose iou is not NaN
    mean_accuracy: float  # over the classes whose accuracy is not NaN
    pixel_accuracy: float  # hits of all classes / labelled pixels


class Tally(NamedTuple):
    """What the scores need of a confusion matrix: three numbers for each class."""

    hits: Int[Tensor, "*images n"]
    labelled: Int[Tensor, "*images n"]
    predicted: Int[Tensor, "*images n"]


def confusion(
    predictions: Int[Tensor, "*any"], labels: Int[Tensor, "*any"], num_classes: int, ignore_index: int = 255
) -> Int[Tensor, "n n"]:
    """How many pixels labelled k (row) were predicted as j (column); int64, on the device of its inputs.

    Pixels with an ignored label are left out. Equals, but without a wait for the host,
    ``bincount(labels[kept] * n + predictions[kept], minlength=n * n).view(n, n)``. Integers, so that the result does
    not depend on the order of the sums. A label outside [0, n) that is not `ignore_index` is an error on the CPU and
    left out on a GPU, where looking would mean waiting; predictions must be in [0, n).
    """
    for name, one in (("predictions", predictions), ("labels", labels)):
        if one.is_floating_point() or one.is_complex() or one.dtype == torch.bool:
            raise TypeError(f"{name} must be integers (class indices); got {one.dtype}.")
    if predictions.shape != labels.shape:
        raise ValueError(
            f"predictions and labels must have one shape; got {tuple(predictions.shape)} and {tuple(labels.shape)}. "
            "Resize the scores to the labels' size before the argmax."
        )
    labels, predictions = labels.flatten().long(), predictions.flatten().long()
    if labels.device.type == "cpu":
        check_label_range(labels, num_classes, ignore_index)
        if predictions.numel() > 0 and not 0 <= int(predictions.min()) <= int(predictions.max()) < num_classes:
            raise ValueError(
                f"predictions must be in [0, {num_classes}); got values from {int(predictions.min())} to "
                f"{int(predictions.max())}."
            )
    kept = (labels >= 0) & (labels < num_classes) & (labels != ignore_index)
    cells = num_classes * num_classes
    # One cell more than the matrix has takes what is left out.
    places = torch.where(kept, labels * num_classes + predictions, cells)
    counts = torch.zeros(cells + 1, dtype=torch.long, device=places.device)
    counts.scatter_add_(0, places, torch.ones_like(places))
    return counts[:cells].view(num_classes, num_classes)


def tally(counts: Int[Tensor, "*images n n"]) -> Tally:
    """Hits, labelled and predicted pixels of each class."""
    return Tally(counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1), counts.sum(-2))


def scores(counts: Int[Tensor, "n n"] | Tally) -> Scores:
    """IoU and accuracy of each class, their means, and the share of pixels that are right."""
    if not isinstance(counts, Tally):
        if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
            raise ValueError(f"counts must be a confusion matrix [n, n]; got shape {tuple(counts.shape)}.")
        counts = tally(counts)
    hits, labelled, predicted = (one.detach().cpu().double() for one in counts)
    iou = hits / (labelled + predicted - hits)
    accuracy = hits / labelled
    return Scores(iou, accuracy, float(iou.nanmean()), float(accuracy.nanmean()), float(hits.sum() / labelled.sum()))
