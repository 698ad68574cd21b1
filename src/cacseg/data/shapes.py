"""Shapes of many images in a few arrays, which worker processes share, and drawn when an image is read."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data.class_list import NO_CLASS, ClassList
from cacseg.data.label_map import IGNORE
from cacseg.data.layout import Pair, Rules
from cacseg.data.sample import FaultyDataError, check_one_size
from cacseg.data.spans import Points, Spans, decode_runs, paint, polygon_spans, run_spans
from cacseg.runtime.colours import background_index
from cacseg.runtime.files import Files, ZipFiles


class Shape(NamedTuple):
    """A polygon or a mask of COCO's runs, and the place of its class in a list of names."""

    label: int
    polygon: Points | None
    runs: bytes = b""


class ImageShapes(NamedTuple):
    """Of one image, with the size that the file states, or 0, 0."""

    size: tuple[int, int]
    shapes: list[Shape]


class Drawing(NamedTuple):
    """The shapes of one image: shape k has `counts[k]` of the points, or it is a mask."""

    labels: npt.NDArray[np.integer]  # [shapes], a place in a list of names
    points: Points
    counts: npt.NDArray[np.int64]
    masks: dict[int, bytes]  # shape -> COCO's compressed runs


@dataclass(frozen=True)
class ShapeTable:
    """The shapes of many images; a shape has points or runs."""

    sizes: npt.NDArray[np.int32]  # [images, 2], height and width
    starts: npt.NDArray[np.int64]  # [images + 1], the first shape of each
    labels: npt.NDArray[np.uint16]  # [shapes]
    points: npt.NDArray[np.float32]  # [n, 2]
    point_starts: npt.NDArray[np.int64]  # [shapes + 1]
    runs: bytes
    run_starts: npt.NDArray[np.int64]  # [shapes + 1]

    @classmethod
    def pack(cls, images: Sequence[ImageShapes]) -> ShapeTable:
        shapes = [shape for image in images for shape in image.shapes]
        points = [shape.polygon for shape in shapes if shape.polygon is not None]
        return cls(
            np.array([image.size for image in images], np.int32).reshape(-1, 2),
            np.cumsum([0, *(len(image.shapes) for image in images)]),
            np.array([shape.label for shape in shapes], np.uint16),
            np.concatenate([np.zeros((0, 2)), *points], dtype=np.float32, casting="same_kind"),
            np.cumsum([0, *(0 if shape.polygon is None else len(shape.polygon) for shape in shapes)]),
            b"".join(shape.runs for shape in shapes),
            np.cumsum([0, *(len(shape.runs) for shape in shapes)]),
        )

    def of(self, row: int) -> Drawing:
        first, last = self.starts[row : row + 2].tolist()
        points, runs = self.point_starts[first : last + 1], self.run_starts[first : last + 1].tolist()
        masks = {k: self.runs[runs[k] : runs[k + 1]] for k in range(last - first) if runs[k] < runs[k + 1]}
        return Drawing(self.labels[first:last], self.points[points[0] : points[-1]], np.diff(points), masks)


@dataclass(frozen=True)
class Canvas:
    """Draws shapes by the rules. `values[k]` is the label of the k-th name that shapes refer to."""

    values: npt.NDArray[np.uint8]
    below: int
    smaller_on_top: bool

    @classmethod
    def make(cls, names: Sequence[str], classes: ClassList, rules: Rules) -> Canvas:
        index = {name: label for label, name in enumerate(classes.names)} | {NO_CLASS: IGNORE}
        background = background_index(classes.names)
        below = IGNORE if rules.uncovered == "ignore" or background is None else background
        return cls(np.array([index.get(name, IGNORE) for name in names], np.uint8), below, rules.overlap == "smaller")

    def draw(self, drawing: Drawing, size: tuple[int, int], where: str) -> npt.NDArray[np.uint8]:
        spans: list[Spans] = []
        if len(drawing.points):
            _check_inside(drawing, size, where)
            spans.append(polygon_spans(drawing.points, drawing.counts, size))
        if drawing.masks:
            counts = _runs(list(drawing.masks.values()), size, where)
            spans += [run_spans(one, shape) for one, shape in zip(counts, drawing.masks, strict=True)]
        return paint(spans, self.values[drawing.labels], size, self.below, self.smaller_on_top)


@dataclass(frozen=True)
class TableLabels:
    """The labels of a pair, whose `row` is that of its image in the table."""

    table: ShapeTable
    canvas: Canvas

    def __call__(self, files: Files, pair: Pair, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        where, (height, width) = files.where(pair.labels), self.table.sizes[pair.row].tolist()
        if height and (height, width) != size:
            stated = np.broadcast_to(np.uint8(0), (height, width))
            check_one_size(np.broadcast_to(np.uint8(0), (*size, 3)), stated, files.where(pair.image), f"in {where}")
        return self.canvas.draw(self.table.of(pair.row), size, f"{where} ({pair.name})")


def _check_inside(drawing: Drawing, size: tuple[int, int], where: str) -> None:
    starts = (np.cumsum(drawing.counts) - drawing.counts)[drawing.counts > 0]
    low, high = np.minimum.reduceat(drawing.points, starts), np.maximum.reduceat(drawing.points, starts)
    inside = ((low < (size[1], size[0])) & (high > 0)).all(1)  # a NaN is outside too
    if not inside.all():
        k = int(np.flatnonzero(~inside)[0])
        (left, top), (right, bottom) = low[k].tolist(), high[k].tolist()
        raise FaultyDataError(
            f"{where} has a shape outside of its image of {size[1]}x{size[0]} pixels: x from {left:g} to {right:g}, "
            f"y from {top:g} to {bottom:g}. Mend or remove it, or give the image that it was drawn on."
        )


def _runs(texts: list[bytes], size: tuple[int, int], where: str) -> list[npt.NDArray[np.int64]]:
    try:
        masks = decode_runs(texts)
        for counts in masks:
            if counts.min() < 0 or counts.sum() != size[0] * size[1]:
                raise ValueError(f"its runs are {counts.sum()} pixels, and its image has {size[0] * size[1]}")
    except ValueError as error:
        raise FaultyDataError(f"{where} has a damaged mask: {error}. Export it again, or remove it.") from None
    return masks


def read_json(files: Files, path: str) -> Any:
    """The content of a JSON file; an error names it."""
    try:
        return json.loads(files.read(path))
    except (ValueError, RecursionError) as error:
        raise FaultyDataError(
            f"{files.where(path)} is no valid JSON ({error}). Export it again, or mend it there."
        ) from error


@contextmanager
def no_collection() -> Iterator[None]:
    """Without garbage collection, which looks through all objects again and again while millions are made."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def file_version(files: Files, path: str) -> tuple[str, int, int]:
    """Changes with the file, so that what was read from it can be kept."""
    stat = os.stat(files.root if isinstance(files, ZipFiles) else files.root / path)
    return files.where(path), stat.st_mtime_ns, stat.st_size
