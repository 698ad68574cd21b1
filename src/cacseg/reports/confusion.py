"""A confusion matrix as a picture that can be read, for six classes or for a hundred and fifty."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

NUMBERED = 24  # up to so many classes, cells carry their numbers


def confusion_picture(counts: Tensor, class_names: Sequence[str], title: str) -> bytes:
    """A PNG. Each row holds the pixels of one labelled class as percent of them, by what they were taken for.

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
    FigureCanvasAgg(figure)
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
    axes.set_xlabel("predicted")
    axes.set_ylabel("labelled")
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
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()
