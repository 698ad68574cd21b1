"""Shapes of many images in a few arrays, which worker processes share, and drawn when an image is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data.class_list import NO_CLASS, ClassList
from cacseg.data.label_map import IGNORE
from cacseg.data.layout import Pair, Rules
from cacseg.data.sample import FaultyDataError, check_one_size
from cacseg.data.spans import Ints, Points, Spans, decode_runs, paint, polygon_spans, run_spans
from cacseg.runtime.colours import background_index
from cacseg.runtime.files import Files

FAR = 1e6  # no coordinate is larger; 32 bits hold these to 1/16 pixel
LARGEST = 2**31 - 1  # height or width that a file may state


class Shape(NamedTuple):
    """A polygon or a mask of COCO's runs, and the place of its class in a list of names."""

    label: int
    polygon: Points | None
    runs: bytes = b""
    continues: bool = False  # a further part of the annotation before


class ImageShapes(NamedTuple):
    """Of one image, with the size that the file states, or 0, 0."""

    size: tuple[int, int]
    shapes: list[Shape]


class Drawing(NamedTuple):
    """The shapes of one image: shape k has `counts[k]` of the points, or it is a mask."""

    labels: npt.NDArray[np.integer]  # [shapes], a place in a list of names
    points: Points
    counts: Ints
    masks: dict[int, bytes]  # shape -> COCO's compressed runs
    annotation: Ints  # [shapes], from 0; several shapes may be parts of one


@dataclass(frozen=True)
class ShapeTable:
    """The shapes of many images; a shape has points or runs. Polygons without an area are left out."""

    sizes: npt.NDArray[np.int32]  # [images, 2], height and width
    starts: Ints  # [images + 1], the first shape of each
    labels: npt.NDArray[np.uint16]  # [shapes]
    annotations: npt.NDArray[np.int32]  # [shapes], a number that its parts share
    points: npt.NDArray[np.float32]  # [n, 2]
    point_starts: Ints  # [shapes + 1]
    runs: bytes
    run_starts: Ints  # [shapes + 1]
    flat: tuple[int, ...]  # the image of each polygon that was left out

    @classmethod
    def pack(cls, images: Sequence[ImageShapes]) -> ShapeTable:
        shapes = [shape for image in images for shape in image.shapes]
        of_image = np.repeat(np.arange(len(images)), [len(image.shapes) for image in images])
        polygons = [shape.polygon for shape in shapes if shape.polygon is not None]
        with np.errstate(over="ignore"):  # infinite then, which drawing refuses
            points = np.concatenate([np.zeros((0, 2)), *polygons], dtype=np.float32, casting="same_kind")
        counts = np.array([0 if shape.polygon is None else len(shape.polygon) for shape in shapes], np.int64)
        is_mask = np.array([shape.polygon is None for shape in shapes], bool)
        kept = is_mask | _have_area(points, counts)
        annotations = np.cumsum([not shape.continues for shape in shapes], dtype=np.int32)
        return cls(
            np.array([image.size for image in images], np.int32).reshape(-1, 2),
            np.concatenate([[0], np.cumsum(np.bincount(of_image[kept], minlength=len(images)))]),
            np.array([shape.label for shape in shapes], np.uint16)[kept],
            annotations[kept],
            points[np.repeat(kept, counts)],
            np.concatenate([[0], np.cumsum(counts[kept])]),
            b"".join(shape.runs for shape in shapes),
            np.concatenate([[0], np.cumsum(np.array([len(shape.runs) for shape in shapes], np.int64)[kept])]),
            tuple(of_image[~kept].tolist()),
        )

    def of(self, row: int) -> Drawing:
        first, last = self.starts[row : row + 2].tolist()
        points, runs = self.point_starts[first : last + 1], self.run_starts[first : last + 1].tolist()
        masks = {k: self.runs[runs[k] : runs[k + 1]] for k in range(last - first) if runs[k] < runs[k + 1]}
        changes = np.diff(self.annotations[first:last], prepend=self.annotations[first:last][:1]) != 0
        return Drawing(
            self.labels[first:last],
            self.points[points[0] : points[-1]],
            np.diff(points),
            masks,
            np.cumsum(changes),
        )

    def notes(self, names: Sequence[str]) -> list[str]:
        """What is worth knowing, of images of these names."""
        if not self.flat:
            return []
        return [f"{len(self.flat)} polygons have no area and are left out, the first of {names[self.flat[0]]}."]


