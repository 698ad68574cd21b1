"""A whole split of a data set in device memory, as bytes: for many short runs on data that fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacseg.data import Sample, SegmentationData
from cacseg.data.sample import check_sample
from cacseg.engine.prefetch import prefetch

READERS = 4  # threads that decode


@dataclass(frozen=True)
class Resident:
    """Images of any sizes in one tensor, each in the upper left corner of its slot."""

    images: Tensor  # uint8 [N, 3, H, W], 0 beyond an image's size
    labels: Tensor  # uint8 [N, H, W], ignored beyond an image's size
    sizes: npt.NDArray[np.int64]  # [N, 2], heights and widths; on the host, where crops are drawn
    ignore_index: int

    def __len__(self) -> int:
        return len(self.sizes)

    def batches_by_size(self, max_batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images and labels, uint8 [b, 3, h, w] and [b, h, w], up to `max_batch` of equal size at a time."""
        for height, width in sorted({(int(height), int(width)) for height, width in self.sizes}):
            (places,) = np.nonzero((self.sizes == (height, width)).all(1))
            for first in range(0, len(places), max_batch):
                chosen = torch.from_numpy(places[first : first + max_batch]).to(self.images.device)
                yield self.images[chosen, :, :height, :width], self.labels[chosen, :height, :width]


def load_resident(
    data: SegmentationData, indices: Sequence[int], device: torch.device, readers: int = READERS
) -> Resident:
    """The images `indices` of a split, each decoded once and checked as a training run checks them."""
    if not indices:
        raise ValueError(f"there must be images to load; none of {data.split!r} of {data.name} was chosen.")

    def read(index: int) -> Sample:
        sample = data.read(index)
        check_sample(data, index, sample)
        return sample

    samples = list(prefetch(read, indices, readers))
    sizes = np.array([sample.labels.shape for sample in samples], dtype=np.int64)
    height, width = sizes.max(0)
    images = np.zeros((len(samples), 3, height, width), np.uint8)
    labels = np.full((len(samples), height, width), data.ignore_index, np.uint8)
    for place, sample in enumerate(samples):
        rows, columns = sample.labels.shape
        images[place, :, :rows, :columns] = sample.image.transpose(2, 0, 1)
        labels[place, :rows, :columns] = sample.labels
    return Resident(torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device), sizes, data.ignore_index)
