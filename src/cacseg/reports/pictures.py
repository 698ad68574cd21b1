"""Sheets of images beside their labels and predictions."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from cacseg.data.pictures import contact_sheet, legend
from cacseg.data.sample import Sample, SegmentationData
from cacseg.runtime.colours import Picture, colour

Labels = npt.NDArray[np.uint8]
WRONG, RIGHT, LEFT_OUT = (214, 39, 40), (225, 225, 225), (0, 0, 0)


def saved(figure: Figure, format: str) -> bytes:
    """Saves a figure reproducibly."""
    content = io.BytesIO()
    figure.savefig(content, format=format, metadata={"Software": None} if format == "png" else {"Date": None})
    return content.getvalue()


def errors(predicted: Labels, labels: Labels, ignore_index: int) -> Picture:
    """Red where the prediction is wrong, light where it is right, black where the label is ignored."""
    picture = np.empty((*labels.shape, 3), np.uint8)
    picture[:] = RIGHT
    picture[predicted != labels] = WRONG
    picture[labels == ignore_index] = LEFT_OUT
    return picture


def comparison_sheet(
    samples: Sequence[Sample],
    names: Sequence[str],
    predictions: Sequence[Sequence[Labels]],
    titles: Sequence[str],
    data: SegmentationData,
) -> Picture:
    """image | labels | predictions | where each is wrong, a row for each sample; below, the classes that occur.

    `predictions` holds, for each of `titles`, the masks of all samples, which are of `data`.
    """
    rows, occurring = [], set[int]()
    for place, sample in enumerate(samples):
        masks = [one[place] for one in predictions]
        wrong = [errors(mask, sample.labels, data.ignore_index) for mask in masks]
        pictures = [sample.picture, *(colour(mask, data.palette) for mask in (sample.labels, *masks)), *wrong]
        # White below a panorama, so that it does not widen the columns of all others.
        missing = max(0, round(sample.image.shape[1] / 2.0) - sample.image.shape[0])
        rows.append([np.pad(one, ((0, missing), (0, 0), (0, 0)), constant_values=255) for one in pictures])
        occurring.update(*(np.unique(mask).tolist() for mask in (sample.labels, *masks)))
    headings = ["image", "labels", *titles, *(f"errors: {title}" for title in titles)]
    if len(titles) == 1:
        headings[-1] = "errors"
    sheet = contact_sheet(rows, titles=headings, names=names)
    shown = [k for k in sorted(occurring) if k < len(data.class_names)]
    below = legend([data.class_names[k] for k in shown], [data.palette[k] for k in shown], sheet.shape[1])
    return np.concatenate([sheet, below])
