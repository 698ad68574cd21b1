"""Simplifies the rings of a region and joins them into one path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.runtime.opencv import cv2

Points = npt.NDArray[np.integer]
_Path = list[list[int]]


class Bridge(NamedTuple):
    """From the first point of a hole straight to the left, to a point of another ring of the region."""

    ring: int
    corner: int  # of that ring, before the point
    step: int  # down from that corner to the point


def simplify_ring(ring: Points, simplify: float) -> Points:
    """A closed ring with fewer points; the whole one where nothing of it would be left."""
    if simplify <= 0 or len(ring) < 5:
        return ring
    near: Points = cv2.approxPolyDP(ring.astype(np.int32)[:, None], simplify, True)[:, 0]
    return near if len(near) > 2 else ring


def join_rings(rings: Sequence[Points], bridges: Sequence[Bridge], simplify: float) -> Points:
    """The outer ring and its holes as one closed path, by bridges that are passed there and back.

    What lies between the ends of bridges is simplified, so that both ways of a bridge are the same.
    """
    if len(rings) == 1:
        return simplify_ring(rings[0], simplify)
    hung: list[list[tuple[int, int, int]]] = [[] for _ in rings]  # corner, step and hole
    for hole, one in enumerate(bridges, 1):
        hung[one.ring].append((one.corner, one.step, hole))
    path: _Path = []
    stack = [_pieces(rings[0].tolist(), sorted(hung[0]), simplify)]
    while stack:  # not by recursion: holes may hang on holes a thousand times
        piece = next(stack[-1], None)
        if piece is None:
            stack.pop()
        elif isinstance(piece, int):
            stack.append(_pieces(rings[piece].tolist(), sorted(hung[piece]), simplify))
        else:
            path += piece
    found = np.array(path, np.int64)
    return found[(found != np.roll(found, 1, 0)).any(1)]


def _pieces(ring: _Path, hung: Sequence[tuple[int, int, int]], simplify: float) -> Iterator[_Path | int]:
    """The parts of a ring, from its first point back to it, and between them the holes that hang there."""
    last, begin = ring[0], 0
    for corner, step, hole in hung:
        point = [ring[corner][0], ring[corner][1] + step]
        yield _simplify_arc([last, *ring[begin + 1 : corner + 1], point], simplify)
        yield hole
        last, begin = point, corner
        yield [last]
    yield _simplify_arc([last, *ring[begin + 1 :], ring[0]], simplify)


def _simplify_arc(points: _Path, simplify: float) -> _Path:
    """With the first and the last point kept; where they are one, the whole arc if nothing of it would be left."""
    if simplify <= 0 or len(points) < 3:
        return points
    if points[0] != points[-1]:
        kept: _Path = cv2.approxPolyDP(np.array(points, np.int32)[:, None], simplify, False)[:, 0].tolist()
        return kept
    if len(points) < 6:
        return points
    x, y = points[0]
    far = max(range(len(points)), key=lambda k: (points[k][0] - x) ** 2 + (points[k][1] - y) ** 2)
    near = _simplify_arc(points[: far + 1], simplify) + _simplify_arc(points[far:], simplify)
    return near if len(near) > 4 else points
