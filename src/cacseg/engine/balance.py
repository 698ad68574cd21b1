"""How often each image of a split is shown, and what each class weighs, by how often classes occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data import SegmentationData
from cacseg.data.sample import read_sample
from cacseg.runtime.prefetch import prefetch

READERS = 4  # threads that decode

Weights = npt.NDArray[np.float64]


class ClassCounts(NamedTuple):
    """Of a split of N images and n classes."""

    pixels: npt.NDArray[np.int64]  # [N, n], of each image labelled so
    labelled: npt.NDArray[np.int64]  # [N], of each image not ignored


def count_classes(data: SegmentationData, report: Callable[[str], None] = lambda text: None) -> ClassCounts:
    """Reads every label of the split once."""
    report(f"counting the classes of {len(data)} training images")
    count = len(data.class_names)

    def read(index: int) -> npt.NDArray[np.int64]:
        return np.bincount(read_sample(data, index).labels.ravel(), minlength=256)

    pixels = np.stack(list(prefetch(read, range(len(data)), READERS)))[:, :count].astype(np.int64)
    return ClassCounts(pixels, pixels.sum(1))


def repeat_factors(counts: ClassCounts, threshold: float) -> Weights:
    """How often each image is shown relative to one of frequent classes alone: [N].

    max(1, sqrt(threshold / share)) of the rarest class of the image, `share` being the share of images that have the
    class: repeat-factor sampling (Gupta et al., LVIS, 2019).
    """
    there = counts.pixels > 0
    share = there.mean(0)
    factors = np.sqrt(threshold / np.maximum(share, 1.0 / len(there)))
    return np.maximum(1.0, np.where(there, factors, 1.0).max(1))


def frequency_weights(counts: ClassCounts) -> tuple[float, ...]:
    """A weight for each class: the median frequency over its own; 1 for a class that no image has.

    Median-frequency balancing (Eigen and Fergus, 2015). The frequency of a class is its share of the labelled pixels
    of the images that have it.
    """
    there = counts.pixels > 0
    labelled = (counts.labelled[:, None] * there).sum(0)
    frequency = counts.pixels.sum(0) / np.maximum(labelled, 1)
    seen = frequency > 0.0
    if not seen.any():
        raise ValueError("class weights by frequency need labelled pixels; all labels of the split are ignored.")
    weights = np.where(seen, np.median(frequency[seen]) / np.where(seen, frequency, 1.0), 1.0)
    return tuple(round(float(weight), 4) for weight in weights)


def balance(data: SegmentationData, counts: ClassCounts, threshold: float, report: Callable[[str], None]) -> Weights:
    """The repeat factors of a split, said."""
    factors = repeat_factors(counts, threshold)
    share = (counts.pixels > 0).mean(0)
    rare = [name for name, one in zip(data.class_names, share, strict=True) if 0.0 < one < threshold]
    often = factors * len(factors) / factors.sum()
    report(
        f"images are shown {often.min():.2f} to {often.max():.2f} times an epoch (data.balance={threshold:g}); "
        f"{len(rare)} classes are in less than {threshold:.0%} of the images: {', '.join(rare[:6]) or 'none'}"
    )
    return factors
