"""GeoJSON (RFC 7946) of predicted masks: a polygon with its holes for each region."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from cacseg.runtime.outlines import Region
from cacseg.runtime.places import Place


def geojson_lines(
    regions: Iterable[tuple[Sequence[Region], tuple[int, int]]], names: Sequence[str], place: Place, simplify: float
) -> Iterator[str]:
    """The lines of a file, one for each region, of parts of an image with the x and y where they begin."""
    head: dict[str, Any] = {"type": "FeatureCollection", "coordinates": place.kind}
    if place.crs is not None:  # of GeoJSON before RFC 7946, which GDAL and QGIS read
        head["crs"] = {"type": "name", "properties": {"name": place.crs}}
    yield json.dumps(head)[:-1] + ', "features": [\n'
    comma = ""
    for part, start in regions:
        for feature in _features(part, start, names, place, simplify):
            yield comma + json.dumps(feature)
            comma = ",\n"
    yield "\n]}\n"


def _features(
    regions: Sequence[Region], start: tuple[int, int], names: Sequence[str], place: Place, simplify: float
) -> Iterator[dict[str, Any]]:
    """Features of RFC 7946: closed rings, the outer one against the clock where y points up, holes with it."""
    rings = [ring for one in regions for ring in one.simplified(simplify)]
    if not rings:
        return
    counts = np.array([len(ring) for ring in rings])
    points = np.concatenate(rings) + np.array(start)
    if place.transform is not None:
        points = place.transform(points.astype(np.float64)).round(place.digits)
    ends = np.cumsum(counts)
    after = np.roll(points, -1, 0)
    after[ends - 1] = points[ends - counts]
    base = points[0]  # as large as coordinates of maps are, products would lose digits
    (x, y), (next_x, next_y) = (points - base).T, (after - base).T
    turn = np.add.reduceat(x * next_y - next_x * y, ends - counts)  # outer rings must be above 0, holes below
    listed = points.tolist()
    first, k = 0, 0
    for one in regions:
        polygon = []
        for hole in range(len(one.rings)):
            ring = listed[first : first + int(counts[k])]
            if (turn[k] > 0) == bool(hole):
                ring.reverse()
            polygon.append([*ring, ring[0]])
            first, k = first + int(counts[k]), k + 1
        area: dict[str, float] = {"area_pixels": one.area}
        if place.square_metres is not None:
            area["area_square_metres"] = round(one.area * place.square_metres, 3)
        yield {
            "type": "Feature",
            "properties": {"class": names[one.label], "index": one.label, **area},
            "geometry": {"type": "Polygon", "coordinates": polygon},
        }
