"""Mean and deviation of each band of a split, over the pixels that have data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data.sample import Pixels, SegmentationData, read_sample
from cacseg.runtime.prefetch import prefetch

READERS = 4  # threads that decode

Floats = npt.NDArray[np.float64]


class BandSums(NamedTuple):
    """Of one image or of many, each array [c]."""

    pixels: Floats  # that have data
    empty: Floats  # that have none
    mean: Floats
    squares: Floats  # sum of squared distances from the mean
    least: Floats
    most: Floats

    @property
    def std(self) -> Floats:
        return np.sqrt(self.squares / np.maximum(self.pixels, 1.0))


def sums_of(image: Pixels) -> BandSums:
    values = image.reshape(-1, image.shape[2]).astype(np.float64)
    known = np.isfinite(values)
    pixels = known.sum(0).astype(np.float64)
    mean = np.where(known, values, 0.0).sum(0) / np.maximum(pixels, 1.0)
    squares = (np.where(known, values - mean, 0.0) ** 2).sum(0)
    least, most = np.where(known, values, np.inf).min(0), np.where(known, values, -np.inf).max(0)
    return BandSums(pixels, len(values) - pixels, mean, squares, least, most)


def joined(parts: Iterable[BandSums]) -> BandSums:
    """Of all images together: sums of squares move to the common mean, so large values lose nothing."""
    rows = [np.stack(one) for one in zip(*parts, strict=True)]
    pixels, empty, means, squares, least, most = rows
    total = pixels.sum(0)
    mean = (pixels * means).sum(0) / np.maximum(total, 1.0)
    spread = (squares + pixels * (means - mean) ** 2).sum(0)
    return BandSums(total, empty.sum(0), mean, spread, least.min(0), most.max(0))


def count_bands(data: SegmentationData, report: Callable[[str], None]) -> tuple[list[float], list[float]]:
    """Mean and deviation of each band over a split, rounded to six digits; 1 for a band that is constant."""
    report(f"counting the mean and deviation of each band in {len(data)} training images")
    found = joined(prefetch(lambda place: sums_of(read_sample(data, place).image), range(len(data)), READERS))
    if not found.pixels.all():
        empty = [str(band) for band in np.flatnonzero(found.pixels == 0) + 1]
        raise ValueError(f"each band needs pixels with data; band {', '.join(empty)} of {data.split!r} has none.")
    mean, std = ([float(f"{value:.6g}") for value in row] for row in (found.mean, found.std))
    return mean, [value if value > 0.0 else 1.0 for value in std]
