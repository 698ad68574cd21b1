"""COCO JSON: polygons and run-length masks, as COCO, Roboflow, CVAT and Label Studio lay them out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cacseg.data.class_list import ClassList, of_names
from cacseg.data.label_map import identity_map
from cacseg.data.layout import Found, Layout, Listing, Pair, Rules, join, name_splits
from cacseg.data.sample import FaultyDataError
from cacseg.data.shapes import (
    Canvas,
    ImageShapes,
    Shape,
    ShapeTable,
    TableLabels,
    file_version,
    no_collection,
    read_json,
)
from cacseg.data.spans import encode_runs
from cacseg.runtime.files import Files

ROBOFLOW = "_annotations.coco.json"
KEYS = (b'"images"', b'"annotations"', b'"categories"')
LOOKED_AT = 8  # JSON files of a folder that may be COCO's; LabelMe has one for each image


class CocoFile(NamedTuple):
    """One JSON file, parsed and packed; the labels of the table are places in `names`."""

    names: tuple[str, ...]  # in the order of their ids
    headings: frozenset[str]  # names that group others and that no annotation has
    images: tuple[str, ...]  # file names, in the order of the table
    table: ShapeTable
    problems: tuple[str, ...]


_kept: dict[tuple[str, int, int], CocoFile] = {}  # the last few files: each split asks for the classes of all


def find_json(files: Files, top: str) -> dict[str, str]:
    """Splits by their names in the files, and the JSON file of each."""
    folders = {name: files.names(join(top, name)) for name in ("", *files.folders(top))}
    found = {name or "default": join(top, name, ROBOFLOW) for name, inside in folders.items() if ROBOFLOW in inside}
    if not found:
        listed = [name for name in folders.get("annotations", ()) if name.endswith(".json")]
        instances = [name for name in listed if name.startswith("instances_")]
        paths = [join(top, "annotations", name) for name in instances or listed[:LOOKED_AT]]
        if not paths:
            listed = [name for name in folders[""] if name.endswith(".json")]
            paths = [join(top, name) for name in listed] if len(listed) <= LOOKED_AT else []
        paths = paths if instances else [path for path in paths if _is_coco(files, path)]
        stems = {path: path.rpartition("/")[2].removesuffix(".json").removeprefix("instances_") for path in paths}
        found = {stem: path for path, stem in stems.items()}
        if len(found) == 1 and not {"train", "val", "test"} & set(name_splits(found)):
            found = {"default": paths[0]}  # result.json of Label Studio
    return found


def _is_coco(files: Files, path: str) -> bool:
    content = files.read(path)
    return all(key in content for key in KEYS)


def _read(files: Files, path: str) -> CocoFile:
    version = file_version(files, path)
    if version not in _kept:
        while len(_kept) >= LOOKED_AT:
            del _kept[next(iter(_kept))]
        try:
            with no_collection():
                _kept[version] = _parse(read_json(files, path), files.where(path))
        except (KeyError, TypeError, AttributeError) as error:
            raise FaultyDataError(
                f"{files.where(path)} is no COCO file of images, annotations, categories ({error!r}). Export it again."
            ) from error
    return _kept[version]


def _parse(content: Any, where: str) -> CocoFile:
    categories = sorted(content["categories"], key=lambda one: one["id"])
    names = tuple(dict.fromkeys(str(one["name"]) for one in categories))
    label_of = {one["id"]: names.index(str(one["name"])) for one in categories}
    images = content["images"]
    rows = {one["id"]: k for k, one in enumerate(images)}
    packed = [ImageShapes((one.get("height") or 0, one.get("width") or 0), []) for one in images]
    problems = []
    for one in content["annotations"]:
        row, label = rows.get(one["image_id"]), label_of.get(one["category_id"])
        if row is None:
            problem = f"is of an image {one['image_id']} that the file does not list. Add the image"
        elif label is None:
            problem = f"has the category {one['category_id']}, which the file does not define. Add it to its categories"
        else:
            problem = _add(packed[row].shapes, one.get("segmentation"), label)
        if problem:
            problems.append(f"annotation {one.get('id')} of {where} {problem}, or remove the annotation.")
    used = {shape.label for image in packed for shape in image.shapes}
    above = {one.get("supercategory") for one in categories if one.get("supercategory") != one["name"]}
    headings = frozenset(name for k, name in enumerate(names) if k not in used and name in above)
    paths = (str(one["file_name"]).replace("\\", "/").split("/") for one in images)
    files = tuple("/".join(part for part in path if part not in ("", ".", "..")) for path in paths)
    return CocoFile(names, headings, files, ShapeTable.pack(packed), tuple(problems))


def _add(shapes: list[Shape], outline: Any, label: int) -> str:
    """Adds the parts of an annotation; what is wrong with it otherwise."""
    try:
        if isinstance(outline, dict):
            counts = outline["counts"]
            runs = counts.encode() if isinstance(counts, str) else encode_runs(np.array(counts, np.int64))
            shapes.append(Shape(label, None, runs))
            return ""
        polygons = [np.array(part, np.float32).reshape(-1, 2) for part in outline or ()]
    except (ValueError, TypeError, KeyError) as error:
        return f"has an outline that cannot be read ({error}). Mend it"
    if not polygons:
        return "has a box and no outline. Export polygons or masks"
    shapes.extend(Shape(label, one) for one in polygons if len(one) > 2)
    return ""


def _classes(files: Files, top: str) -> ClassList:
    """Of all splits. Headings that no annotation has, of Roboflow, are left out; other classes are kept."""
    read = [_read(files, path) for path in find_json(files, top).values()]
    listed = [
        (k, name) for one in read for k, name in enumerate(one.names) if any(name not in o.headings for o in read)
    ]
    return of_names([name for _, name in sorted(listed, key=lambda entry: entry[0])], files.where(top))


def _find(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    path = find_json(files, top)[split]
    read, beside = _read(files, path), path.rpartition("/")[0]
    there = set(files.below(top))
    folders = [beside, join(top, "images", split), join(top, "images"), join(top, split), top]
    pairs, missing, seen = [], [], dict[str, str]()
    problems = list(read.problems)
    for row, name in enumerate(read.images):
        short = name.rpartition("/")[2]
        places = [join(folder, one) for one in dict.fromkeys((name, short)) for folder in folders]
        image = next((place for place in places if place in there), None)
        key = name.rpartition(".")[0] or name
        if image is None:
            missing.append(f"{files.where(path)} names an image that is not there: {name}. Add it, or export it again.")
        elif key in seen:
            problems.append(f"images must differ in more than their suffix: {seen[key]} and {name} ({path}).")
        else:
            seen[key] = name
            pairs.append(Pair(key, image, path, row))
    listing = Listing(tuple(pairs), (), (), (*missing, *problems))
    draw = TableLabels(read.table, Canvas.make(read.names, classes, rules))
    return Found(listing, identity_map(len(classes.names)), draw=draw)


COCO = Layout(
    "coco",
    "{train,valid,test}/_annotations.coco.json beside the images, or annotations/instances_{train,val}.json + images/",
    (),
    lambda files, top: bool(find_json(files, top)),
    lambda files, top: name_splits(find_json(files, top)),
    _classes,
    _find,
    shapes=True,
)
