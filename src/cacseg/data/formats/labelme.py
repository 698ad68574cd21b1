"""LabelMe: a JSON file of shapes beside each image."""

from __future__ import annotations

import base64
import binascii
import io
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cacseg.data.class_list import NO_CLASS, ClassList, of_names
from cacseg.data.label_map import identity_map
from cacseg.data.layout import ALL, Found, Layout, Listing, Pair, Rules, is_split, join, name_splits
from cacseg.data.sample import FaultyDataError
from cacseg.data.shapes import Canvas, ImageShapes, Shape, ShapeTable, TableLabels, read_json
from cacseg.data.spans import Points, encode_runs, mask_runs
from cacseg.runtime.decode import IMAGE_SUFFIXES
from cacseg.runtime.files import Files

WITHOUT_AREA = ("point", "points", "line", "linestrip")
LISTS = ("labels.txt", "classes.txt")  # what `labelme --labels` takes


class Labelled(NamedTuple):
    """One JSON file: the name and the path of its image, and its shapes, whose labels are places in a list of names."""

    path: str
    image: str
    shapes: ImageShapes


class LabelMeFiles(NamedTuple):
    """All of a data set."""

    names: tuple[str, ...]
    images: tuple[Labelled, ...]
    problems: tuple[tuple[str, str], ...]  # a path, and what is wrong with it
    skipped: tuple[str, ...]  # paths with shapes that have no area


def _is_labelme(files: Files, top: str) -> bool:
    for folder in (top, *(join(top, name) for name in files.folders(top))):
        listed = [name for name in files.names(folder) if name.endswith(".json")]
        for name in listed[:3]:
            content = files.read(join(folder, name))
            if b'"shapes"' in content and b'"imagePath"' in content:
                return True
    return False


def _splits(files: Files, top: str) -> dict[str, str]:
    named = [name for name in files.folders(top) if is_split(name)]
    return name_splits(named) if named else {ALL: ""}


@lru_cache(maxsize=2)  # one opening asks for classes and for images
def _read(files: Files, top: str) -> LabelMeFiles:
    below = files.below(top)
    there = set(below)
    stated = next((path for name in LISTS if (path := join(top, name)) in there), None)
    names: dict[str, int] = {}
    if stated is not None:
        lines = (line.strip() for line in files.read(stated).decode().splitlines())
        names = {name: k for k, name in enumerate(dict.fromkeys(filter(None, lines)))}
    images: list[Labelled] = []
    problems: list[tuple[str, str]] = []
    skipped = []
    for path in below:
        if not path.endswith(".json"):
            continue
        try:
            content = read_json(files, path)
            if not isinstance(content, dict) or "shapes" not in content:
                continue  # some other JSON
            image = _image_of(path, content, there)
            size = (int(content.get("imageHeight") or 0), int(content.get("imageWidth") or 0))
            shapes = []
            for one in content["shapes"]:
                name, kind = str(one["label"]), one.get("shape_type") or "polygon"
                if kind in WITHOUT_AREA:
                    skipped.append(path)
                    continue
                if name not in names and name != NO_CLASS and stated is not None:
                    raise FaultyDataError(
                        f"has the class {name!r}, which {stated} does not name. Add it there, or mend it"
                    )
                shapes.append(_shape(one, kind, names.setdefault(name, len(names)), size))
        except FaultyDataError as error:
            text = str(error)
            problems.append((path, text if files.where(path) in text else f"{files.where(path)} {text}."))
            continue
        except (KeyError, TypeError, ValueError, OSError) as error:
            problems.append(
                (path, f"{files.where(path)} has a shape that cannot be read ({error!r}). Save it in LabelMe again.")
            )
            continue
        if image is None:
            stated_image = content.get("imagePath")
            problems.append(
                (path, f"{files.where(path)} has no image: {stated_image} is not there. Add it, or remove both.")
            )
        else:
            images.append(Labelled(path, image, ImageShapes(size, shapes)))
    return LabelMeFiles(tuple(names), tuple(images), tuple(problems), tuple(skipped))


