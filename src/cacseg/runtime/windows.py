"""Sliding windows: where they lie, and their mean, without torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.runtime.result import Floats

Pair = tuple[int, int]  # height and width


class Windows(NamedTuple):
    """Where the windows of one side begin, and how many windows cover each of its pixels."""

    length: int
    starts: list[int]
    coverage: list[int]


def place_windows(side: int, window: int, stride: int) -> Windows:
    """Windows of one length along a side, every `stride` pixels, the last one shifted back to end with the side."""
    length = min(window, side)
    starts = [min(start, side - length) for start in range(0, side - length + stride, stride)]
    coverage = [sum(start <= place < start + length for start in starts) for place in range(side)]
    return Windows(length, starts, coverage)


def slide(run: Callable[[npt.NDArray[Any]], Floats], images: npt.NDArray[Any], window: Pair, stride: Pair) -> Floats:
    """The mean of what `run` gives for each window [b, c, h, w] at its size, as [b, n, H, W]: `engine.inference`'s."""
    height, width = images.shape[2:]
    rows, columns = place_windows(height, window[0], stride[0]), place_windows(width, window[1], stride[1])
    total: Floats | None = None
    for y, x in product(rows.starts, columns.starts):
        place = (..., slice(y, y + rows.length), slice(x, x + columns.length))
        found = run(images[place])
        if total is None:
            total = np.zeros((*found.shape[:2], height, width), np.float32)
        total[place] += found
    assert total is not None
    return np.asarray(total / np.multiply.outer(rows.coverage, columns.coverage), np.float32)
