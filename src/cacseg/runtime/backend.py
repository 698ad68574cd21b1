"""What predicts: torch, or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cacseg.runtime.colours import MAX_CLASSES, Colour, distinct_colours
from cacseg.runtime.result import Bytes, Floats

Context = dict[str, npt.NDArray[np.float64]]  # of the frames of a film
Scale = tuple[int, int]  # the longest and the shortest side an image may have

BAND = 2**18  # scores that fit, with what is made of them, into the caches of a core
LEAST = -1e4  # a logarithm whose exponential is 0, in place of -inf, which times 0 is no number


class Answer(NamedTuple):
    """For each pixel of an image its class, and where they were asked for confidence and entropy."""

    mask: Bytes
    confidence: Floats | None = None
    entropy: Floats | None = None


class Classes(NamedTuple):
    names: tuple[str, ...]
    palette: tuple[Colour, ...]


class Backend(Protocol):
    """A model that is ready to predict. An image too large for the memory is a MemoryError that says so."""

    classes: Classes
    batch: int  # images of one size that run together unless the caller says otherwise
    threads: int  # that may call `predict` at once; 0: the caller's own alone
    has_maps: bool  # whether it can tell confidence and entropy
    bands: int | None  # that images have, in the units of their files; None: red, green, blue bytes

    def settings(self) -> dict[str, Any]:
        """What decides the answers beside the weights, for the record."""
        ...

    def state(self) -> int:
        """A number that changes when the weights do."""
        ...

    def carrying(self, carry: float, context: Context | None = None) -> Backend:
        """The same model for frames in their order: each remembers the context of those before, times `carry`.

        `context` is what `context()` gave after an earlier frame.
        """
        ...

    def context(self) -> Context | None:
        """What is carried after the frames so far; None where nothing is."""
        ...

    def view(self, image: npt.NDArray[Any]) -> Any:
        """The image as `predict` takes it: resized. Called in reading threads."""
        ...

    def predict(self, views: Sequence[Any], size: tuple[int, int], *, maps: bool, plain: bool) -> list[Answer]:
        """The answers to images of one size, at that size; `plain`: of the fixed classifier."""
        ...


def name_classes(
    count: int, names: Sequence[str] | None = None, palette: Sequence[Sequence[int]] | None = None
) -> Classes:
    """Names and colours, made up where there are none."""
    if count > MAX_CLASSES:
        raise ValueError(f"a mask of 8 bits holds at most {MAX_CLASSES} classes; the model has {count}.")
    check_classes(names, palette, count, "the model")
    colours = distinct_colours(count) if palette is None else tuple((int(r), int(g), int(b)) for r, g, b in palette)
    return Classes(tuple(map(str, range(count) if names is None else names)), colours)


def check_classes(names: Any, palette: Any, num_classes: int, source: str) -> None:
    """A name and a colour for each class, or none at all."""
    named = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else []
    if names is not None and not (len(named) == num_classes and all(isinstance(name, str) for name in named)):
        raise ValueError(f"class_names of {source} must be {num_classes} strings; got {str(names)[:80]}.")
    colours = list(palette) if isinstance(palette, Iterable) else []
    if palette is not None and not (len(colours) == num_classes and all(map(_is_colour, colours))):
        raise ValueError(
            f"palette of {source} must be {num_classes} colours of red, green and blue, whole numbers in 0..255; got "
            f"{str(palette)[:80]}."
        )


def _is_colour(colour: Any) -> bool:
    values = list(colour) if isinstance(colour, Iterable) else []
    return len(values) == 3 and all(
        isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value <= 255 for value in values
    )


def keep_ratio(height: int, width: int, scale: Scale) -> tuple[int, int]:
    """The largest height and width of the same proportion whose long and short side fit into `scale`."""
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def view_at(image: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """An image [H, W, c] as planes [c, *size]; bytes stay bytes."""
    planes = np.ascontiguousarray(image.transpose(2, 0, 1))
    if planes.shape[1:] == size:
        return planes
    resized = resize(planes, size)
    return resized.round().astype(np.uint8) if image.dtype == np.uint8 else resized


def resize(maps: npt.NDArray[Any], size: tuple[int, int]) -> Floats:
    """[..., h, w] -> [..., *size], bilinear, pixels as areas (align_corners=False), no smoothing."""
    found = np.asarray(maps, np.float32)
    for axis, wanted in ((-2, size[0]), (-1, size[1])):
        length = found.shape[axis]
        if length == wanted:
            continue
        place = np.clip((np.arange(wanted, dtype=np.float32) + 0.5) * (length / wanted) - 0.5, 0.0, length - 1.0)
        before = np.minimum(place.astype(np.int64), max(0, length - 2))
        share = (place - before).astype(np.float32)
        share = share[:, None] if axis == -2 else share
        after = np.minimum(before + 1, length - 1)
        found = np.take(found, before, axis) * (1.0 - share) + np.take(found, after, axis) * share
    return np.asarray(found, np.float32)