def _image_of(path: str, content: dict[str, Any], there: set[str]) -> str | None:
    """The image that the file names, else the one of its own name beside it."""
    folder, stem = path.rpartition("/")[0], path.removesuffix(".json")
    named = join(folder, str(content.get("imagePath", "")).replace("\\", "/").rpartition("/")[2])
    places = [named, *(stem + end for suffix in IMAGE_SUFFIXES for end in (suffix, suffix.upper()))]
    return next((place for place in places if place in there), None)


def _shape(one: dict[str, Any], kind: str, label: int, size: tuple[int, int]) -> Shape:
    points: Points = np.array(one["points"], np.float64).reshape(-1, 2)
    if kind == "rectangle" and len(points) == 2:
        (left, top), (right, bottom) = points
        points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    elif kind == "circle":
        (x, y), rim = points
        radius = math.dist((x, y), rim)
        # The polygon is nowhere further than 1/100 pixel from the circle.
        count = max(12, math.ceil(math.pi / math.acos(max(0.5, 1 - 0.01 / max(radius, 0.02)))))
        turn = 2 * np.pi * np.arange(count) / count
        points = np.stack([x + radius * np.cos(turn), y + radius * np.sin(turn)], 1)
    elif kind == "mask":
        return Shape(label, None, _mask_runs(one["mask"], points, size))
    elif kind not in ("polygon", "oriented_rectangle", "rectangle"):
        raise FaultyDataError(f"has a shape of an unknown kind, {kind!r}. Draw polygons, rectangles, circles or masks")
    if len(points) < 3:
        raise FaultyDataError(f"has a {kind} of {len(points)} points. Remove it, or draw it again")
    return Shape(label, points)


def _mask_runs(text: str, points: Points, size: tuple[int, int]) -> bytes:
    """A PNG of the part of the image between two corners, both inside."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True))) as picture:
            part = np.asarray(picture).astype(bool)
    except (binascii.Error, OSError, SyntaxError) as error:
        raise FaultyDataError(f"has a damaged mask ({error}). Draw it again") from None
    left, top = (int(value) for value in points[0])
    bottom, right = top + part.shape[0], left + part.shape[1]
    if part.ndim != 2 or min(left, top) < 0 or bottom > size[0] or right > size[1]:
        raise FaultyDataError(
            f"has a mask outside of its image of {size[1]}x{size[0]} pixels: x from {left} to {right}, y from {top} to "
            f"{bottom}. Draw it again"
        )
    whole = np.zeros(size, bool)
    whole[top:bottom, left:right] = part
    return encode_runs(mask_runs(whole))


def _classes(files: Files, top: str) -> ClassList:
    read = _read(files, top)
    listed = any(files.exists(join(top, name)) for name in LISTS)
    return of_names(read.names if listed else sorted(read.names), files.where(top))


def _find(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    read, start = _read(files, top), f"{join(top, split)}/".lstrip("/")
    own = [one for one in read.images if one.path.startswith(start)]
    pairs = [
        Pair(one.path[len(start) :].removesuffix(".json"), one.image, one.path, row) for row, one in enumerate(own)
    ]
    labelled = {pair.image for pair in pairs}
    without = sum(
        path not in labelled and path.lower().endswith(IMAGE_SUFFIXES) for path in files.below(join(top, split))
    )
    notes = [f"{without} images have no JSON file and are left out."] if without else []
    if skipped := sum(path.startswith(start) for path in read.skipped):
        notes.append(f"{skipped} points and lines have no area and are left out.")
    problems = tuple(text for path, text in read.problems if path.startswith(start))
    draw = TableLabels(ShapeTable.pack([one.shapes for one in own]), Canvas.make(read.names, classes, rules))
    listing = Listing(tuple(pairs), (), (), problems, tuple(notes))
    return Found(listing, identity_map(len(classes.names)), draw=draw)


LABELME = Layout(
    "labelme",
    "NAME.json beside NAME.jpg, in one folder or in {train,val}/",
    (),
    _is_labelme,
    _splits,
    _classes,
    _find,
    shapes=True,
)
