"""Where an image lies on the ground: from a GeoTIFF, or a world file beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from cacseg.runtime.inputs import TIFF_SUFFIXES

Coordinates = Literal["wgs84", "map", "pixels"]
Floats = npt.NDArray[np.float64]
GEO_TAGS = (33550, 33922, 34264)  # of TIFF: the size of a pixel, tie points, a matrix


class Place(NamedTuple):
    """How points [n, 2] of an image, x to the right and y down, become the coordinates that are written."""

    transform: Callable[[Floats], Floats] | None = None  # None: they stay as they are
    kind: str = "pixels of the image, x to the right and y down"
    digits: int = 2
    crs: str | None = None  # where it is not longitude and latitude of WGS 84
    square_metres: float | None = None  # of a pixel, where the map has metres or feet


def check_coordinates(coordinates: str) -> None:
    if coordinates not in get_args(Coordinates):
        raise ValueError(f"coordinates are {', '.join(get_args(Coordinates))}; got {coordinates!r}.")


def place_of(path: Path, coordinates: Coordinates) -> Place:
    """The place of an image file; pixels where neither its tags nor a file beside it give one."""
    if coordinates == "pixels" or not _is_placed(path):
        return Place()
    try:
        import rasterio
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the map coordinates of {path} need rasterio, which is not installed: pip install rasterio, or leave them "
            "out with --coordinates pixels",
            name=error.name,
        ) from error
    with rasterio.open(path) as dataset:
        return place_of_dataset(dataset, coordinates)


def place_of_dataset(dataset: Any, coordinates: Coordinates) -> Place:
    """The place of an open file of rasterio: by its ground control points, else by its transform."""
    from rasterio.transform import GCPTransformer
    from rasterio.warp import transform as warp

    gcps, crs = dataset.gcps
    to_map: Callable[[Floats], Floats]
    square_metres = None
    if coordinates == "pixels" or (not gcps and dataset.transform.is_identity):
        return Place()
    if gcps:

        def to_map(points: Floats) -> Floats:
            with GCPTransformer(gcps) as found:
                return np.stack(found.xy(points[:, 1], points[:, 0], offset="ul"), 1)
    else:
        matrix, crs = dataset.transform, dataset.crs
        factors = np.array([[matrix.a, matrix.d], [matrix.b, matrix.e]])

        def to_map(points: Floats) -> Floats:
            return points @ factors + (matrix.c, matrix.f)

        if crs is not None and crs.is_projected:
            square_metres = abs(matrix.determinant) * crs.linear_units_factor[1] ** 2
    if crs is None:
        return Place(to_map, "map coordinates of an unknown system", 6)
    if coordinates == "map":
        authority = crs.to_authority()
        named = f"urn:ogc:def:crs:{authority[0]}::{authority[1]}" if authority else crs.to_string()
        return Place(
            to_map, f"map coordinates of {crs.to_string()}", 9 if crs.is_geographic else 4, named, square_metres
        )

    def to_wgs84(points: Floats) -> Floats:
        x, y = to_map(points).T
        found = np.stack(warp(crs, "EPSG:4326", x, y), 1)
        if not np.isfinite(found).all():
            raise ValueError(f"{dataset.name} reaches beyond the earth in {crs.to_string()}. Use --coordinates map.")
        return found

    return Place(to_wgs84, "longitude and latitude of WGS 84", 9, None, square_metres)


def _is_placed(path: Path) -> bool:
    suffix = path.suffix.lower()
    ends = (f"{suffix}w", f"{suffix[:2]}{suffix[-1:]}w", ".wld")
    beside = [path.with_suffix(end) for one in ends for end in (one, one.upper())]
    if any(one.is_file() for one in beside):
        return True
    notes = path.with_name(f"{path.name}.aux.xml")  # of GDAL, which keeps statistics there too
    if notes.is_file() and any(one in notes.read_bytes() for one in (b"<GeoTransform", b"<GCPList")):
        return True
    if suffix not in TIFF_SUFFIXES:
        return False
    try:
        with Image.open(path) as picture:
            tags = getattr(picture, "tag_v2", {})
            return any(tag in tags for tag in GEO_TAGS)
    except (OSError, SyntaxError, ValueError):  # of bands that rasterio reads, and Pillow does not
        return True
