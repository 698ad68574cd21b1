"""Training crops cut on the device, drawn for a whole run before it starts.

What `TrainTransform` does to one image on the host is done here to a batch on the device: the same sizes, corners and
flips, the same labels pixel for pixel, images within the rounding of bytes. Nothing in a step waits for the device.

Colours differ from `data.transforms.distorted` in this: all four distortions are one affine map of red, green and blue.
Saturation scales, and hue turns, the two chroma axes of YIQ instead of HSV's coordinates, and values are cut to 0..255
once, at the end, and not rounded. Amounts and probabilities are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from cacseg.data.transforms import TrainTransform
from cacseg.engine.resident import Resident
from cacseg.engine.stream import index_at

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_CROPS = 2  # a third generator of a run's seed, beside the two of `engine.stream`
_NUMBERS = 12  # uniform numbers for each position
TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


class Crops(NamedTuple):
    """What is cut at each of p positions; `crops.at(positions)` are those of a step."""

    image: Tensor  # int64 [p], its place in the split
    length: Tensor  # float64 [p, 2], height and width of the image
    step: Tensor  # float64 [p, 2], pixels of the image for one of the resized image
    corner: Tensor  # int64 [p, 2], upper and left edge of the window in the resized image
    window: Tensor  # int64 [p, 2], its height and width: the crop, or less where the resized image is smaller
    flip: Tensor  # bool [p]
    colour: Tensor  # float32 [p, 3, 4], from bytes to normalised values
    limits: Tensor  # float32 [2, 3, 1], what 0 and 255 become

    def at(self, positions: Tensor) -> Crops:
        return Crops._make([*(one[positions] for one in self[:-1]), self.limits])


def draw_crops(
    transform: TrainTransform,
    split: Resident,
    seed: int,
    count: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> Crops:
    """The crops of positions 0 to count - 1, on the split's device; each a function of (seed, position) alone.

    Runs of one seed see the same crops in the same order, whatever is trained on them, and a longer run begins as a
    shorter one does.
    """
    if transform.max_share != 1.0:
        raise ValueError(
            f"crops on the device are drawn before the labels are seen, so max_share must be 1; got "
            f"{transform.max_share}. Set data.max_share to 1."
        )
    numbers = np.random.default_rng([seed, _CROPS]).random((count, _NUMBERS))
    index = np.array([index_at(seed, position, len(split)) for position in range(count)], dtype=np.int64)
    length = split.sizes[index]
    size = _resized(length, numbers[:, 0], transform)
    window = np.minimum(size, np.array(transform.crop))
    corner = (numbers[:, 1:3] * (size - window + 1)).astype(np.int64)
    colour = _colours(numbers[:, 4:], transform.distort, np.array(mean), np.array(std))
    limits = np.stack([-np.array(mean) / std, (1.0 - np.array(mean)) / std])[..., None]
    device = split.images.device
    return Crops(
        image=torch.from_numpy(index).to(device),
        length=torch.from_numpy(length.astype(np.float64)).to(device),
        step=torch.from_numpy(1.0 / (size / length)).to(device),  # as `nearest_indices` rounds it
        corner=torch.from_numpy(corner).to(device),
        window=torch.from_numpy(window).to(device),
        flip=torch.from_numpy(numbers[:, 3] < transform.flip).to(device),
        colour=torch.from_numpy(colour.astype(np.float32)).to(device),
        limits=torch.from_numpy(limits.astype(np.float32)).to(device),
    )


def cut_crops(split: Resident, crops: Crops, crop: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Normalised images [b, 3, h, w], 0 in the padding, and labels [b, h, w], ignored there. Not under autocast."""
    rows, columns = _places(crops, 0, crop[0]), _places(crops, 1, crop[1])
    outside = ~(rows.inside[:, :, None] & columns.inside[:, None, :])
    labels = split.labels[crops.image[:, None, None], rows.nearest[:, :, None], columns.nearest[:, None, :]]
    labels = labels.masked_fill(outside, split.ignore_index).long()

    # grid_sample's coordinates: -1 and 1 are the outer edges of the first and last pixel.
    down, across = (
        (2.0 * one.exact + 1.0) / side - 1.0 for one, side in zip((rows, columns), split.images.shape[2:], strict=True)
    )
    grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), dim=-1).float()
    pixels = F.grid_sample(split.images[crops.image].float(), grid, padding_mode="border", align_corners=False)
    images = torch.baddbmm(crops.colour[:, :, 3:], crops.colour[:, :, :3], pixels.flatten(2))
    images = torch.clamp(images, crops.limits[0], crops.limits[1]).view_as(pixels)
    return images.masked_fill_(outside[:, None], 0.0), labels


