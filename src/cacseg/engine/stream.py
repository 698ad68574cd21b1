"""The training data as one endless stream whose element at position i is a pure function of (seed, i).

Step s of a run takes positions s * batch to (s + 1) * batch - 1. Neither the number of workers nor that of processes
changes what stands at a position, and a resumed run starts reading at its step: data order needs no saved state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from cacseg.data import Sample, SegmentationData
from cacseg.data.sample import Pixels, has_annotators, read_sample
from cacseg.data.transforms import ANNOTATOR, NUMBERS, Crop, Numbers

# Two independent generators of one seed.
_ORDER, _TRANSFORM = 0, 1
Transform = Callable[[Sample, Numbers], Crop]


class Batch(NamedTuple):
    """Crops as they travel: bytes, normalised on the device."""

    images: Tensor  # uint8 [b, 3, h, w], or float32 [b, c, h, w] of bands; 0 outside of the valid size
    labels: Tensor  # uint8 [b, h, w]
    sizes: Tensor  # int64 [b, 2], height and width of what is image and not padding


class Picture(NamedTuple):
    """Whole images of one size to validate on, and their labels at their own size."""

    images: Tensor  # uint8 [b, 3, H, W], or float32 [b, c, H, W] of bands
    labels: Tensor  # uint8 [b, H0, W0]


class Order:
    """Which of `length` samples stands at a position: each epoch is a permutation of its own.

    With `weights` an epoch shows each sample in proportion to its weight: the whole number below or above its share of
    `length`, by systematic sampling.
    """

    def __init__(self, seed: int, length: int, weights: npt.NDArray[np.float64] | None = None) -> None:
        self.seed, self.length = seed, length
        self.ends = None if weights is None else np.cumsum(weights)
        self.drawn: dict[int, npt.NDArray[np.int64]] = {}  # the epochs asked for last

    def __call__(self, position: int) -> int:
        epoch, place = divmod(position, self.length)
        if epoch not in self.drawn:
            self.drawn = {key: order for key, order in self.drawn.items() if key == epoch - 1}
            self.drawn[epoch] = self._draw(np.random.default_rng([self.seed, _ORDER, epoch]))
        return int(self.drawn[epoch][place])

    def _draw(self, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        if self.ends is None:
            return generator.permutation(self.length)
        points = (np.arange(self.length) + generator.random()) / self.length * self.ends[-1]
        shown = np.minimum(np.searchsorted(self.ends, points, side="right"), self.length - 1)
        return generator.permutation(shown)


@lru_cache(maxsize=2)
def _transform_key(seed: int) -> npt.NDArray[np.uint64]:
    return np.random.SeedSequence([seed, _TRANSFORM]).generate_state(4).view(np.uint64)


def numbers_at(seed: int, position: int, count: int = 1) -> Numbers:
    """The uniform numbers of `count` positions from this one on, [count, NUMBERS]: a counter-based generator."""
    generator = np.random.Philox(key=_transform_key(seed), counter=position * NUMBERS // 4)  # four with each count
    return np.random.Generator(generator).random((count, NUMBERS))


class TrainStream(Dataset[Crop]):
    """`stream[position]` reads, transforms and checks one sample."""

    def __init__(
        self,
        data: SegmentationData,
        transform: Transform,
        seed: int,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.data = data
        self.transform = transform
        self.seed = seed
        self.order = Order(seed, len(data), weights)
        self.draws_annotator = has_annotators(data)

    def __getitem__(self, position: int) -> Crop:
        numbers = numbers_at(self.seed, position)[0]
        sample = read_sample(self.data, self.order(position), numbers[ANNOTATOR] if self.draws_annotator else None)
        return self.transform(sample, numbers)


class ValidationPictures(Dataset[Picture]):
    """The images `indices` of a split, whole."""

    def __init__(self, data: SegmentationData, transform: Callable[[Pixels], Tensor], indices: Sequence[int]) -> None:
        self.data = data
        self.transform = transform
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> Picture:
        sample = read_sample(self.data, self.indices[place])
        return Picture(self.transform(sample.image)[None], torch.from_numpy(sample.labels)[None])


class MicroBatches(Sampler[list[int]]):
    """An endless sampler: the positions that one process reads at a time.

    A step's `batch` positions are split into `accumulate` parts, one after the other, and each part among the
    processes.
    """

    def __init__(self, batch: int, accumulate: int = 1, rank: int = 0, world_size: int = 1, start_step: int = 0):
        share = share_of_batch(batch, accumulate, world_size)
        self.share, self.part = share, share * world_size
        self.first = start_step * batch + rank * share

    def __iter__(self) -> Iterator[list[int]]:
        first = self.first
        while True:
            yield list(range(first, first + self.share))
            first += self.part


def share_of_batch(batch: int, accumulate: int, world_size: int) -> int:
    """Images that one device handles at a time."""
    parts = accumulate * world_size
    if batch % parts:
        fits = sorted({max(parts, batch - batch % parts), batch - batch % parts + parts})
        raise ValueError(
            f"the batch must be divisible by devices times accumulation; got {batch} images for {world_size} devices "
            f"times {accumulate}. Near it are {' and '.join(map(str, fits))}."
        )
    return batch // parts


def collate(crops: Sequence[Crop]) -> Batch:
    """One batch of bytes."""
    return Batch(
        torch.stack([crop.image for crop in crops]),
        torch.stack([crop.labels for crop in crops]),
        torch.tensor([crop.size for crop in crops], dtype=torch.int64),
    )
