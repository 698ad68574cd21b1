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


def polygon_spans(points: Points, counts: Ints, size: tuple[int, int]) -> Spans:
    """Polygons by the even-odd rule, cut at the borders. Polygon k has `counts[k]` of the points, or none."""
    height, width = size
    points = points.astype(np.float64)
    ends = np.cumsum(counts)[counts > 0]
    following = np.arange(1, len(points) + 1)
    following[ends - 1] = np.concatenate([[0], ends[:-1]])  # a polygon is closed
    shape = np.repeat(np.arange(len(counts)), counts)
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
    y = (left[:, 1] - (left[:, 0] - 0.5) * slope)[edge] + column * slope[edge]
    row = np.ceil(y - 0.5).clip(0, height).astype(np.int64)  # the first row whose centre is not above the edge
    # Each column of a polygon is crossed an even number of times: in, out, in, out.
    pixels = height * width + 1
    crossings = np.sort(shape[edge] * pixels + column * height + row)
    of_shape = crossings[::2] // pixels
    return Spans(of_shape, crossings[::2] - of_shape * pixels, crossings[1::2] - of_shape * pixels)


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
    if not spans:
        return np.full(size, below, np.uint8)
    shape, start, end = (np.concatenate(column) for column in zip(*spans, strict=True))
    ranked = np.arange(len(labels))  # the shapes from the lowest to the uppermost
    if smaller_on_top:
        ranked = np.argsort(-np.bincount(shape, weights=end - start, minlength=len(labels)), kind="stable")
    rank = np.empty(len(labels), np.int32)
    rank[ranked] = np.arange(1, len(labels) + 1)
    is_border = np.zeros(width * height + 1, bool)
    is_border[start] = is_border[end] = is_border[[0, -1]] = True
    borders = np.flatnonzero(is_border)
    place = np.empty(width * height + 1, np.int32)  # read at borders alone
    place[borders] = np.arange(len(borders))
    first, last = place[start], place[end]
    top = _largest(first[first < last], last[first < last], rank[shape[first < last]], len(borders) - 1)
    runs = np.concatenate([[np.uint8(below)], labels[ranked]])[top]
    return np.asarray(cv2.transpose(np.repeat(runs, np.diff(borders)).reshape(width, height)), np.uint8)


def _largest(first: Ints, last: Ints, value: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    """For each place the largest value of the ranges [first, last) that it is in, 0 where it is in none.

    A range is two ranges of a power of two in length, which may overlap; each of these is two of half the length.
    """
    if not len(first):
        return np.zeros(count, np.int32)
    power = np.frexp(last - first)[1] - 1  # the largest whose 2**power is not longer
    level = np.zeros((int(power.max()) + 1, count), np.int32)
    for begin in (first, last - (1 << power)):
        np.maximum.at(level.reshape(-1), power * count + begin, value)
    for k in range(len(level) - 1, 0, -1):
        half = 1 << (k - 1)
        np.maximum(level[k - 1], level[k], out=level[k - 1])
        np.maximum(level[k - 1][half:], level[k][:-half], out=level[k - 1][half:])
    return level[0]


def mask_runs(mask: npt.NDArray[np.bool_]) -> Ints:
    """COCO's runs of a mask [H, W], column by column."""
    flat = np.concatenate([[False], mask.T.ravel(), [not mask[-1, -1]]])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(changes, prepend=0)


def part_runs(part: npt.NDArray[np.bool_], left: int, top: int, size: tuple[int, int]) -> Ints:
    """The runs of a mask of a part of an image, of which nothing is made: its stated size may be any."""
    column, edge = np.nonzero(np.diff(part.T, axis=1, prepend=False, append=False))  # in and out in turns
    positions = (left + column) * size[0] + top + edge
    return np.diff(np.concatenate([[0], positions, [size[0] * size[1]]]))


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


def decode_runs(texts: Sequence[bytes]) -> list[Ints]:
    """The runs that `encode_runs` was given, of several masks at once."""
    code = np.subtract(np.frombuffer(b"".join(texts), np.uint8), 48, dtype=np.int64)
    ends = np.flatnonzero(code & 0x20 == 0) + 1  # of numbers
    stops = np.searchsorted(ends, np.cumsum([len(text) for text in texts]))
    if not all(texts) or code.min() < 0 or code.max() > 63 or ends[-1:] != len(code):
        raise ValueError("its runs are cut off or no runs of COCO")
    starts = np.concatenate([[0], ends[:-1]])
    length = ends - starts
    digit = (code & 0x1F) << 5 * (np.arange(len(code)) - np.repeat(starts, length))
    counts = np.add.reduceat(digit, starts)
    counts -= (code[ends - 1] & 0x10) << (5 * length - 4)  # the highest bit is the sign
    masks = np.split(counts, stops[:-1] + 1)
    for mask in masks:
        for first in (1, 2):
            mask[first::2] = np.cumsum(mask[first::2])
    return masks
