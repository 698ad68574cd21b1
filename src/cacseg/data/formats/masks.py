"""Masks as tools write them: Pascal VOC and CVAT's 'Segmentation mask 1.1', and Roboflow's semantic masks."""

from __future__ import annotations

import csv

from cacseg.data.class_list import NO_CLASS, ClassList, check_colours_differ, of_names
from cacseg.data.label_map import IGNORE, LabelMap
from cacseg.data.layout import ALL, Found, Layout, Rules, is_split, join, list_files, match, name_splits
from cacseg.data.reading import read_text
from cacseg.runtime.colours import Colour
from cacseg.runtime.decode import IMAGE_SUFFIXES
from cacseg.runtime.files import Files

LABEL_MAP, LISTS = "labelmap.txt", "ImageSets/Segmentation"
BORDER: Colour = (224, 224, 192)  # around the objects of Pascal VOC: nobody says what is there
VOC_NAMES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
CLASSES = "_classes.csv"


def voc_colours(count: int) -> tuple[Colour, ...]:
    """Pascal VOC's: the bits of the number, the lowest first, go to the highest bits of red, green, blue in turn."""
    bits = [
        [sum((k >> (3 * place + part) & 1) << (7 - place) for place in range(8)) for part in range(3)]
        for k in range(count)
    ]
    return tuple((red, green, blue) for red, green, blue in bits)


def _voc_classes(files: Files, top: str) -> ClassList:
    """Those of labelmap.txt, lines 'name:red,green,blue:parts:actions'; without one, the 21 of Pascal VOC."""
    path = join(top, LABEL_MAP)
    if not files.exists(path):
        return ClassList(VOC_NAMES, voc_colours(len(VOC_NAMES)), (BORDER,), True)
    where = files.where(path)
    colours: dict[str, Colour] = {}
    for number, line in enumerate(read_text(files, path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.strip().rsplit(":", 3)  # a name may have colons
        try:
            red, green, blue = (int(value) for value in parts[1].split(","))
        except (ValueError, IndexError):
            raise ValueError(f"line {number} of {where} must be name:red,green,blue::; got {line[:200]!r}.") from None
        colours[parts[0]] = (red, green, blue)
    classes = of_names(list(colours), where)
    palette = tuple(colours[name] for name in classes.names)
    check_colours_differ(palette, where)
    ignored = {BORDER, *(colours[name] for name in NO_CLASS if name in colours)}.difference(palette)
    return ClassList(classes.names, palette, tuple(sorted(ignored)), True)


def _voc_splits(files: Files, top: str) -> dict[str, str]:
    listed = {name.removesuffix(".txt") for name in files.names(join(top, LISTS)) if name.endswith(".txt")}
    if "train" in listed:
        listed.discard("trainval")
    return name_splits(listed) if listed else {ALL: ""}


def _find_voc(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    images = dict(list_files(files, join(top, "JPEGImages"), IMAGE_SUFFIXES))
    labels = dict(list_files(files, join(top, "SegmentationClass"), (".png",)))
    wanted, problems = list(labels), []
    if split:
        path = join(top, LISTS, f"{split}.txt")
        lines = read_text(files, path).splitlines()
        wanted = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
        for folder, there in (("JPEGImages", images), ("SegmentationClass", labels)):
            problems += [
                f"{files.where(path)} names {name[:100]}, which {files.where(join(top, folder))} does not have. Export "
                "it again, with its images, or take the line out."
                for name in wanted
                if name not in there
            ]
        wanted = [name for name in wanted if name in images and name in labels]
    found = match(files, [(k, images[k]) for k in wanted if k in images], [(k, labels[k]) for k in wanted])
    label_map = LabelMap(
        {255: IGNORE},
        num_classes=len(classes.names),
        colours=classes.palette,
        ignored_colours=classes.ignored_colours,
        by_colour=True,
    )
    return Found(found._replace(problems=(*problems, *found.problems)), label_map)


def _mask_folders(files: Files, top: str) -> dict[str, str]:
    """Splits by their folders' names, '' for the top itself, and the list of classes of each."""
    places = {name: join(top, name, CLASSES) for name in ("", *filter(is_split, files.folders(top)))}
    return {name: path for name, path in places.items() if files.exists(path)}


def _mask_values(files: Files, path: str) -> dict[int, str]:
    """Lines 'value, name' below a heading."""
    rows = csv.reader(read_text(files, path).splitlines()[1:], skipinitialspace=True)
    try:
        return {int(row[0]): row[1].strip() for row in rows if row}
    except (ValueError, IndexError, csv.Error) as error:
        raise ValueError(f"{files.where(path)} must have lines of a pixel value and a class ({error}).") from None


def _mask_classes(files: Files, top: str) -> ClassList:
    lists = {path: _mask_values(files, path) for path in _mask_folders(files, top).values()}
    (first, values), *others = lists.items()
    for path, other in others:
        if other != values:
            raise ValueError(f"{files.where(first)} and {files.where(path)} differ. Export all splits together.")
    return of_names([values[value] for value in sorted(values)], files.where(first))


def _find_masks(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    folder = join(top, split)
    values = _mask_values(files, join(folder, CLASSES))
    labels = list_files(files, folder, (".png",), "_mask")
    masks = {path for _, path in labels}
    images = [entry for entry in list_files(files, folder, IMAGE_SUFFIXES) if entry[1] not in masks]
    label_of = {name: label for label, name in enumerate(classes.names)}
    classes_of = {255: IGNORE} | {value: label_of.get(name, IGNORE) for value, name in values.items()}
    return Found(match(files, images, labels), LabelMap(classes_of, num_classes=len(classes.names)))


VOC = Layout(
    "voc",
    "JPEGImages/ + SegmentationClass/*.png in colours + labelmap.txt + ImageSets/Segmentation/*.txt",
    ("VOCdevkit/VOC2012", "VOC2012"),
    (("SegmentationClass",), ("JPEGImages", LABEL_MAP, LISTS)),
    _voc_splits,
    _voc_classes,
    _find_voc,
)
ROBOFLOW_MASKS = Layout(
    "roboflow_masks",
    "{train,valid,test}/NAME.jpg + NAME_mask.png + _classes.csv",
    (),
    lambda files, top: bool(_mask_folders(files, top)),
    lambda files, top: {ALL: ""} if "" in (there := _mask_folders(files, top)) else name_splits(there),
    _mask_classes,
    _find_masks,
)
