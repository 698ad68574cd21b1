"""Fills polygons and run-length masks: a pixel belongs to a polygon where its centre lies inside.

Images are painted column by column, as COCO counts runs, so that polygons and masks are the same thing: spans of a
flat array, position x * height + y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Points = npt.NDArray[np.floating]  # [n, 2], x and y; pixel (0, 0) reaches from 0 to 1


class Spans(NamedTuple):
    """Positions [start, end) of shapes, in the order of the shapes."""

    shape: Ints
    start: Ints
    end: Ints


def polygon_spans(polygons: Sequence[Points], shapes: Sequence[int], size: tuple[int, int]) -> Spans:
    """Polygons by the even-odd rule, cut at the borders; `shapes` are their numbers, rising."""
    height, width = size
    points = np.concatenate(polygons).astype(np.float64)
    ends = np.cumsum([len(one) for one in polygons])
    following = np.arange(1, len(points) + 1)
    following[ends - 1] = np.concatenate([[0], ends[:-1]])  # a polygon is closed
    shape = np.repeat(np.asarray(shapes, np.int64), np.diff(ends, prepend=0))
    other = points[following]
    swap = points[:, 0] > other[:, 0]
    left, right = np.where(swap[:, None], other, points), np.where(swap[:, None], points, other)
    # Columns whose centre, c + 0.5, is in [left x, right x).
    first = np.ceil(left[:, 0] - 0.5).clip(0, width).astype(np.int64)
    count = np.ceil(right[:, 0] - 0.5).clip(0, width).astype(np.int64) - first
    edge = np.repeat(np.arange(len(points)), count)
    column = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
    run = right[:, 0] - left[:, 0]
    slope = (right[:, 1] - left[:, 1]) / np.where(run > 0, run, 1)
    y = left[edge, 1] + (column + 0.5 - left[edge, 0]) * slope[edge]
    row = np.ceil(y - 0.5).clip(0, height).astype(np.int64)  # the first row whose centre is not above the edge
    # Each column of a polygon is crossed an even number of times: in, out, in, out.
    key = np.sort((shape[edge] * width + column) * (height + 1) + row)
    crossed, row = np.divmod(key, height + 1)
    of_shape, column = np.divmod(crossed, width)
    position = column * height + row
    return Spans(of_shape[::2], position[::2], position[1::2])


def run_spans(counts: Ints, shape: int) -> Spans:
    """COCO's runs: so many pixels outside, so many inside, and so on."""
    ends = np.cumsum(counts)
    end = ends[1::2]
    return Spans(np.full(len(end), shape), ends[: 2 * len(end) : 2], end)


def paint(
    spans: Sequence[Spans], labels: npt.NDArray[np.uint8], size: tuple[int, int], below: int, smaller_on_top: bool
) -> npt.NDArray[np.uint8]:
    """Labels of all pixels, [H, W]: the shapes in their order, or the smaller ones last, over `below`."""
    height, width = size
    flat = np.full(width * height, below, np.uint8)
    if spans:
        shape, start, end = (np.concatenate(column) for column in zip(*spans, strict=True))
        rank = np.arange(len(labels))
        if smaller_on_top:
            area = np.bincount(shape, weights=end - start, minlength=len(labels))
            rank[np.argsort(-area, kind="stable")] = np.arange(len(labels))
        order = np.argsort(rank[shape], kind="stable")
        order = order[end[order] > start[order]]
        rows = zip(start[order].tolist(), end[order].tolist(), labels[shape[order]].tolist(), strict=True)
        for first, last, label in rows:
            flat[first:last] = label
    return np.asarray(cv2.transpose(flat.reshape(width, height)), np.uint8)


def mask_runs(mask: npt.NDArray[np.bool_]) -> Ints:
    """COCO's runs of a mask [H, W], column by column."""
    flat = np.concatenate([[False], mask.T.ravel(), [not mask[-1, -1]]])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(changes, prepend=0)


def encode_runs(counts: Ints) -> bytes:
    """COCO's compressed runs: differences to the last but one, in digits of 5 bits, the lowest first."""
    rest = counts.astype(np.int64)
    rest[3:] -= counts[1:-2]
    digits, used = [], [np.ones(len(rest), bool)]
    while used[-1].any():
        digit = rest & 0x1F
        rest = rest >> 5
        more = np.where(digit & 0x10, rest != -1, rest != 0)
        digits.append(digit + 0x20 * more + 48)
        used.append(used[-1] & more)
    return np.stack(digits, 1)[np.stack(used[:-1], 1)].astype(np.uint8).tobytes() if len(counts) else b""


def decode_runs(text: bytes) -> Ints:
    """The runs that `encode_runs` was given."""
    code = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    ends = (code & 0x20) == 0
    if not len(code) or code.min() < 0 or code.max() > 63 or not ends[-1]:
        raise ValueError("its runs are cut off or no runs of COCO")
    starts = np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])
    length = np.diff(np.append(starts, len(code)))
    place = np.arange(len(code)) - np.repeat(starts, length)
    counts = np.add.reduceat((code & 0x1F) << (5 * place), starts)
    counts -= np.where(code[ends] & 0x10, np.int64(1) << (5 * length), 0)
    for first in (1, 2):
        counts[first::2] = np.cumsum(counts[first::2])
    return counts
