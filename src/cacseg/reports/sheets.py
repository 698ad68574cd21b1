"""Sheets of pictures: images beside their labels and what was predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cacseg.data.pictures import Picture, colour, contact_sheet, legend
from cacseg.data.sample import Colour, Sample

Labels = npt.NDArray[np.uint8]
WRONG, RIGHT, LEFT_OUT = (214, 39, 40), (225, 225, 225), (0, 0, 0)


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
    *,
    class_names: Sequence[str],
    palette: Sequence[Colour],
    ignore_index: int = 255,
    height: int = 160,
) -> Picture:
    """image | labels | predictions | where each is wrong, a row for each sample; below, the classes that occur.

    `predictions` holds, for each of `titles`, the masks of all samples.
    """
    rows, occurring = [], set()
    for place, sample in enumerate(samples):
        masks = [one[place] for one in predictions]
        wrong = [errors(mask, sample.labels, ignore_index) for mask in masks]
        pictures = [sample.image, *(colour(mask, palette) for mask in (sample.labels, *masks)), *wrong]
        rows.append([_boxed(picture) for picture in pictures])
        for mask in (sample.labels, *masks):
            occurring.update(np.unique(mask).tolist())
    headings = ["image", "labels", *titles, *(f"errors: {title}" for title in titles)]
    if len(titles) == 1:
        headings[-1] = "errors"
    sheet = contact_sheet(rows, titles=headings, names=names, height=height)
    shown = [k for k in sorted(occurring) if k < len(class_names)]
    below = legend([class_names[k] for k in shown], [palette[k] for k in shown], sheet.shape[1])
    return np.concatenate([sheet, below])


def _boxed(picture: Picture, widest: float = 2.0) -> Picture:
    """White below a panorama, so that it does not widen the columns of all others."""
    height, width = picture.shape[:2]
    missing = max(0, round(width / widest) - height)
    return np.pad(picture, ((0, missing), (0, 0), (0, 0)), constant_values=255)
