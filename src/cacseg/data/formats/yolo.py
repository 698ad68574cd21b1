"""YOLO polygons: a text file for each image, and data.yaml with the names of the classes."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np

from cacseg._checks import first_few
from cacseg.data.class_list import ClassList, of_names
from cacseg.data.label_map import identity_map
from cacseg.data.layout import ALL, Found, Layout, Listing, Pair, Rules, join, name_splits
from cacseg.data.reading import read_text
from cacseg.data.sample import FaultyDataError
from cacseg.data.shapes import Canvas, ImageShapes, Shape, ShapeTable, TableLabels
from cacseg.runtime.decode import IMAGE_SUFFIXES
from cacseg.runtime.files import Files

MOST_SAID = 300  # letters of what a reader of YAML says
SPLIT_KEYS = ("train", "val", "valid", "validation", "test")


def _yaml_path(files: Files, top: str) -> str | None:
    names = [name for name in files.names(top) if name.endswith((".yaml", ".yml"))]
    path = next((name for name in names if name.startswith("data.")), names[0] if len(names) == 1 else None)
    return None if path is None else join(top, path)


def _settings(files: Files, top: str) -> dict[str, Any]:
    import yaml

    path = _yaml_path(files, top)
    assert path is not None  # or it were not this layout
    try:
        content = yaml.safe_load(files.read(path))
        names = content["names"]
        if isinstance(names, dict) and sorted(names) != list(range(len(names))):
            raise ValueError(f"its names are numbered {first_few(sorted(names))}, not 0 to {len(names) - 1}")
        listed = _words([names[k] for k in sorted(names)] if isinstance(names, dict) else names, "names")
        stated = {key: _words(content.get(key) or [], key) for key in ("path", *SPLIT_KEYS)}
    except (yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:MOST_SAID]
        raise FaultyDataError(f"{files.where(path)} must hold 'names', the classes ({said}). Mend it.") from error
    return {"names": listed, **stated}


def _words(value: Any, key: str) -> list[str]:
    """A word or a list of words; what holds further lists may stand for more text than there is memory."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if wrong := [one for one in listed if not isinstance(one, str | int | float | date | None)]:
        raise ValueError(f"{key!r} must be words; it has a {type(wrong[0]).__name__}")
    return [str(one) for one in listed]


def _is_yolo(files: Files, top: str) -> bool:
    path = _yaml_path(files, top)
    return path is not None and b"names" in files.read(path) and any(_label_folders(files, top))


def _label_folders(files: Files, top: str) -> list[str]:
    """Folders called labels at the top or one below, that hold a text file and no images of labels."""
    folders = [join(top, "labels"), *(join(top, name, "labels") for name in files.folders(top))]
    return [one for one in folders if any(path.endswith(".txt") for path in files.below(one))]


def _images(files: Files, top: str) -> dict[str, list[str]]:
    """The images of each split, as data.yaml names them, else as the folders are called."""
    content, there = _settings(files, top), files.below(top)
    known = set(there)
    root = "".join(content["path"][:1]).strip("./")
    found: dict[str, list[str]] = {}
    for key in SPLIT_KEYS:
        for entry in content[key]:
            plain = "/".join(part for part in entry.replace("\\", "/").split("/") if part not in ("", ".", ".."))
            for place in (join(top, root, plain), join(top, plain), join(top, plain.partition("/")[2])):
                if place in known:  # a list of images
                    lines = read_text(files, place).splitlines()
                    found.setdefault(key, []).extend(_listed(lines, top, there))
                    break
                below = [
                    path for path in there if path.startswith(f"{place}/") and path.lower().endswith(IMAGE_SUFFIXES)
                ]
                if below and plain:
                    found.setdefault(key, []).extend(below)
                    break
    if not found:  # a path of another machine, or none
        for path in there:
            parts = path[len(top) :].strip("/").split("/")
            if "images" in parts[:2] and path.lower().endswith(IMAGE_SUFFIXES):
                split = next((part for part in parts[:-1][:2] if part != "images"), "")
                found.setdefault(split, []).append(path)
    return found


