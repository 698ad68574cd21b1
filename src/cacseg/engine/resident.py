"""Images that stay on the device, and crops that are cut there.

A crop on the device is that of `TrainTransform` on the host at the same seed and position: the same image, size,
corner and flip, and the same labels pixel for pixel. Its values differ by at most one byte, by the rounding of the
interpolation. Only colours differ: brightness, contrast, saturation and hue are one affine map of red, green and blue;
saturation scales, and hue turns, the chroma axes of YIQ instead of HSV's; values are cut to bytes once, at the end.
Amounts and probabilities are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from cacseg.data import SegmentationData, TrainTransform
from cacseg.data.sample import read_sample
from cacseg.data.transforms import AMOUNTS, COINS, CORNERS, FLIP, HUE, LOOKED_AT, RATIO, TRIES
from cacseg.engine.stream import Batch, MicroBatches, Order, Picture, numbers_at
from cacseg.functional._precision import no_autocast
from cacseg.runtime.prefetch import batch_by_key, prefetch

READERS = 4  # threads that decode
PICTURES = 8  # of one size that are validated together
SAMPLED = 8  # images by which the size of a split is estimated
SHARE_OF_MEMORY = 0.1  # of a device, which the images may take if the choice is "auto"
TO_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


@dataclass(frozen=True)
class ResidentSplit:
    """Images of any sizes, one after the other, pixel by pixel."""

    pixels: Tensor  # uint8 [P, 3]; float32 [P, c] of bands
    labels: Tensor  # uint8 [P]
    first: Tensor  # int64 [N], the first pixel of each image
    sizes: Tensor  # int64 [N, 2], heights and widths

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes + self.labels.nbytes


class Draws(NamedTuple):
    """Which image each crop of a batch is cut from, and the uniform numbers that decide how."""

    images: Tensor  # int64 [b]
    numbers: Tensor  # float64 [b, NUMBERS]


class DrawStream(IterableDataset[Draws]):
    """The draws of one process's parts of a batch, endless, from a step on; the same as those of `TrainStream`."""

    def __init__(self, order: Order, batches: MicroBatches) -> None:
        self.order, self.batches = order, batches

    def __iter__(self) -> Iterator[Draws]:
        for positions in self.batches:
            index = [self.order(position) for position in positions]
            numbers = numbers_at(self.order.seed, positions[0], len(positions))
            yield Draws(torch.tensor(index), torch.from_numpy(numbers))


def estimate_bytes(data: SegmentationData) -> int:
    """What a split would take on the device, judged by a few of its images."""
    places = np.unique(np.linspace(0, len(data) - 1, min(SAMPLED, len(data))).astype(int))
    found = [read_sample(data, int(place)) for place in places]
    return round(len(data) * sum(one.image.nbytes + one.labels.nbytes for one in found) / len(found))


def load_split(data: SegmentationData, device: torch.device) -> ResidentSplit:
    """A whole split on the device, each image decoded once and checked."""
    samples = list(prefetch(partial(read_sample, data), range(len(data)), READERS))
    sizes = torch.tensor([sample.labels.shape for sample in samples])
    counts = sizes.prod(1)
    pixels = torch.from_numpy(np.concatenate([sample.image.reshape(-1, sample.image.shape[2]) for sample in samples]))
    labels = torch.from_numpy(np.concatenate([sample.labels.reshape(-1) for sample in samples]))
    first = counts.cumsum(0) - counts
    return ResidentSplit(*(one.to(device) for one in (pixels, labels, first, sizes)))


def load_pictures(pictures: Dataset[Picture], count: int, device: torch.device) -> list[Picture]:
    """All pictures on the device, those of one size together."""
    loaded = prefetch(pictures.__getitem__, range(count), READERS)
    groups = batch_by_key(loaded, lambda one: (one.images.shape, one.labels.shape), PICTURES, pending=count)
    joined = (Picture(*(torch.cat(parts) for parts in zip(*group, strict=True))) for group in groups)
    return [Picture(one.images.to(device), one.labels.to(device)) for one in joined]


def cut_crops(split: ResidentSplit, transform: TrainTransform, draws: Draws) -> Batch:
    """The crops that are drawn. Waits for nothing."""
    index, numbers = draws
    length = split.sizes[index]  # [b, 2]
    size = _resized(length, numbers[:, RATIO], transform)
    window = torch.stack([size[:, side].clamp(max=transform.crop[side]) for side in (0, 1)], dim=1)
    corners = (numbers[:, CORNERS].view(-1, TRIES, 2) * (size - window + 1)[:, None]).long()  # [b, TRIES, 2]
    step = 1.0 / (size.double() / length)  # pixels of the image to one of the resized, as `nearest_indices` has it
    first = split.first[index]
    corner = corners[:, 0]
    if transform.max_share < 1.0:
        corner = _accepted(split, transform, first, length, step, corners, window)
    flip = numbers[:, FLIP] < transform.flip

    inside, exact, nearest = [], [], []  # along each side, [b, crop]
    for side in (0, 1):
        place = torch.arange(transform.crop[side], device=size.device)[None]
        inside.append(place < window[:, side, None])
        if side == 1:  # the window is flipped, not the padding
            place = torch.where(flip[:, None], window[:, 1, None] - 1 - place, place)
        place = place + corner[:, side, None]
        last = length[:, side, None] - 1
        exact.append(torch.minimum(((place + 0.5) * step[:, side, None] - 0.5).clamp(min=0.0), last))
        nearest.append(torch.minimum((place * step[:, side, None]).floor().clamp(min=0.0), last).long())
    outside = ~(inside[0][:, :, None] & inside[1][:, None, :])
    width = length[:, 1]
    labels = split.labels[_pixel(first, width, *nearest)].masked_fill(outside, transform.ignore_index)
    images = _interpolated(split.pixels, first, length, exact)
    if split.pixels.dtype == torch.uint8:
        if transform.distort:
            with no_autocast(images):
                images = _distorted(images, numbers)
        images = images.round()
    images = images.masked_fill(outside[..., None], 0.0).to(split.pixels.dtype)
    return Batch(images.permute(0, 3, 1, 2).contiguous(), labels, window)


