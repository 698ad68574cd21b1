"""The interface of a data set: it names and reads pairs of an image and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from cacseg.runtime.bands import Pixels as Pixels
from cacseg.runtime.bands import as_picture, no_data
from cacseg.runtime.colours import Colour, Picture


class Sample(NamedTuple):
    """An image and the class of each of its pixels, as read: nothing resized, nothing normalised."""

    image: Pixels  # [H, W, 3], red, green, blue bytes; or float32 [H, W, c], bands in the units of their file
    labels: npt.NDArray[np.uint8]  # [H, W], 0 to n - 1, or the data set's ignore_index

    @property
    def picture(self) -> Picture:
        """The image, to look at."""
        return as_picture(self.image)


def ignoring_gaps(image: Pixels, labels: npt.NDArray[np.uint8], ignore_index: int) -> Sample:
    """A sample whose labels are ignored where its image has no data."""
    empty = no_data(image)
    return Sample(image, labels if empty is None else np.where(empty, np.uint8(ignore_index), labels))


def majority(labels: Sequence[npt.NDArray[np.uint8]], ignore_index: int) -> npt.NDArray[np.uint8]:
    """The class that most annotators gave a pixel, ignored where two have as many; who ignores it gives none."""
    if len(labels) == 1:
        return labels[0]
    votes = [
        sum(((one == other) & (one != ignore_index)).astype(np.uint8) for other in labels) for one in labels
    ]  # for what each of them gave
    most = np.max(votes, axis=0)
    found = np.full_like(labels[0], ignore_index)
    tied = np.zeros(found.shape, bool)
    for one, count in zip(labels, votes, strict=True):
        leads = (count == most) & (most > 0)
        tied |= leads & (found != ignore_index) & (found != one)
        found = np.where(leads, one, found)
    return np.where(tied, np.uint8(ignore_index), found)


class FaultyDataError(OSError, ValueError):
    """A data set that cannot be used as it is: `cacseg data check` lists all that is wrong with it."""


class FaultyImagesError(FaultyDataError):
    """Some images cannot be used: `reasons` has a line for each, `summary` says how many and what follows."""

    def __init__(self, summary: str, reasons: Sequence[str]) -> None:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        super().__init__(f"{reasons[0]}{more} {summary}")
        self.summary, self.reasons = summary, tuple(reasons)


@runtime_checkable
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


@runtime_checkable
class AnnotatedData(SegmentationData, Protocol):
    """Data whose images may have labels of several annotators."""

    @property
    def has_annotators(self) -> bool: ...

    def read_drawn(self, index: int, number: float) -> Sample: ...


class Part:
    """Some images of a split, by their places in it."""

    def __init__(self, data: SegmentationData, places: Sequence[int], split: str | None = None) -> None:
        self.data, self.places = data, places
        self.name, self.split, self.ignore_index = data.name, split or data.split, data.ignore_index
        self.class_names, self.palette = data.class_names, data.palette

    def __len__(self) -> int:
        return len(self.places)

    def image_name(self, index: int) -> str:
        return self.data.image_name(self.places[index])

    @property
    def has_annotators(self) -> bool:
        return has_annotators(self.data)

    def read(self, index: int) -> Sample:
        return self.data.read(self.places[index])

    def read_drawn(self, index: int, number: float) -> Sample:
        data, place = self.data, self.places[index]
        return data.read_drawn(place, number) if isinstance(data, AnnotatedData) else data.read(place)


def has_annotators(data: SegmentationData) -> bool:
    return isinstance(data, AnnotatedData) and data.has_annotators


def read_sample(data: SegmentationData, index: int, number: float | None = None) -> Sample:
    """A sample whose labels have the size of their image and hold classes or the ignore index, or an error.

    With a number in [0, 1) its labels are those of one annotator, where there are several.
    """
    try:
        if number is not None and isinstance(data, AnnotatedData):
            sample = data.read_drawn(index, number)
        else:
            sample = data.read(index)
    except (OSError, ValueError) as error:
        raise FaultyDataError(str(error)) from error
    labels, count = sample.labels, len(data.class_names)
    name = f"{data.name}, {data.split}: {data.image_name(index)}"
    check_one_size(sample.image, labels, name, "its labels")
    if int(labels.max(initial=0)) < count:
        return sample
    wrong = sorted(set(np.unique(labels[labels >= count]).tolist()) - {data.ignore_index})
    if wrong:
        raise FaultyDataError(
            f"labels must be in [0, {count}) or the ignore index {data.ignore_index}; got "
            f"{', '.join(map(str, wrong[:5]))} ({name}). Is the ignore index, or the list of classes, that of another "
            "data set?"
        )
    return sample


def check_one_size(image: npt.NDArray[Any], labels: npt.NDArray[np.uint8], image_name: str, labels_name: str) -> None:
    if labels.shape == image.shape[:2]:
        return
    turned = labels.shape == image.shape[1::-1]
    hint = "The image may carry a rotation (EXIF) that its labels lack: save it upright."
    raise FaultyDataError(
        f"an image and its labels must have one size; {image_name} is {image.shape[1]}x{image.shape[0]} and "
        f"{labels_name} {labels.shape[1]}x{labels.shape[0]}. {hint if turned else 'Replace one of them.'}"
    )
