"""LabelMe: a JSON file of shapes beside each image."""

from __future__ import annotations

import base64
import binascii
import io
import math
import os
import posixpath
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from cacseg.data.class_list import NO_CLASS, ClassList, of_names
from cacseg.data.label_map import identity_map
from cacseg.data.layout import ALL, Found, Layout, Listing, Pair, Rules, is_split, join, name_splits
from cacseg.data.reading import read_json, read_text
from cacseg.data.sample import FaultyDataError
from cacseg.data.shapes import Canvas, ImageShapes, Shape, ShapeTable, TableLabels, stated_size
from cacseg.data.spans import Points, encode_runs, part_runs
from cacseg.runtime.decode import IMAGE_SUFFIXES
from cacseg.runtime.files import Files, FolderFiles

WITHOUT_AREA = ("point", "points", "line", "linestrip")
LISTS = ("labels.txt", "classes.txt")  # what `labelme --labels` takes
ROUNDEST = 4096  # corners of a circle: 1/100 pixel off at a radius of 34,000


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
    folders = [join(top, name) for name in files.folders(top)]
    below = [join(folder, name) for folder in folders for name in files.folders(folder) if is_split(name)]
    for folder in (top, *folders, *below):
        listed = [name for name in files.names(folder) if name.endswith(".json")]
        for name in listed[:3]:
            content = files.read(join(folder, name))
            if b'"shapes"' in content and b'"imagePath"' in content:
                return True
    return False


def _split_folder(path: str, top: str) -> str:
    """The folder below the top that a file's split is called by: 'train', or 'labels/train'; '' where it has none."""
    parts = path[len(top) :].strip("/").split("/")[:-1]
    k = next((k for k, part in enumerate(parts[:2]) if is_split(part)), None)
    return "" if k is None else "/".join(parts[: k + 1])


def _splits(files: Files, top: str) -> dict[str, str]:
    listed = (_split_folder(path, top) for path in files.below(top) if path.endswith(".json"))
    named = {folder.rpartition("/")[2] for folder in listed if folder}
    named |= {name for name in files.folders(top) if is_split(name)}
    return name_splits(named) if named else {ALL: ""}


@lru_cache(maxsize=2)  # one opening asks for classes and for images
def _read(files: Files, top: str) -> LabelMeFiles:
    below, there = files.below(top), set(files.below(""))
    stated = next((path for name in LISTS if (path := join(top, name)) in there), None)
    names: dict[str, int] = {}
    if stated is not None:
        lines = (line.strip() for line in read_text(files, stated).splitlines())
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
            image = _image_of(files, path, content, there)
            size = stated_size(content.get("imageHeight"), content.get("imageWidth"))
            shapes = []
            for one in content["shapes"]:
                name, kind = str(one["label"]), one.get("shape_type") or "polygon"
                if kind in WITHOUT_AREA:
                    skipped.append(path)
                    continue
                if name not in names and name not in NO_CLASS and stated is not None:
                    raise FaultyDataError(
                        f"has the class {name!r}, which {stated} does not name. Add it there, or mend it"
                    )
                shapes.append(_shape(one, kind, names.setdefault(name, len(names)), size))
        except FaultyDataError as error:
            text = str(error)
            problems.append((path, text if files.where(path) in text else f"{files.where(path)} {text}."))
            continue
        except (LookupError, TypeError, ValueError, ArithmeticError, OSError, RecursionError) as error:
            problems.append(
                (path, f"{files.where(path)} has a shape that cannot be read ({error!r}). Save it in LabelMe again.")
            )
            continue
        if image is None:
            problems.append((path, f"{files.where(path)} has no image: {_missing(files, path, content)}"))
        else:
            images.append(Labelled(path, image, ImageShapes(size, shapes)))
    return LabelMeFiles(tuple(names), tuple(images), tuple(problems), tuple(skipped))


def _image_path(content: dict[str, Any]) -> str:
    return str(content.get("imagePath") or "").replace("\\", "/")


def _image_of(files: Files, path: str, content: dict[str, Any], there: set[str]) -> str | None:
    """The image that the file names from where it is, else one of that name, or of its own, beside it."""
    folder, stem, stated = path.rpartition("/")[0], path.removesuffix(".json"), _image_path(content)
    named = posixpath.normpath(posixpath.join(folder, stated)).removeprefix(f"{os.path.abspath(files.root)}/")
    beside = join(folder, stated.rpartition("/")[2])
    places = [named, beside, *(stem + end for suffix in IMAGE_SUFFIXES for end in (suffix, suffix.upper()))]
    return next((place for place in places if place in there), None)


