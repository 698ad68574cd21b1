"""The interface of a data set: it names and reads pairs of an image and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Colour = tuple[int, int, int]


class Sample(NamedTuple):
    """An image and the class of each of its pixels, as read: nothing resized, nothing normalised."""

    image: npt.NDArray[np.uint8]  # [H, W, 3], red, green, blue
    labels: npt.NDArray[np.uint8]  # [H, W], 0 to n - 1, or the data set's ignore_index


class SegmentationData(Protocol):
    """One split of a data set. Reading is stateless, so any number of workers may share it."""

    @property
    def name(self) -> str: ...  # "ade20k"

    @property
    def split(self) -> str: ...  # "train", "val"

    @property
    def class_names(self) -> Sequence[str]: ...

    @property
    def palette(self) -> Sequence[Colour]: ...

    @property
    def ignore_index(self) -> int: ...

    def __len__(self) -> int: ...

    def image_name(self, index: int) -> str:
        """Stable and unique within the split: the path below the split's folder, '/' between, no suffix."""
        ...

    def read(self, index: int) -> Sample: ...
