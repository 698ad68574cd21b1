"""Shapes of many images in a few arrays, which worker processes share, and drawn when an image is read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data.class_list import NO_CLASS, ClassList, background_index
from cacseg.data.label_map import IGNORE
from cacseg.data.layout import Pair, Rules
from cacseg.data.sample import FaultyDataError, check_one_size
from cacseg.data.spans import Points, Spans, decode_runs, paint, polygon_spans, run_spans
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


@dataclass(frozen=True)
class ShapeTable:
    """Shape k of all is `content[offsets[k] : offsets[k + 1]]`: float32 points, or COCO's compressed runs."""

    sizes: npt.NDArray[np.int32]  # [images, 2], height and width
    starts: npt.NDArray[np.int64]  # [images + 1], the first shape of each
    labels: npt.NDArray[np.uint16]  # [shapes], a place in a list of names
    is_mask: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]
    content: npt.NDArray[np.uint8]

    @classmethod
    def pack(cls, images: Sequence[ImageShapes]) -> ShapeTable:
        shapes = [shape for image in images for shape in image.shapes]
        parts = [one.runs if one.polygon is None else one.polygon.astype(np.float32).tobytes() for one in shapes]
        return cls(
            np.array([image.size for image in images], np.int32).reshape(-1, 2),
            np.cumsum([0, *(len(image.shapes) for image in images)]),
            np.array([shape.label for shape in shapes], np.uint16),
            np.array([shape.polygon is None for shape in shapes], bool),
            np.cumsum([0, *map(len, parts)]),
            np.frombuffer(b"".join(parts), np.uint8),
        )

    def of(self, row: int) -> tuple[npt.NDArray[np.uint16], list[Points | bytes]]:
        """Labels and shapes of an image."""
        first, last = int(self.starts[row]), int(self.starts[row + 1])
        shapes: list[Points | bytes] = []
        for k in range(first, last):
            content = self.content[self.offsets[k] : self.offsets[k + 1]].tobytes()
            shapes.append(content if self.is_mask[k] else np.frombuffer(content, np.float32).reshape(-1, 2))
        return self.labels[first:last], shapes


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

    def draw(
        self, labels: npt.NDArray[np.integer], shapes: Sequence[Points | bytes], size: tuple[int, int], where: str
    ) -> npt.NDArray[np.uint8]:
        spans: list[Spans] = []
        polygons = {k: shape for k, shape in enumerate(shapes) if not isinstance(shape, bytes)}
        if polygons:
            _check_inside(list(polygons.values()), size, where)
            spans.append(polygon_spans(list(polygons.values()), list(polygons), size))
        for k, shape in enumerate(shapes):
            if isinstance(shape, bytes):
                spans.append(run_spans(_runs(shape, size, where), k))
        return paint(spans, self.values[labels], size, self.below, self.smaller_on_top)


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
        labels, shapes = self.table.of(pair.row)
        return self.canvas.draw(labels, shapes, size, f"{where} ({pair.name})")


def _check_inside(polygons: list[Points], size: tuple[int, int], where: str) -> None:
    starts = np.cumsum([0, *(len(one) for one in polygons[:-1])])
    points = np.concatenate(polygons)
    low, high = np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)
    inside = ((low < (size[1], size[0])) & (high > 0)).all(1)  # numbers that are none are outside too
    if not inside.all():
        k = int(np.flatnonzero(~inside)[0])
        (left, top), (right, bottom) = low[k].tolist(), high[k].tolist()
        raise FaultyDataError(
            f"{where} has a shape outside of its image of {size[1]}x{size[0]} pixels: x from {left:g} to {right:g}, "
            f"y from {top:g} to {bottom:g}. Mend or remove it, or give the image that it was drawn on."
        )


def _runs(text: bytes, size: tuple[int, int], where: str) -> npt.NDArray[np.int64]:
    try:
        counts = decode_runs(text)
        if counts.min() < 0 or counts.sum() != size[0] * size[1]:
            raise ValueError(f"its runs are {counts.sum()} pixels, and its image has {size[0] * size[1]}")
    except ValueError as error:
        raise FaultyDataError(f"{where} has a damaged mask: {error}. Export it again, or remove it.") from None
    return counts


def read_json(files: Files, path: str) -> Any:
    """The content of a JSON file; an error names it."""
    try:
        return json.loads(files.read(path))
    except (ValueError, RecursionError) as error:
        raise FaultyDataError(
            f"{files.where(path)} is no valid JSON ({error}). Export it again, or mend it there."
        ) from error


def file_version(files: Files, path: str) -> tuple[str, int, int]:
    """Changes with the file, so that what was read from it can be kept."""
    stat = os.stat(files.root if isinstance(files, ZipFiles) else files.root / path)
    return files.where(path), stat.st_mtime_ns, stat.st_size
