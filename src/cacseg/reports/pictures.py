"""Pictures of an evaluation: confusion matrices, and sheets of images beside their labels and predictions."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from cacseg.data.pictures import Picture, colour, contact_sheet, legend
from cacseg.data.sample import Sample, SegmentationData

NUMBERED = 24  # up to so many classes, cells of a confusion matrix carry their numbers
Labels = npt.NDArray[np.uint8]
WRONG, RIGHT, LEFT_OUT = (214, 39, 40), (225, 225, 225), (0, 0, 0)


def confusion_picture(counts: Tensor, class_names: Sequence[str], title: str) -> bytes:
    """A PNG: each row holds the pixels of one labelled class as percent of them, by what they were taken for.

    Colours grow with the square root, so that confusions of a few percent can be seen. A class without a labelled
    pixel has a grey row.
    """
    n = len(class_names)
    totals = counts.sum(1, keepdim=True)
    shares = (counts.double() / totals).numpy()  # NaN where nothing is labelled
    cell = 0.55 if n <= NUMBERED else 0.145  # inches
    letters = 9.0 if n <= NUMBERED else 6.0
    margin = 0.4 + letters / 72 * 0.62 * max(len(name) for name in class_names)
    side = max(n * cell, 3.0)
    figure = Figure(figsize=(side + margin + 1.2, side + margin + 0.8), dpi=130)
    width, height = figure.get_size_inches()
    axes = figure.add_axes((margin / width, margin / height, side / width, side / height))
    axes.set_facecolor("0.85")
    picture = axes.imshow(
        np.ma.masked_invalid(100 * shares), cmap="magma_r", norm=PowerNorm(0.5, 0, 100), interpolation="nearest"
    )
    places = np.arange(n)
    axes.set_xticks(places, class_names, rotation=90, fontsize=letters, parse_math=False)  # a "$" is a "$"
    axes.set_yticks(places, class_names, fontsize=letters, parse_math=False)
    axes.tick_params(length=0 if n <= NUMBERED else 2, pad=3)
    axes.set(xlabel="predicted", ylabel="labelled")
    axes.set_title(title, fontsize=11 if n <= NUMBERED else 16, pad=10, parse_math=False)
    axes.set_xticks(places[1:] - 0.5, minor=True)
    axes.set_yticks(places[1:] - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.0 if n <= NUMBERED else 0.25)
    axes.tick_params(which="minor", length=0)
    if n <= NUMBERED:
        for row, column in np.ndindex(n, n):
            value = 100 * shares[row, column]
            if value >= 0.5:
                colour = "white" if value > 20 else "black"
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    bar = figure.add_axes(((margin + side + 0.2) / width, margin / height, 0.18 / width, side / height))
    figure.colorbar(picture, cax=bar, ticks=[0, 1, 5, 10, 25, 50, 75, 100])
    bar.set_ylabel("% of the labelled pixels", fontsize=9)
    bar.tick_params(labelsize=8)
    return saved(figure, "png")


def saved(figure: Figure, format: str) -> bytes:
    """A file of the figure that is the same each time."""
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
        pictures = [sample.image, *(colour(mask, data.palette) for mask in (sample.labels, *masks)), *wrong]
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