class _Places(NamedTuple):
    """Along one side of a batch of crops: where in the image its pixels come from."""

    exact: Tensor  # float64 [b, length], centres as cv2.resize has them, cut to the image
    nearest: Tensor  # int64 [b, length], as INTER_NEAREST has them
    inside: Tensor  # bool [b, length], window and not padding


def _places(crops: Crops, side: int, length: int) -> _Places:
    place = torch.arange(length, device=crops.image.device)[None]
    window, corner = crops.window[:, side, None], crops.corner[:, side, None]
    step, last = crops.step[:, side, None], crops.length[:, side, None] - 1.0
    inside = place < window
    if side == 1:  # the window is flipped, not the padding
        place = torch.where(crops.flip[:, None], window - 1 - place, place)
    place = place + corner
    exact = torch.minimum(((place + 0.5) * step - 0.5).clamp(min=0.0), last)
    nearest = torch.minimum((place * step).floor().clamp(min=0.0), last).long()
    return _Places(exact, nearest, inside)


def _resized(length: Integers, number: Floats, transform: TrainTransform) -> Integers:
    """Heights and widths [p, 2] at random ratios, rounded as `TrainTransform` does."""
    low, high = transform.ratios
    ratio = low + (high - low) * number
    if transform.scale is not None:  # fitted into (long, short), both of whole pixels
        long, short = (np.floor(max_side * ratio) for max_side in (max(transform.scale), min(transform.scale)))
        ratio = np.minimum(long / length.max(1), short / length.min(1))
    return np.maximum(1, np.floor(length * ratio[:, None] + 0.5)).astype(np.int64)


def _colours(numbers: Floats, distort: bool, mean: Floats, std: Floats) -> Floats:
    """[p, 3, 4]: matrix and offset of the distortion and of `normalise`, from bytes."""
    wanted = (numbers[:, :4] < 0.5) & distort
    amount = numbers[:, 4:]
    brightness = np.where(wanted[:, 0], -32.0 + 64.0 * amount[:, 0], 0.0)
    contrast = np.where(wanted[:, 1], 0.5 + amount[:, 1], 1.0)
    saturation = np.where(wanted[:, 2], 0.5 + amount[:, 2], 1.0)
    hue = np.where(wanted[:, 3], np.radians(-36.0 + 72.0 * amount[:, 3]), 0.0)
    chroma = np.zeros((len(numbers), 3, 3))
    chroma[:, 0, 0] = 1.0
    chroma[:, 1, 1] = chroma[:, 2, 2] = saturation * np.cos(hue)
    chroma[:, 2, 1] = saturation * np.sin(hue)
    chroma[:, 1, 2] = -chroma[:, 2, 1]
    matrix = contrast[:, None, None] * (np.linalg.inv(TO_YIQ) @ chroma @ TO_YIQ)
    offset = matrix @ np.ones(3) * brightness[:, None]
    return np.concatenate([matrix, offset[..., None]], 2) / (255.0 * std[:, None]) - _last_column(mean / std)


def _last_column(values: Floats) -> Floats:
    """[3, 4], zeros but for its last column."""
    return np.pad(values[:, None], ((0, 0), (3, 0)))
