"""Counts of labels against predictions, and the scores that follow from them.

Counts are integers and add up: over images, batches and devices, in any order. Scores are read from the sum, so mIoU is
that of the whole data set and not a mean over images. A pixel is left out when its label says so and for no other
reason. Why not torchmetrics: its confusion matrix drops ignored pixels by boolean indexing, which makes a GPU wait for
the host in every batch, its mean scores an absent class as 0 unless told of it beforehand, and it has no boundary IoU.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cacseg._checks import check_label_range

PIXELS = 2**24  # that are counted at a time, at 32 bytes each


class Scores(NamedTuple):
    """From 0 to 1, in float64 on the CPU; NaN where there is nothing to divide by."""

    iou: Float[Tensor, " n"]  # hits / (labelled + predicted - hits); NaN for a class in neither labels nor predictions
    dice: Float[Tensor, " n"]  # 2 hits / (labelled + predicted); NaN where iou is
    boundary_iou: Float[Tensor, " n"]  # iou near contours, see `boundary_tally`; NaN where iou is or if not counted
    accuracy: Float[Tensor, " n"]  # hits / labelled; NaN for a class that is in no label
    mean_iou: float  # this and the next three: over the classes whose score is not NaN
    mean_dice: float
    mean_boundary_iou: float
    mean_accuracy: float
    pixel_accuracy: float  # hits of all classes / labelled pixels


class Tally(NamedTuple):
    """Three numbers for each class, all that the scores need of a confusion matrix."""

    hits: Int[Tensor, "*images n"]
    labelled: Int[Tensor, "*images n"]
    predicted: Int[Tensor, "*images n"]


def most_likely(scores: Float[Tensor, "..."], dim: int) -> Int[Tensor, "..."]:
    """The class with the largest score; on a CPU not by argmax, which takes five times as long as max there."""
    return scores.argmax(dim) if scores.is_cuda else scores.max(dim).indices


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
    labels, predictions = labels.flatten(), predictions.flatten()
    cells = num_classes * num_classes
    # One cell more than the matrix has takes what is left out.
    counts = torch.zeros(cells + 1, dtype=torch.long, device=labels.device)
    for one, predicted in zip(labels.split(PIXELS), predictions.split(PIXELS), strict=True):
        one, predicted = one.long(), predicted.long()
        if one.device.type == "cpu":
            check_label_range(one, num_classes, ignore_index)
            if predicted.numel() > 0 and not 0 <= int(predicted.min()) <= int(predicted.max()) < num_classes:
                raise ValueError(
                    f"predictions must be in [0, {num_classes}); got values from {int(predicted.min())} to "
                    f"{int(predicted.max())}."
                )
        kept = (one >= 0) & (one < num_classes) & (one != ignore_index)
        places = torch.where(kept, one * num_classes + predicted, cells)
        counts.scatter_add_(0, places, torch.ones_like(places))
    return counts[:cells].view(num_classes, num_classes)


def tally(counts: Int[Tensor, "*images n n"]) -> Tally:
    """Hits, labelled and predicted pixels of each class."""
    return Tally(counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1), counts.sum(-2))


def scores(counts: Int[Tensor, "n n"] | Tally, boundary: Tally | None = None) -> Scores:
    """IoU, Dice and accuracy of each class, their means, and the share of pixels that are right.

    `boundary` is the sum of `boundary_tally` over the same images.
    """
    if not isinstance(counts, Tally):
        if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
            raise ValueError(f"counts must be a confusion matrix [n, n]; got shape {tuple(counts.shape)}.")
        counts = tally(counts)
    hits, labelled, predicted = (one.detach().cpu().double() for one in counts)
    near_hits, near_labelled, near_predicted = (one.detach().cpu().double() for one in boundary or (0 * hits,) * 3)
    iou = hits / (labelled + predicted - hits)
    dice = 2 * hits / (labelled + predicted)
    boundary_iou = near_hits / (near_labelled + near_predicted - near_hits)
    accuracy = hits / labelled
    return Scores(
        iou,
        dice,
        boundary_iou,
        accuracy,
        mean_iou=float(iou.nanmean()),
        mean_dice=float(dice.nanmean()),
        mean_boundary_iou=float(boundary_iou.nanmean()),
        mean_accuracy=float(accuracy.nanmean()),
        pixel_accuracy=float(hits.sum() / labelled.sum()),
    )


def or_none(score: float) -> float | None:
    """For JSON, which has no NaN."""
    return None if math.isnan(score) else score


def boundary_tally(
    predictions: Int[Tensor, "*images H W"],
    labels: Int[Tensor, "*images H W"],
    num_classes: int,
    ignore_index: int = 255,
) -> Tally:
    """Counts for boundary IoU (Cheng et al., CVPR 2021), summed over the images.

    Of each class only the pixels within d of the contour of its own region count, labelled and predicted regions each
    with their own contour; d is 2 % of the image's diagonal. As in the authors' code the distance is that of a square,
    and where a region meets the edge of the image is its contour. Ignored pixels count as outside of the image, for
    predictions as for labels: they are in no region, and regions have a contour towards them.
    """
    ignored = labels == ignore_index
    distance = max(1, round(0.02 * math.hypot(*labels.shape[-2:])))
    labels, predictions = (one.int().masked_fill(ignored, -1) for one in (labels, predictions))
    # The inner pixels of all classes become one more class; the counts of the others are those near contours.
    labels, predictions = (one.masked_fill(inner(one, distance), num_classes) for one in (labels, predictions))
    counts = confusion(predictions.masked_fill(ignored, 0), labels.masked_fill(ignored, -1), num_classes + 1, -1)
    return Tally(*(one[:num_classes] for one in tally(counts)))


def inner(classes: Int[Tensor, "*images H W"], distance: int) -> Bool[Tensor, "*images H W"]:
    """Pixels whose whole neighbourhood of `distance` rows and columns each way is in the image and of one class.

    Equals, for all classes at once, the erosion of each class's mask by a square of 2 * distance + 1 pixels: such a
    square is of one class where no two neighbours in it differ. Running sums make the cost independent of the distance.
    """
    found = torch.zeros(classes.shape, dtype=torch.bool, device=classes.device)
    if min(classes.shape[-2:]) <= 2 * distance:
        return found
    middle = slice(distance, -distance)
    in_row = _window_sums(classes[..., 1:] != classes[..., :-1], 2 * distance, -1) > 0
    columns = classes[..., middle]
    in_column = _window_sums(columns[..., 1:, :] != columns[..., :-1, :], 2 * distance, -2)
    found[..., middle, middle] = _window_sums(in_row, 2 * distance + 1, -2) + in_column == 0
    return found


def _window_sums(flags: Bool[Tensor, "..."], length: int, dim: int) -> Int[Tensor, "..."]:
    """How many flags are set in each window of `length` along a dimension."""
    sums, windows = flags.cumsum(dim, dtype=torch.int32), flags.shape[dim] - length + 1
    first = flags.narrow(dim, 0, windows).int()
    return sums.narrow(dim, length - 1, windows) - sums.narrow(dim, 0, windows) + first
