"""COCO JSON: polygons and run-length masks, as COCO, Roboflow, CVAT and Label Studio lay them out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cacseg.data.class_list import NO_CLASS, ClassList, of_names
from cacseg.data.label_map import identity_map
from cacseg.data.layout import Found, Layout, Listing, Pair, Rules, join, name_splits
from cacseg.data.reading import file_version, no_collection, read_json
from cacseg.data.sample import FaultyDataError
from cacseg.data.shapes import LARGEST, Canvas, ImageShapes, Shape, ShapeTable, TableLabels, stated_size
from cacseg.data.spans import encode_runs
from cacseg.runtime.files import Files

ROBOFLOW = "_annotations.coco.json"
KEYS = (b'"images"', b'"annotations"', b'"categories"')
LOOKED_AT = 8  # JSON files of a folder that may be COCO's; LabelMe has one for each image


class CocoFile(NamedTuple):
    """One JSON file, parsed and packed; the labels of the table are places in `names`, and past them of its crowds."""

    names: tuple[str, ...]  # in the order of their ids
    headings: frozenset[str]  # names that group others and that no annotation has
    used: frozenset[str]
    used_alone: frozenset[str]  # by what is no crowd
    images: tuple[str, ...]  # file names, in the order of the table
    table: ShapeTable
    problems: tuple[str, ...]


_kept: dict[tuple[str, str, str], CocoFile] = {}  # the last few files: each split asks for the classes of all


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
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
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
    packed, problems = [], []
    for one in images:
        try:
            size = stated_size(one.get("height"), one.get("width"))
        except FaultyDataError as error:
            size = 0, 0
            problems.append(f"image {one['id']} of {where} {error}.")
        packed.append(ImageShapes(size, []))
    for one in content["annotations"]:
        row, label = rows.get(one["image_id"]), label_of.get(one["category_id"])
        if row is None:
            problem = f"is of an image {one['image_id']} that the file does not list. Add the image"
        elif label is None:
            problem = f"has the category {one['category_id']}, which the file does not define. Add it to its categories"
        else:
            label += len(names) if one.get("iscrowd") else 0
            try:
                packed[row] = _add(packed[row], one.get("segmentation"), label)
                continue
            except FaultyDataError as error:
                problem = str(error)
        problems.append(f"annotation {one.get('id')} of {where} {problem}, or remove the annotation.")
    table = ShapeTable.pack(packed)
    labels = np.unique(table.labels).tolist()
    used = frozenset((*names, *names)[label] for label in labels)
    above = {one.get("supercategory") for one in categories if one.get("supercategory") != one["name"]}
    headings = frozenset(name for name in names if name not in used and name in above)
    paths = (str(one["file_name"]).replace("\\", "/").split("/") for one in images)
    files = tuple("/".join(part for part in path if part not in ("", ".", "..")) for path in paths)
    alone = frozenset(names[label] for label in labels if label < len(names))
    return CocoFile(names, headings, used, alone, files, table, tuple(problems))


def _add(image: ImageShapes, outline: Any, label: int) -> ImageShapes:
    """The image with the parts of an annotation."""
    try:
        if isinstance(outline, dict):
            return _add_mask(image, outline, label)
        polygons = [np.array(part, np.float64).reshape(-1, 2) for part in outline or ()]
    except FaultyDataError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise FaultyDataError(f"has an outline that cannot be read ({error}). Mend it") from None
    if not polygons:
        raise FaultyDataError("has a box and no outline. Export polygons or masks")
    image.shapes.extend(Shape(label, one, continues=k > 0) for k, one in enumerate(polygons))
    return image


def _add_mask(image: ImageShapes, outline: dict[str, Any], label: int) -> ImageShapes:
    counts, size = outline["counts"], stated_size(*outline.get("size", image.size))
    if size != image.size and all(image.size):
        raise FaultyDataError(
            f"has a mask of {size[1]}x{size[0]} pixels, and its image {image.size[1]}x{image.size[0]}. Export it again"
        )
    if isinstance(counts, str):
        runs = counts.encode()
    else:
        numbers = np.array(counts, np.int64)
        if numbers.ndim != 1 or (numbers < 0).any() or (numbers > LARGEST).any():
            raise FaultyDataError("has runs that are no numbers of pixels. Export it again")
        runs = encode_runs(numbers)
    if not runs:
        raise FaultyDataError("has a mask without runs. Export it again")
    image.shapes.append(Shape(label, None, runs))
    return image._replace(size=size)


def _classes(files: Files, top: str) -> ClassList:
    """Of all splits. Headings that no annotation has, of Roboflow, are left out; other classes are kept."""
    read = [_read(files, path) for path in find_json(files, top).values()]
    listed = [
        (k, name) for one in read for k, name in enumerate(one.names) if any(name not in o.headings for o in read)
    ]
    return of_names([name for _, name in sorted(listed, key=lambda entry: entry[0])], files.where(top))


def _used(files: Files, top: str, rules: Rules) -> set[str]:
    read = [_read(files, path) for path in find_json(files, top).values()]
    return {name for one in read for name in (one.used if rules.crowd == "class" else one.used_alone)}


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
    listing = Listing(tuple(pairs), (), (), (*missing, *problems), tuple(read.table.notes(read.images)))
    crowds = read.names if rules.crowd == "class" else NO_CLASS[:1] * len(read.names)
    draw = TableLabels(read.table, Canvas.make((*read.names, *crowds), classes, rules))
    return Found(listing, identity_map(len(classes.names)), draw=draw)


COCO = Layout(
    "coco",
    "{train,valid,test}/_annotations.coco.json beside the images, or annotations/instances_{train,val}.json + images/",
    (),
    lambda files, top: bool(find_json(files, top)),
    lambda files, top: name_splits(find_json(files, top)),
    _classes,
    _find,
    _used,
)