def _missing(files: Files, path: str, content: dict[str, Any]) -> str:
    """Which image is not there, and what to do: one outside of the data set needs the folder above both."""
    stated = _image_path(content)
    place = os.path.normpath(os.path.join(os.path.abspath(files.root), os.path.dirname(path), stated))
    above = os.path.commonpath([os.path.abspath(files.root), place])
    if isinstance(files, FolderFiles) and os.path.isfile(place) and above != os.path.dirname(above):
        return f"{stated} is outside of {files.root}. Give the folder above both, {above}."
    return f"{stated or 'imagePath'} is not there. Add it, or remove both."


def _shape(one: dict[str, Any], kind: str, label: int, size: tuple[int, int]) -> Shape:
    points: Points = np.array(one["points"], np.float64).reshape(-1, 2)
    if kind == "rectangle" and len(points) == 2:
        (left, top), (right, bottom) = points
        points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    elif kind == "circle":
        (x, y), rim = points
        radius = math.dist((x, y), rim)
        # The polygon is nowhere further than 1/100 pixel from the circle.
        step = max(math.acos(max(0.5, 1 - 0.01 / max(radius, 0.02))), math.pi / ROUNDEST)
        count = max(12, math.ceil(math.pi / step))
        turn = 2 * np.pi * np.arange(count) / count
        with np.errstate(invalid="ignore"):  # an infinite radius, which drawing refuses
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
    except (binascii.Error, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise FaultyDataError(f"has a damaged mask ({error}). Draw it again") from None
    if not all(size):
        raise FaultyDataError("has a mask and no imageHeight and imageWidth. Save it in LabelMe again")
    left, top = (int(value) for value in points[0])
    bottom, right = top + part.shape[0], left + part.shape[1]
    if part.ndim != 2 or min(left, top) < 0 or bottom > size[0] or right > size[1]:
        raise FaultyDataError(
            f"has a mask outside of its image of {size[1]}x{size[0]} pixels: x from {left} to {right}, y from {top} to "
            f"{bottom}. Draw it again"
        )
    return encode_runs(part_runs(part, left, top, size))


def _classes(files: Files, top: str) -> ClassList:
    read = _read(files, top)
    listed = any(files.exists(join(top, name)) for name in LISTS)
    return of_names(read.names if listed else sorted(read.names), files.where(top))


def _used(files: Files, top: str, rules: Rules) -> set[str]:
    read = _read(files, top)
    return {read.names[shape.label] for one in read.images for shape in one.shapes.shapes}


def _find(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    read = _read(files, top)

    def is_own(path: str) -> bool:
        return not split or _split_folder(path, top).rpartition("/")[2] == split

    own = [one for one in read.images if is_own(one.path)]
    problems = [text for path, text in read.problems if is_own(path)]
    pairs, seen = [], dict[str, str]()
    for row, one in enumerate(own):
        folder = join(top, _split_folder(one.path, top) if split else "")
        name = one.path[len(folder) :].strip("/").removesuffix(".json")
        if name in seen:
            problems.append(f"images must have names of their own: {seen[name]} and {files.where(one.path)}.")
            continue
        seen[name] = one.path
        pairs.append(Pair(name, one.image, one.path, row))
    labelled = {one.image for one in own}
    without = sum(
        path not in labelled and path.lower().endswith(IMAGE_SUFFIXES) and is_own(path) for path in files.below(top)
    )
    notes = [f"{without} images have no JSON file and are left out."] if without else []
    if skipped := sum(map(is_own, read.skipped)):
        notes.append(f"{skipped} points and lines have no area and are left out.")
    table = ShapeTable.pack([one.shapes for one in own])
    notes += table.notes([one.path for one in own])
    draw = TableLabels(table, Canvas.make(read.names, classes, rules))
    listing = Listing(tuple(pairs), (), (), tuple(problems), tuple(notes))
    return Found(listing, identity_map(len(classes.names)), draw=draw)


LABELME = Layout(
    "labelme",
    "NAME.json beside NAME.jpg or naming it, in one folder or in {train,val}/",
    (),
    _is_labelme,
    _splits,
    _classes,
    _find,
    _used,
)
