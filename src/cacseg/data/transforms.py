"""Image and labels transformed together; each result a function of the sample and of `NUMBERS` uniform numbers.

The steps and their amounts are those of the usual recipe: a random ratio, a crop that no class fills, a flip,
photometric distortion. Images stay 8 bits until they are on the device that normalises them. `engine.resident` does the
same to images that are on the device, from the same numbers. Images of bands (`runtime.bands`) stay float32, and keep
their colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int, Num, UInt8
from torch import Tensor

from cacseg._checks import check_number
from cacseg.data.label_map import IGNORE
from cacseg.data.sample import Pixels as Image
from cacseg.data.sample import Sample
from cacseg.runtime.backend import keep_ratio

Pixels = npt.NDArray[np.uint8]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
TRIES = 10  # of a crop that no class fills; the last one is taken
LOOKED_AT = 64  # rows and columns of a window, at most, whose labels tell how large a share a class has
# Uniform numbers in [0, 1) for one crop, and which of them decide what.
NUMBERS = 32
RATIO, CORNERS, FLIP = 0, slice(1, 1 + 2 * TRIES), 21
COINS, AMOUNTS, HUE, CONTRAST_FIRST = slice(22, 26), slice(26, 29), 29, 30
ANNOTATOR = 31  # whose labels are read, where there are several
Numbers = npt.NDArray[np.float64]


class Crop(NamedTuple):
    """What a network trains on. Beyond `size` (height, width) the image is 0 and the labels are ignored."""

    image: Tensor  # uint8 or float32 [c, h, w]
    labels: UInt8[Tensor, "h w"]
    size: tuple[int, int]


@dataclass(frozen=True)
class TrainTransform:
    """Resize by a random ratio, crop, flip, distort.

    `crop`: (height, width) of what comes out. `scale`: (long, short), what the sides are fitted into at ratio 1 with
    their proportion kept; None for the image's own size. `max_share`: of a window's labelled pixels one class may
    have less than this, judged on a grid of at most 64x64 of them; after ten tries the last window is taken. `flip`:
    its probability.
    """

    crop: tuple[int, int]
    scale: tuple[int, int] | None = None
    ratios: tuple[float, float] = (0.5, 2.0)
    max_share: float = 0.75
    flip: float = 0.5
    distort: bool = True
    ignore_index: int = IGNORE

    def __post_init__(self) -> None:
        if min(self.crop) < 1:
            raise ValueError(f"crop must be a height and a width of at least 1; got {self.crop}.")
        _check_scale(self.scale)
        if not 0.0 < self.ratios[0] <= self.ratios[1]:
            raise ValueError(f"ratios must be a smaller and a larger positive number; got {self.ratios}.")
        check_number("max_share", self.max_share, 0.0, 1.0, "(]", scalars=True)
        check_number("flip", self.flip, 0.0, 1.0, "[]", scalars=True)
        check_number("ignore_index", self.ignore_index, 0, 255, "[]", scalars=True)

    def __call__(self, sample: Sample, numbers: Numbers) -> Crop:
        size = self._size(sample, numbers[RATIO])
        top, left, labels = self._window(sample.labels, size, numbers[CORNERS])
        image = resized_window(sample.image, size, (top, left), labels.shape)
        if numbers[FLIP] < self.flip:
            image, labels = _same_bands(cv2.flip(image, 1), image), labels[:, ::-1]
        if self.distort and image.dtype == np.uint8:
            image = distorted(image, numbers)
        padded = np.full(self.crop, self.ignore_index, np.uint8)
        padded[: labels.shape[0], : labels.shape[1]] = labels
        return Crop(padded_planes(image, self.crop), torch.from_numpy(padded), (labels.shape[0], labels.shape[1]))

    def _size(self, sample: Sample, number: float) -> tuple[int, int]:
        low, high = self.ratios
        ratio = low + (high - low) * number
        height, width = sample.labels.shape
        if self.scale is None:
            return max(1, int(height * ratio + 0.5)), max(1, int(width * ratio + 0.5))
        return keep_ratio(height, width, (int(self.scale[0] * ratio), int(self.scale[1] * ratio)))

    def _window(self, labels: Pixels, size: tuple[int, int], numbers: Numbers) -> tuple[int, int, Pixels]:
        """Upper edge, left edge and labels of the window, found on the labels alone: images cost more to resize."""
        rows, columns = nearest_indices(labels.shape[0], size[0]), nearest_indices(labels.shape[1], size[1])
        height, width = min(self.crop[0], size[0]), min(self.crop[1], size[1])
        down, across = grid_step(height), grid_step(width)
        for number_down, number_across in numbers.reshape(TRIES, 2):
            top = int(number_down * (size[0] - height + 1))
            left = int(number_across * (size[1] - width + 1))
            window_rows, window_columns = rows[top : top + height], columns[left : left + width]
            if self.max_share == 1.0:
                break
            looked_at = labels.take(window_rows[::down], 0).take(window_columns[::across], 1)
            if largest_share(looked_at, self.ignore_index) < self.max_share:
                break
        return top, left, labels.take(window_rows, 0).take(window_columns, 1)


@dataclass(frozen=True)
class TestTransform:
    """Fit the image into `scale` (long, short) with its proportion kept; None leaves it as it is."""

    __test__ = False  # no test, whatever pytest thinks of the name

    scale: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def __call__(self, image: Image) -> Tensor:
        """uint8 or float32 [c, h, w]."""
        if self.scale is not None:
            height, width = keep_ratio(image.shape[0], image.shape[1], self.scale)
            image = _resized(image, (height, width))
        return padded_planes(image, image.shape[:2])


def normalise(
    images: Num[Tensor, "b c h w"],
    mean: Sequence[float] | Tensor = IMAGENET_MEAN,
    std: Sequence[float] | Tensor = IMAGENET_STD,
    sizes: Int[Tensor, "b 2"] | None = None,
) -> Float[Tensor, "b c h w"]:
    """(images / 255 - mean) / std in float32, on the images' device, and 0 beyond each image's size.

    So what was padded is 0 after normalising, as in the recipe, though 8 bits a value were sent to the device. Bands,
    which are float32, are (images - mean) / std, and 0 where they have no data.
    """
    are_bytes, channels = images.dtype == torch.uint8, len(mean)
    if not (are_bytes or images.dtype == torch.float32) or images.ndim != 4 or images.shape[1] != channels:
        raise TypeError(
            f"images must be uint8, or bands in float32, [b, {channels}, h, w]; got {images.dtype} "
            f"{tuple(images.shape)}."
        )
    means = torch.as_tensor(mean, dtype=torch.float32, device=images.device).view(1, channels, 1, 1)
    stds = torch.as_tensor(std, dtype=torch.float32, device=images.device).view(1, channels, 1, 1)
    if are_bytes:
        normal = images * (1.0 / (255.0 * stds)) - means / stds
    else:
        normal = ((images - means) / stds).nan_to_num_(0.0, 0.0, 0.0)
    if sizes is None:
        return normal
    if tuple(sizes.shape) != (images.shape[0], 2):
        raise ValueError(f"sizes must be [b, 2], a height and width for each image; got {tuple(sizes.shape)}.")
    rows = torch.arange(images.shape[2], device=images.device)[None, :, None] < sizes[:, 0, None, None]
    columns = torch.arange(images.shape[3], device=images.device)[None, None, :] < sizes[:, 1, None, None]
    return normal.masked_fill_(~(rows & columns)[:, None], 0.0)


def start_worker(worker: int) -> None:
    """For `worker_init_fn` of a DataLoader: one process, one thread."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def nearest_indices(length: int, new_length: int) -> npt.NDArray[np.intp]:
    """Which of `length` values each of `new_length` takes: what cv2.resize does with INTER_NEAREST."""
    step = 1.0 / (new_length / length)
    return np.minimum(np.floor(np.arange(new_length) * step).astype(np.intp), length - 1)