def _have_area(points: Points, counts: Ints) -> npt.NDArray[np.bool_]:
    """Of each polygon whether its points are not all on one line: a triangle from the first one has an area."""
    found = np.zeros(len(counts), bool)
    starts = np.cumsum(counts) - counts
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is not equal to 0 either
        x, y = (points - points[np.repeat(starts, counts)]).T
        cross = x[:-1] * y[1:] - x[1:] * y[:-1]
    triangles = np.concatenate([cross != 0, [False]])[: len(points)]
    triangles[(starts + counts - 1)[counts > 0]] = False  # from the last of one to the first of the next
    if len(points):
        found[counts > 0] = np.logical_or.reduceat(triangles, starts[counts > 0])
    return found


@dataclass(frozen=True)
class Canvas:
    """Draws shapes by the rules. `values[k]` is the label of the k-th name that shapes refer to."""

    values: npt.NDArray[np.uint8]
    below: int
    smaller_on_top: bool

    @classmethod
    def make(cls, names: Iterable[str], classes: ClassList, rules: Rules) -> Canvas:
        index = {name: label for label, name in enumerate(classes.names)} | dict.fromkeys(NO_CLASS, IGNORE)
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
        # The parts of an annotation are painted as one.
        spans = [one._replace(shape=drawing.annotation[one.shape]) for one in spans]
        labels = drawing.labels[np.flatnonzero(np.diff(drawing.annotation, prepend=-1))]
        return paint(spans, self.values[labels], size, self.below, self.smaller_on_top)


@dataclass(frozen=True)
class TableLabels:
    """The labels of a pair, whose `row` is that of its image in the table."""

    table: ShapeTable
    canvas: Canvas
    shares: bool = False  # whether coordinates are shares of width and height

    def __call__(self, files: Files, pair: Pair, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        where, (height, width) = files.where(pair.labels), self.table.sizes[pair.row].tolist()
        if height and (height, width) != size:
            stated = np.broadcast_to(np.uint8(0), (height, width))
            check_one_size(np.broadcast_to(np.uint8(0), (*size, 3)), stated, files.where(pair.image), f"in {where}")
        drawing = self.table.of(pair.row)
        if self.shares:
            drawing = drawing._replace(points=drawing.points.astype(np.float64) * (size[1], size[0]))
        return self.canvas.draw(drawing, size, f"{where} ({pair.name})")


def stated_size(height: Any, width: Any) -> tuple[int, int]:
    """The size of an image as a file states it; 0, 0 where it does not."""
    try:
        size = int(height or 0), int(width or 0)
    except (TypeError, ValueError, OverflowError):
        size = -1, -1
    if not 0 <= min(size) <= max(size) <= LARGEST:
        raise FaultyDataError(
            f"states a size of {width!r:.40}x{height!r:.40} pixels. Write the image's, or take it out"
        )
    return size if all(size) else (0, 0)


def _check_inside(drawing: Drawing, size: tuple[int, int], where: str) -> None:
    starts = (np.cumsum(drawing.counts) - drawing.counts)[drawing.counts > 0]
    low, high = np.minimum.reduceat(drawing.points, starts), np.maximum.reduceat(drawing.points, starts)
    # What is not finite fails one of these.
    inside = ((low < (size[1], size[0])) & (high > 0) & (low >= -FAR) & (high <= FAR)).all(1)
    if not inside.all():
        k = int(np.flatnonzero(~inside)[0])
        (left, top), (right, bottom) = low[k].tolist(), high[k].tolist()
        raise FaultyDataError(
            f"{where} has a shape outside of its image of {size[1]}x{size[0]} pixels: x from {left:g} to {right:g}, "
            f"y from {top:g} to {bottom:g}. Mend or remove it, or give the image that it was drawn on."
        )


def _runs(texts: list[bytes], size: tuple[int, int], where: str) -> list[Ints]:
    pixels = size[0] * size[1]
    try:
        masks = decode_runs(texts)
        for counts in masks:
            if counts.min() < 0 or counts.max() > pixels or counts.sum() != pixels:
                raise ValueError(f"its runs are {counts.sum()} pixels, and its image has {pixels}")
    except ValueError as error:
        raise FaultyDataError(f"{where} has a damaged mask: {error}. Export it again, or remove it.") from None
    return masks