def _pixel(first: Tensor, width: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Places in the split of rows [b, ..., h] and columns [b, ..., w] of images: [b, ..., h, w]."""
    shape = (-1, *[1] * rows.ndim)
    return first.view(shape) + rows[..., :, None] * width.view(shape) + columns[..., None, :]


def _interpolated(pixels: Tensor, first: Tensor, length: Tensor, exact: Sequence[Tensor]) -> Tensor:
    """Values between pixels, bilinear as cv2.resize has them: float32 [b, h, w, c]."""
    low = [one.floor().long() for one in exact]
    high = [torch.minimum(one + 1, length[:, side, None] - 1) for side, one in enumerate(low)]
    down, across = ((one - one.floor()).float() for one in exact)
    down, across = down[:, :, None, None], across[:, None, :, None]
    upper, lower = (
        torch.lerp(
            pixels[_pixel(first, length[:, 1], rows, low[1])].float(),
            pixels[_pixel(first, length[:, 1], rows, high[1])].float(),
            across,
        )
        for rows in (low[0], high[0])
    )
    return torch.lerp(upper, lower, down)


def _accepted(
    split: ResidentSplit,
    transform: TrainTransform,
    first: Tensor,
    length: Tensor,
    step: Tensor,
    corners: Tensor,
    window: Tensor,
) -> Tensor:
    """Of all tries the corner [b, 2] of the first window that no class fills, or of the last."""
    b = len(first)
    inside, nearest = [], []  # along each side, of the rows and columns that are looked at: [b, TRIES, LOOKED_AT]
    for side in (0, 1):
        place = torch.arange(min(LOOKED_AT, transform.crop[side]), device=first.device)
        place = place * ((window[:, side, None] + LOOKED_AT - 1) // LOOKED_AT)  # `grid_step` of each window
        inside.append((place < window[:, side, None])[:, None])
        found = ((corners[:, :, side, None] + place[:, None]) * step[:, side, None, None]).floor()
        nearest.append(torch.minimum(found, length[:, side, None, None] - 1).long())
    labels = split.labels[_pixel(first, length[:, 1], *nearest)].long()
    kept = inside[0][..., :, None] & inside[1][..., None, :] & (labels != transform.ignore_index)
    counts = torch.zeros(b * TRIES, 256, dtype=torch.int32, device=labels.device)
    counts.scatter_add_(1, labels.view(b * TRIES, -1), kept.view(b * TRIES, -1).int())
    total = counts.sum(1)
    good = (total > 0) & (counts.amax(1) / total.clamp(min=1).double() < transform.max_share)
    # The first good one of each image; where there is none, the last.
    rank = torch.where(good.view(b, TRIES), 0, TRIES) + torch.arange(TRIES, device=good.device)
    rank[:, -1].clamp_(max=TRIES - 1)
    chosen = rank.argmin(1)
    return corners.gather(1, chosen[:, None, None].expand(-1, 1, 2))[:, 0]


def _resized(length: Tensor, number: Tensor, transform: TrainTransform) -> Tensor:
    """Heights and widths [b, 2] at random ratios, rounded as `TrainTransform` does."""
    low, high = transform.ratios
    ratio = low + (high - low) * number
    if transform.scale is not None:  # fitted into (long, short), both of whole pixels
        long, short = (torch.floor(side * ratio) for side in (max(transform.scale), min(transform.scale)))
        ratio = torch.minimum(long / length.amax(1), short / length.amin(1))
    return torch.floor(length * ratio[:, None] + 0.5).long().clamp(min=1)


@lru_cache(maxsize=8)
def _yiq(device: torch.device) -> tuple[Tensor, Tensor]:
    """From red, green and blue to YIQ, and back."""
    there = torch.tensor(TO_YIQ, dtype=torch.float64)
    return there.to(device), there.inverse().to(device)


def _distorted(images: Tensor, numbers: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue of [b, h, w, 3]."""
    matrix, offset = _colours(numbers)
    return torch.baddbmm(offset[:, None], images.flatten(1, 2), matrix.mT).view_as(images).clamp(0.0, 255.0)


def _colours(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices [b, 3, 3] and offsets [b, 3] of the distortion of bytes, float32."""
    wanted, amount = numbers[:, COINS] < 0.5, numbers[:, AMOUNTS]
    brightness = torch.where(wanted[:, 0], -32.0 + 64.0 * amount[:, 0], 0.0)
    contrast = torch.where(wanted[:, 1], 0.5 + amount[:, 1], 1.0)
    saturation = torch.where(wanted[:, 2], 0.5 + amount[:, 2], 1.0)
    hue = torch.where(wanted[:, 3], torch.deg2rad(-36.0 + 72.0 * numbers[:, HUE]), 0.0)
    to_yiq, from_yiq = _yiq(numbers.device)
    cosine, sine, zero = saturation * hue.cos(), saturation * hue.sin(), torch.zeros_like(hue)
    chroma = torch.stack([zero + 1.0, zero, zero, zero, cosine, -sine, zero, sine, cosine], 1).view(-1, 3, 3)
    matrix = contrast[:, None, None] * (from_yiq @ chroma @ to_yiq)
    offset = matrix.sum(2) * brightness[:, None]
    return matrix.float(), offset.float()
