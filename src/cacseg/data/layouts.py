"""Layouts of the data sets on disk: top folder, pairs of files, classes of raw label values."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from cacseg.data.class_list import ClassList, builtin_classes, check_colours_differ, parse_classes, with_background
from cacseg.data.decode import LABEL_SUFFIXES, RAISE_LABELS, Labels, decode_labels
from cacseg.data.formats.coco import COCO
from cacseg.data.formats.label_studio import LABEL_STUDIO
from cacseg.data.formats.labelme import LABELME
from cacseg.data.formats.masks import ROBOFLOW_MASKS, VOC
from cacseg.data.formats.yolo import YOLO
from cacseg.data.label_map import IGNORE, LabelMap, identity_map
from cacseg.data.layout import Found, Layout, Listing, Rules, join, list_files, match, name_splits
from cacseg.data.reading import read_text
from cacseg.runtime.decode import IMAGE_SUFFIXES, MAX_PIXELS, TooLargeError, check_size
from cacseg.runtime.files import Files
from cacseg.runtime.inputs import without_arrays

# Folders of labels beside labels/, each of another annotator.
ANNOTATORS = tuple(f"labels.{number}" for number in range(2, 10))

# Raw 'stuffthingmaps' values (category id - 1) that COCO-Stuff never uses: 182 ids, 171 classes.
COCO_UNUSED = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)
# The label ids of Cityscapes' 19 classes in the order of their train ids; there are ids 0 to 33.
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
# The numbers of Pascal-Context's 59 classes among its 459 labels; both lists are in alphabetical order.
PASCAL_CONTEXT_IDS = (
    *(2, 9, 18, 19, 22, 23, 25, 31, 33, 34, 44, 45, 46, 59, 65, 68, 72, 80, 85, 98, 104, 105, 113, 115, 144, 158, 159),
    *(162, 187, 189, 207, 220, 232, 258, 259, 260, 284, 295, 296, 308, 324, 326, 347, 349, 354, 355, 360, 366, 368),
    *(397, 415, 416, 420, 424, 427, 440, 445, 454, 458),
)

KNOWN_FOLDERS = ("camvid", "msrc21")  # data sets that lie as one's own folder does


def _splits_in(folder: str, theirs: dict[str, str], files: Files, top: str) -> dict[str, str]:
    there = files.folders(join(top, folder))
    return {ours: name for ours, name in theirs.items() if name in there}


def _any_split(files: Files, top: str) -> dict[str, str]:
    """Folders of images or of labels: a split without images is then reported, not overlooked."""
    there = {name for kind in ("images", "labels") for name in files.folders(join(top, kind))}
    return name_splits(there)


def _pascal_splits(files: Files, top: str) -> dict[str, str]:
    return {name: name for name in ("train", "val") if _split_file(files, top, name) is not None}


def _find_ade20k(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    images = list_files(files, join(top, "images", split), IMAGE_SUFFIXES)
    labels = list_files(files, join(top, "annotations", split), (".png",))
    values = {0: IGNORE} | {label + 1: label for label in range(150)}
    return Found(match(files, images, labels), LabelMap(values, num_classes=150))


def _find_cocostuff(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    images = list_files(files, join(top, "images", split), IMAGE_SUFFIXES)
    folder = join(top, "annotations", split)
    prepared = list_files(files, folder, (".png",), "_labelTrainIds")
    raw = [entry for entry in list_files(files, folder, (".png",)) if not entry[0].endswith("_labelTrainIds")]
    if len(prepared) > len(raw):  # where both are whole, the original files
        return Found(match(files, images, prepared), identity_map(171))
    used = [value for value in range(182) if value not in COCO_UNUSED]
    values = {value: label for label, value in enumerate(used)} | {255: IGNORE}
    return Found(match(files, images, raw), LabelMap(values, num_classes=171))


def _find_cityscapes(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    images = list_files(files, join(top, "leftImg8bit", split), (".png",), "_leftImg8bit")
    folder = join(top, "gtFine", split)
    ids = list_files(files, folder, (".png",), "_gtFine_labelIds")
    train_ids = list_files(files, folder, (".png",), "_gtFine_labelTrainIds")
    if len(train_ids) > len(ids):
        return Found(match(files, images, train_ids, "_leftImg8bit"), identity_map(19))
    values = dict.fromkeys((*range(34), 255), IGNORE) | {v: label for label, v in enumerate(CITYSCAPES_IDS)}
    return Found(match(files, images, ids, "_leftImg8bit"), LabelMap(values, num_classes=19))


def _split_file(files: Files, top: str, split: str) -> str | None:
    paths = (join(top, "ImageSets", kind, f"{split}.txt") for kind in ("SegmentationContext", "Main"))
    return next((path for path in paths if files.exists(path)), None)


def _find_pascal_context(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    num_classes = len(classes.names)
    path = _split_file(files, top, split)
    assert path is not None  # or it were no split
    lines = read_text(files, path).splitlines()
    wanted = list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
    there = dict(list_files(files, join(top, "JPEGImages"), (".jpg",)))
    images = [(key, there[key]) for key in wanted if key in there]
    missing = (files.where(join(top, "JPEGImages", f"{key}.jpg")) for key in wanted if key not in there)
    problems = tuple(f"{files.where(path)} names an image that is not there: {one}." for one in missing)
    of_split = set(wanted).intersection(there)

    def listed(folder: str, suffix: str) -> list[tuple[str, str]]:
        return [entry for entry in list_files(files, join(top, folder), (suffix,)) if entry[0] in of_split]

    first = 1 if num_classes == 59 else 0  # 0 is the background: a class of the 60, ignored among the 59
    background, decode = IGNORE if first else 0, decode_labels
    if labels := listed("SegmentationClassContext", ".png"):
        values = {value: value - first for value in range(1, 60)} | {0: background, 255: IGNORE}
    else:
        labels, decode = listed("SegmentationClassContext", ".mat") + listed("trainval", ".mat"), _decode_mat
        values = dict.fromkeys(range(460), background)
        values |= {value: label + 1 - first for label, value in enumerate(PASCAL_CONTEXT_IDS)}
    listing = match(files, images, labels)._replace(problems=problems)
    return Found(listing, LabelMap(values, num_classes=num_classes), decode)


def _decode_mat(content: bytes, where: str, max_pixels: int = MAX_PIXELS) -> Labels:
    """The 459-label files of the original: a matrix 'LabelMap', from 1; 0 where nobody labelled."""
    try:
        from scipy.io import loadmat, whosmat  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:  # pragma: no cover
        raise ModuleNotFoundError(f"{where} needs scipy to be read: pip install scipy", name="scipy") from error
    try:
        for _, shape, _ in whosmat(io.BytesIO(content)):
            check_size((math.prod(shape), 1), where, max_pixels, RAISE_LABELS)
        matrix = np.asarray(loadmat(io.BytesIO(content))["LabelMap"])
    except TooLargeError:
        raise
    except Exception as error:  # scipy ends in IndexError, zlib.error and others, as the damage will have it
        raise OSError(f"{where} is damaged or no label file of Pascal-Context ({error!r}).") from error
    return Labels(indices=matrix.astype(np.int64))


def _find_folder(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    colours = classes.palette if classes.has_colours else ()
    check_colours_differ(colours, files.where(join(top, "classes.txt")))
    ignored = IGNORE if rules.ignore_index is None else rules.ignore_index
    label_map = identity_map(len(classes.names), ignored, colours, classes.ignored_colours)
    images = list_files(files, join(top, "images", split), IMAGE_SUFFIXES)
    if rules.bands is None:
        pictures = set(without_arrays([path for _, path in images]))
        images = [one for one in images if one[1] in pictures]
    labels = list_files(files, join(top, "labels", split), LABEL_SUFFIXES)
    more = [dict(list_files(files, join(top, folder, split), LABEL_SUFFIXES)) for folder in ANNOTATORS]
    return Found(with_annotators(match(files, images, labels), more), label_map)


def with_annotators(listing: Listing, more: Sequence[Mapping[str, str]]) -> Listing:
    """With the files of further annotators, by key, of pairs that have labels; others have no image, or no first."""
    pairs = tuple(
        pair._replace(others=tuple(labels[pair.name] for labels in more if pair.name in labels))
        for pair in listing.pairs
    )
    known = {pair.name for pair in pairs}
    alone = [path for labels in more for key, path in labels.items() if key not in known]
    several = sum(bool(pair.others) for pair in pairs)
    words = (
        f"{several} images have labels of several annotators: one is drawn for each crop, the rest is of most of them."
    )
    notes = (*listing.notes, words) if several else listing.notes
    return listing._replace(pairs=pairs, unpaired_labels=(*listing.unpaired_labels, *alone), notes=notes)


def _own_classes(files: Files, top: str) -> ClassList:
    path = join(top, "classes.txt")
    if not files.exists(path):
        raise FileNotFoundError(
            f"there is no {files.where(path)}. Write one class name a line, in the order of the label values from 0."
        )
    return parse_classes(read_text(files, path), files.where(path))


def _folder_classes(files: Files, top: str) -> ClassList:
    """As classes.txt has them; without colours there, classes of a known data set have its colours."""
    own = _own_classes(files, top)
    for name in KNOWN_FOLDERS:
        if not own.has_colours and own.names == builtin_classes(name).names:
            return own._replace(palette=builtin_classes(name).palette)
    return with_background(own, files.where(join(top, "classes.txt")))


def _known_folder(name: str, files: Files, top: str) -> ClassList:
    """The same as 'folder' gives it where there is a classes.txt, which must name the classes of the data set."""
    known = _builtin(name, files, top)
    if files.exists(join(top, "classes.txt")):
        return _folder_classes(files, top)
    return known._replace(ignored_colours=(), has_colours=False)  # for pictures: the files hold indices


def _builtin(name: str, files: Files, top: str) -> ClassList:
    known = builtin_classes(name)
    if files.exists(join(top, "classes.txt")):
        names = _own_classes(files, top).names
        if names != known.names:
            raise ValueError(
                f"{files.where(join(top, 'classes.txt'))} names other classes than {name}: {len(names)}, the first "
                f"{names[0]!r}, for {len(known.names)}, the first {known.names[0]!r}. Open it as 'folder'."
            )
    return known


def _pascal_context60(files: Files, top: str) -> ClassList:
    rest = builtin_classes("pascal_context59")
    return ClassList(("background", *rest.names), ((120, 120, 120), *rest.palette), (), True)


_PASCAL_TREE = (
    "VOCdevkit/VOC2010/{JPEGImages,SegmentationClassContext} (or the 459-label trainval/*.mat) + "
    "ImageSets/SegmentationContext/{train,val}.txt"
)
_FOLDER_TREE = "{images,labels}/{train,val}/** + classes.txt"
_FOLDER_MARKS = (("images",), ("labels",))
_PASCAL_MARKS = (("JPEGImages",), ("SegmentationClassContext", "trainval"))
_VOC = ("VOCdevkit/VOC2010", "VOC2010")

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "ade20k",
            "ADEChallengeData2016/{images,annotations}/{training,validation}",
            ("ADEChallengeData2016",),
            (("images/training", "images/validation"), ("annotations/training", "annotations/validation")),
            partial(_splits_in, "images", {"train": "training", "val": "validation"}),
            partial(_builtin, "ade20k"),
            _find_ade20k,
        ),
        Layout(
            "cocostuff164k",
            "coco_stuff164k/{images,annotations}/{train2017,val2017}, raw stuffthingmaps or *_labelTrainIds.png",
            ("coco_stuff164k",),
            (("images/train2017", "images/val2017"), ("annotations/train2017", "annotations/val2017")),
            partial(_splits_in, "images", {"train": "train2017", "val": "val2017"}),
            partial(_builtin, "cocostuff164k"),
            _find_cocostuff,
        ),
        Layout(
            "cityscapes",
            "leftImg8bit/{train,val}/CITY/*_leftImg8bit.png + gtFine/{train,val}/CITY/*_gtFine_label{Ids,TrainIds}.png",
            ("cityscapes",),
            (("leftImg8bit",), ("gtFine",)),
            partial(_splits_in, "leftImg8bit", {"train": "train", "val": "val"}),
            partial(_builtin, "cityscapes"),
            _find_cityscapes,
        ),
        *(
            Layout(name, _PASCAL_TREE, _VOC, _PASCAL_MARKS, _pascal_splits, classes, _find_pascal_context)
            for name, classes in (
                ("pascal_context59", partial(_builtin, "pascal_context59")),
                ("pascal_context60", _pascal_context60),
            )
        ),
        *(
            Layout(name, _FOLDER_TREE, (name,), _FOLDER_MARKS, _any_split, partial(_known_folder, name), _find_folder)
            for name in KNOWN_FOLDERS
        ),
        Layout("folder", _FOLDER_TREE, (), _FOLDER_MARKS, _any_split, _folder_classes, _find_folder),
        YOLO,
        COCO,
        LABELME,
        VOC,
        ROBOFLOW_MASKS,
        LABEL_STUDIO,
    )
}

# What 'folder' opens, the first that fits.
OWN = ("yolo", "coco", "labelme", "voc", "roboflow_masks", "label_studio", "folder")
