"""A user's own transform of image and mask in place of `TrainTransform`: Albumentations', torchvision's, a function."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import torch

from cacseg.data.arrays import image_array, labels_of, mask_array
from cacseg.data.label_map import IGNORE
from cacseg.data.python import pair_of
from cacseg.data.sample import Sample
from cacseg.data.transforms import Crop, Numbers, padded_planes

TORCHVISION = "torchvision.transforms.v2"


class OwnTransform:
    """What a user's transform makes of a sample, as a function of the sample and of the numbers of its position.

    Called are

        transform(image=image, mask=mask)              where its class is of Albumentations
        transform(Image [3, H, W], Mask [H, W])        tv_tensors, where its class is of torchvision.transforms.v2
        transform(image, mask)                         else; arrays [H, W, 3] and [H, W], uint8

    and give both again, 8 bits (or bands in their own units), of one size, that of `crop` or smaller: then they are
    padded at the right and below.
    In masks 255 is ignored. The generators of Python, numpy and torch are seeded for each call and set back after
    it, and Albumentations' own is seeded.
    """

    def __init__(
        self, transform: Callable[..., Any], crop: tuple[int, int], classes: int, bands: int | None = None
    ) -> None:
        if not callable(transform):
            raise TypeError(f"a transform is called with an image and its mask; got {type(transform).__name__}.")
        self.transform, self.crop, self.classes, self.bands = transform, crop, classes, bands
        self.library = _library(transform)

    @property
    def described(self) -> str:
        """The name of the function, or of the class."""
        named = self.transform if isinstance(self.transform, FunctionType) else type(self.transform)
        return f"{named.__module__}.{named.__qualname__}"

    def __call__(self, sample: Sample, numbers: Numbers) -> Crop:
        where = "the transform's result"
        seeds = [int(number * 2**32) for number in numbers[:3]]
        with seeded(*seeds):
            image, mask = pair_of(self._transformed(sample, seeds[0]), where)
        pixels = image_array(image, where, self.bands)
        labels = labels_of(mask_array(mask, where), self.classes, IGNORE, where)
        height, width = labels.shape
        if pixels.shape[:2] != (height, width):
            raise ValueError(
                f"a transform gives image and mask of one size; got {pixels.shape[0]}x{pixels.shape[1]} and "
                f"{height}x{width} (height x width). Does it take the mask along?"
            )
        if height > self.crop[0] or width > self.crop[1]:
            raise ValueError(
                f"a transform gives what fits into data.crop, {self.crop[0]}x{self.crop[1]} (height x width); got "
                f"{height}x{width}. Let it end with a RandomCrop of that size."
            )
        padded = np.full(self.crop, IGNORE, np.uint8)
        padded[:height, :width] = labels
        return Crop(padded_planes(pixels, self.crop), torch.from_numpy(padded), (height, width))

    def _transformed(self, sample: Sample, seed: int) -> Any:
        image, mask = sample
        if self.library == "albumentations":
            if hasattr(self.transform, "set_random_seed"):  # since 1.4.19 it has generators of its own
                self.transform.set_random_seed(seed)
            return self.transform(image=image, mask=mask)
        if self.library == "torchvision":
            from torchvision import tv_tensors  # type: ignore[import-untyped]

            planes = torch.from_numpy(image.transpose(2, 0, 1).copy())
            return self.transform(tv_tensors.Image(planes), tv_tensors.Mask(torch.from_numpy(mask.copy())))
        return self.transform(image.copy(), mask.copy())


def _library(transform: Any) -> str:
    modules = [kind.__module__ for kind in type(transform).__mro__]
    if any(name.startswith("albumentations.") for name in modules):
        return "albumentations"
    if any(name.startswith(TORCHVISION) for name in modules):
        return "torchvision"
    if any(name.startswith("torchvision.transforms") for name in modules):
        raise TypeError(
            f"{type(transform).__module__}.{type(transform).__name__} transforms an image without its mask. Take the "
            f"one of {TORCHVISION}."
        )
    return ""


@contextmanager
def seeded(python: int, numpy: int, pytorch: int) -> Iterator[None]:
    """The global generators of the host, seeded, and afterwards as they were: dropout on the CPU draws from torch's."""
    states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()  # noqa: NPY002
    random.seed(python)
    np.random.seed(numpy)  # noqa: NPY002 (libraries use the global generator)
    torch.default_generator.manual_seed(pytorch)  # torch.manual_seed would seed the GPU's too
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