def _listed(lines: list[str], top: str, there: list[str]) -> list[str]:
    """The images of a list, which may stand below other folders there; one that is missing is kept, and reported."""
    known, images = set(there), []
    for line in filter(None, (line.strip().removeprefix("./") for line in lines)):
        parts = line.split("/")
        places = [join(top, *parts[k:]) for k in range(len(parts))]
        images.append(next((place for place in places if place in known), join(top, line)))
    return images


def _splits(files: Files, top: str) -> dict[str, str]:
    found = _images(files, top)
    return {ALL: ""} if list(found) == [""] else name_splits(name for name in found if name)


def _classes(files: Files, top: str) -> ClassList:
    return of_names(_settings(files, top)["names"], files.where(_yaml_path(files, top) or top))


def _read(files: Files, path: str, count: int) -> list[Shape]:
    """Of lines 'class x y x y x y ...', x and y as shares of width and height."""
    lines = enumerate(read_text(files, path).splitlines(), 1)
    return [_parse(line, f"line {number} of {files.where(path)}", count) for number, line in lines if line.strip()]


def _parse(line: str, where: str, count: int) -> Shape:
    try:
        first, *values = map(float, line.split())
    except ValueError:
        raise FaultyDataError(f"{where} must be numbers, a class and points; got {line[:40]!r}. Mend it.") from None
    if not (first.is_integer() and 0 <= first < count):
        raise FaultyDataError(
            f"{where} has the class {first:g}; data.yaml names {count}, 0 to {count - 1}. Add it there, or remove the "
            "line."
        )
    if len(values) < 6 or len(values) % 2:
        kind = "a box" if len(values) == 4 else f"{len(values)} numbers"
        raise FaultyDataError(f"{where} has {kind} where a polygon has 3 points or more. Export polygons.")
    return Shape(int(first), np.array(values).reshape(-1, 2))


def _text_path(image: str) -> tuple[str, str]:
    """Of an image, its file of labels, and its name below 'images/'."""
    folder, _, stem = image.rpartition(".")[0].rpartition("images/")
    return f"{folder}labels/{stem}.txt", stem


def _used(files: Files, top: str, rules: Rules) -> set[str]:
    names, known = _settings(files, top)["names"], set(files.below(top))
    texts = {_text_path(image)[0] for images in _images(files, top).values() for image in images} & known
    lines = (line.split() for text in texts for line in read_text(files, text).splitlines())
    numbers = {words[0] for words in lines if words}
    return {name for k, name in enumerate(names) if str(k) in numbers}


def _find(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    names, known = _settings(files, top)["names"], set(files.below(top))
    pairs, problems, used = list[Pair](), [], set()
    shapes: list[ImageShapes] = []
    without = 0
    for image in _images(files, top).get(split, []):
        text, stem = _text_path(image)
        if image not in known:
            problems.append(
                f"data.yaml lists an image that is not there: {files.where(image)}. Add it, or export again."
            )
            continue
        used.add(text)
        without += text not in known
        try:
            read = _read(files, text, len(names)) if text in known else []
        except FaultyDataError as error:
            problems.append(str(error))
            continue
        pairs.append(Pair(stem.removeprefix(f"{split}/"), image, text if text in known else "", len(pairs)))
        shapes.append(ImageShapes((0, 0), read))
    folders = {text.rpartition("/")[0] for text in used}
    unpaired = [path for path in sorted(known - used) if path.endswith(".txt") and path.rpartition("/")[0] in folders]
    table = ShapeTable.pack(shapes)
    notes = [f"{without} images have no file of labels: nothing is drawn there."] if without else []
    notes += table.notes([pair.name for pair in pairs])
    draw = TableLabels(table, Canvas.make(names, classes, rules), shares=True)
    listing = Listing(tuple(pairs), (), tuple(unpaired), tuple(problems), tuple(notes))
    return Found(listing, identity_map(len(classes.names)), draw=draw)


YOLO = Layout(
    "yolo",
    "data.yaml + {train,val}/{images,labels} or {images,labels}/{train,val}, polygons in .txt files",
    (),
    _is_yolo,
    _splits,
    _classes,
    _find,
    _used,
)