def resized_window(image: Image, size: tuple[int, int], corner: tuple[int, int], window: tuple[int, ...]) -> Image:
    """cv2.resize(image, size)[corner : corner + window], of which only what lies above and left is computed."""
    (height, width), (top, left) = image.shape[:2], corner
    bottom, right = top + window[0], left + window[1]
    factors = size[0] / height, size[1] / width
    # Two more than the last source pixel that is needed, so that no edge of the part is seen.
    rows = min(height, int(np.ceil(bottom / factors[0])) + 2)
    columns = min(width, int(np.ceil(right / factors[1])) + 2)
    if size == (height, width):
        return image[top:bottom, left:right]
    if (rows, columns) == (height, width) or max(factors) < 1.0:  # OpenCV on Arm shrinks by the sizes, not by factors
        resized = _resized(image, size)
    else:
        part = image[:rows, :columns]
        resized = _same_bands(cv2.resize(part, None, fx=factors[1], fy=factors[0]), image)
    return resized[top:bottom, left:right]


def grid_step(length: int) -> int:
    """Every how many rows, or columns, of a window are looked at."""
    return -(-length // LOOKED_AT)


def largest_share(labels: Pixels, ignore_index: int) -> float:
    """Of the labelled pixels, the share of the most frequent class; 1 where nothing is labelled."""
    counts = cv2.calcHist([labels], [0], None, [256], [0.0, 256.0])  # exact counts, twice as fast as numpy
    counts[ignore_index] = 0
    total = int(counts.sum())
    return int(counts.max()) / total if total else 1.0


def distorted(image: Pixels, numbers: Numbers) -> Pixels:
    """Brightness, contrast, saturation and hue, each with probability 1/2; contrast before or after the last two.

    Brightness +-32 of 255, contrast and saturation x0.5 to 1.5, hue +-18 of OpenCV's 180 steps. Values are cut to
    0..255 and to whole numbers after each step, so every step is a table of 256 entries.
    """
    coins = numbers[COINS] < 0.5
    brightness, contrast, saturation = numbers[AMOUNTS] * (64.0, 1.0, 1.0) + (-32.0, 0.5, 0.5)
    hue = int(numbers[HUE] * 36.0) - 18
    contrast_first = numbers[CONTRAST_FIRST] < 0.5
    values = np.arange(256)
    before = _cut(values + brightness) if coins[0] else None
    after = _cut(values * contrast) if coins[1] else None
    if after is not None and (contrast_first or not (coins[2] or coins[3])):
        before, after = after if before is None else after[before], None
    if before is not None:
        image = _looked_up(image, before)
    if coins[2] or coins[3]:
        table = np.stack([values] * 3, -1).astype(np.uint8)  # [256, 3]: hue, saturation, value
        if coins[2]:
            table[:, 1] = _cut(values * saturation)
        if coins[3]:
            table[:180, 0] = (values[:180] + hue) % 180
        hsv = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), np.uint8)
        image = np.asarray(cv2.cvtColor(_looked_up(hsv, table[:, None]), cv2.COLOR_HSV2RGB), np.uint8)
    return image if after is None else _looked_up(image, after)


def _check_scale(scale: tuple[int, int] | None) -> None:
    if scale is not None and min(scale) < 1:
        raise ValueError(f"scale must be two lengths of at least 1, (long, short); got {scale}.")


def _cut(values: npt.NDArray[np.float64]) -> Pixels:
    return np.clip(values, 0.0, 255.0).astype(np.uint8)


def _looked_up(image: Pixels, table: Pixels) -> Pixels:
    return np.asarray(cv2.LUT(image, table), np.uint8)


def _resized(image: Image, size: tuple[int, int]) -> Image:
    return _same_bands(cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR), image)


def _same_bands(made: Any, image: Image) -> Image:
    """What OpenCV made of an image; of a single band it drops the last axis."""
    return np.asarray(made if made.ndim == 3 else made[..., None], image.dtype)


def padded_planes(image: Image, size: tuple[int, ...]) -> Tensor:
    """[H, W, c] -> [c, h, w] with 0 to the right and below."""
    make = np.zeros if image.shape[:2] != size else np.empty
    planes = make((image.shape[2], *size), image.dtype)
    planes[:, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    return torch.from_numpy(planes)
