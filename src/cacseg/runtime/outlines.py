"""Outlines of the regions of a mask, with their holes, exact to the pixel."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.runtime.bridges import Bridge, join_rings, simplify_ring
from cacseg.runtime.opencv import cv2

Points = npt.NDArray[np.integer]  # [n, 2], x and y of corners; pixel (0, 0) reaches from 0 to 1


class Region(NamedTuple):
    """Pixels of one label that are connected by their sides."""

    label: int
    area: int  # in pixels
    rings: list[Points]  # the outer one, then those of the holes, turning the other way; none touches itself
    bridges: list[Bridge]  # of each hole

    def simplified(self, simplify: float) -> list[Points]:
        """The rings, each up to so many pixels off the edges."""
        return [simplify_ring(ring, simplify) for ring in self.rings]

    def path(self, simplify: float = 0.0) -> Points:
        """One closed path for tools that know no holes: bridges without width lead to them.

        By the even-odd rule it has the pixels of the region; a bridge lies inside of the region or on its edge.
        """
        return join_rings(self.rings, self.bridges, simplify)


def outlines(labels: npt.NDArray[np.uint8], simplify: float = 0.0) -> list[tuple[int, Points]]:
    """Label and path [n, 2] of each region, the large ones first; holes are cut out."""
    return [(one.label, one.path(simplify)) for one in find_regions(labels)]


def find_regions(labels: npt.NDArray[np.uint8], skip: Collection[int] = ()) -> list[Region]:
    """The regions of all labels but those of `skip`, the large ones first.

    The work grows with the pixels and the points, not with regions times pixels or labels times pixels. (OpenCV's own
    hierarchy of rings takes time that grows with the square of their number, so holes find their regions here.)
    """
    if cv2 is None:
        raise ModuleNotFoundError("outlines need OpenCV: pip install opencv-python-headless", name="cv2")
    contours, _ = cv2.findContours(_grid(labels, skip), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    if not contours:
        return []
    traced: Points = (np.concatenate(contours)[:, 0].astype(np.int64) + 2) // 3
    corners = _corners(traced, np.array([len(one) for one in contours]))
    points, counts = _without_pinches(*corners, labels.shape[1] + 1)
    points = _from_the_left(points, counts)
    ends = np.cumsum(counts)
    starts, after = ends - counts, points[_following(counts)]
    areas = np.add.reduceat(points[:, 1] * after[:, 0] - points[:, 0] * after[:, 1], starts) // 2
    owner = np.arange(len(counts))
    holes = np.flatnonzero(areas < 0)
    edges, steps = _left_of(points, after, points[starts[holes]]) if len(holes) else (holes, holes)
    owner[holes] = np.searchsorted(starts, edges, side="right") - 1
    bridges = np.stack([owner[holes], edges - starts[owner[holes]], steps], 1).tolist()
    while (areas[owner] < 0).any():  # a hole that is bridged to a hole
        owner = owner[owner]
    np.add.at(areas, owner[holes], areas[holes])
    x, y = points[starts].T
    values = labels[np.minimum(y, labels.shape[0] - 1), np.minimum(x, labels.shape[1] - 1)].tolist()  # of outer rings
    found: dict[int, Region] = {}
    place = [0] * len(counts)  # of a ring in its region
    rings = [points[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    for k in np.flatnonzero(owner == np.arange(len(counts))).tolist():
        found[k] = Region(values[k], int(areas[k]), [rings[k]], [])
    for k, root in zip(holes.tolist(), owner[holes].tolist(), strict=True):
        place[k] = len(found[root].rings)
        found[root].rings.append(rings[k])
    for root, (ring, corner, step) in zip(owner[holes].tolist(), bridges, strict=True):
        found[root].bridges.append(Bridge(place[ring], corner, step))
    return sorted(found.values(), key=lambda one: -one.area)


def _grid(labels: npt.NDArray[np.uint8], skip: Collection[int]) -> npt.NDArray[np.uint8]:
    """Three by three for each pixel: two by two of its own, so that a pixel has two sides, and gaps between regions."""
    wanted = np.ones(256, bool)
    wanted[list(skip)] = False
    inside = wanted[labels]
    beside = (labels[:, 1:] == labels[:, :-1]) & inside[:, 1:]
    below = (labels[1:] == labels[:-1]) & inside[1:]
    grid = np.zeros((3 * labels.shape[0] - 1, 3 * labels.shape[1] - 1), np.uint8)
    for k in (0, 1):
        for j in (0, 1):
            grid[k::3, j::3] = inside
        grid[k::3, 2::3] = beside
        grid[2::3, k::3] = below
    grid[2::3, 2::3] = beside[1:] & beside[:-1] & below[:, 1:]
    return grid


def _following(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """For each point of rings of so many points the place of the one after it; a ring is closed."""
    ends = np.cumsum(counts)
    places = np.arange(1, int(ends[-1]) + 1)
    places[ends - 1] = ends - counts
    return places


def _corners(points: Points, counts: npt.NDArray[np.integer]) -> tuple[Points, npt.NDArray[np.integer]]:
    """Rings without points that repeat the one before and without those on a straight line."""
    following = _following(counts)
    ring = np.repeat(np.arange(len(counts)), counts)
    is_new = np.ones(len(points), bool)
    is_new[following] = (points != points[following]).any(1)
    points, ring = points[is_new], ring[is_new]
    following = _following(np.bincount(ring, minlength=len(counts)))
    step = points[following] - points
    before = np.empty_like(step)
    before[following] = step
    turns = before[:, 0] * step[:, 1] != before[:, 1] * step[:, 0]
    return points[turns], np.bincount(ring[turns], minlength=len(counts))


def _without_pinches(
    points: Points, counts: npt.NDArray[np.integer], width: int
) -> tuple[Points, npt.NDArray[np.integer]]:
    """A ring that touches itself, where two pixels of a region share a corner alone, as several that do not."""
    ring = np.repeat(np.arange(len(counts)), counts)
    place = points[:, 1] * width + points[:, 0]
    order = np.lexsort((place, ring))
    twice = (ring[order][1:] == ring[order][:-1]) & (place[order][1:] == place[order][:-1])
    pinched = np.unique(ring[order][1:][twice])
    if not len(pinched):
        return points, counts
    ends = np.cumsum(counts)
    parts = [
        part
        for start, end in zip((ends - counts)[pinched].tolist(), ends[pinched].tolist(), strict=True)
        for part in _simple_parts(points[start:end])
    ]
    whole = ~np.isin(np.arange(len(counts)), pinched)
    kept = np.concatenate([points[whole[ring]], *parts])
    return kept, np.concatenate([counts[whole], [len(part) for part in parts]])


def _simple_parts(ring: Points) -> list[Points]:
    found: list[Points] = []
    path: list[tuple[int, int]] = []
    at: dict[tuple[int, int], int] = {}
    for x, y in ring.tolist():
        if (start := at.get((x, y))) is not None:
            found.append(np.array(path[start:], ring.dtype))
            for point in path[start:]:
                del at[point]
            del path[start:]
        at[x, y] = len(path)
        path.append((x, y))
    return [*found, np.array(path, ring.dtype)]


def _from_the_left(points: Points, counts: npt.NDArray[np.integer]) -> Points:
    """Each ring from its leftmost point on, of several the upper one."""
    starts = np.cumsum(counts) - counts
    order = np.lexsort((points[:, 1], points[:, 0], np.repeat(np.arange(len(counts)), counts)))
    shift = order[starts] - starts
    place = np.arange(len(points)) - np.repeat(starts, counts)
    return points[np.repeat(starts, counts) + (place + np.repeat(shift, counts)) % np.repeat(counts, counts)]


def _left_of(points: Points, after: Points, first: Points) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """Where the row of pixels left of each `first` point begins: the edge, and the step down from its start.

    An edge is the place of its first point; those that go down have their region to the right.
    """
    down = np.flatnonzero(after[:, 1] > points[:, 1])
    length = after[down, 1] - points[down, 1]
    edge = np.repeat(down, length)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(length) - length, length)
    width = int(points[:, 0].max()) + 1
    place = (points[edge, 1] + step) * width + points[edge, 0]
    order = np.argsort(place)
    found = order[np.searchsorted(place[order], first[:, 1] * width + first[:, 0]) - 1]
    return edge[found], step[found]
