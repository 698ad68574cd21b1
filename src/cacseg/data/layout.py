"""What a layout of a data set on disk is: how it is recognised, its splits, its classes, its pairs of files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data.class_list import ClassList
from cacseg.data.decode import Labels, decode_labels
from cacseg.data.label_map import LabelMap
from cacseg.runtime.decode import MAX_PIXELS
from cacseg.runtime.files import Files

Overlap = Literal["later", "smaller"]
Uncovered = Literal["background", "ignore"]
Crowd = Literal["class", "ignore"]
EmptyClasses = Literal["keep", "drop"]

ALL = "all"  # the split of data that nobody has split
_SPLITS = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test", "default": ALL}


class Rules(NamedTuple):
    """How labels are read, where there is a choice."""

    ignore_index: int | None = None  # of 'folder': the value of ignored pixels
    overlap: Overlap = "later"  # of shapes: which is on top, the later or the smaller one
    uncovered: Uncovered = "background"  # of shapes: what the pixels are that no shape covers
    crowd: Crowd = "class"  # of COCO's crowd regions: as any other shape, or ignored
    empty_classes: EmptyClasses = "keep"  # of shapes: classes that no image of any split has
    bands: int | None = None  # that images have, in the units of their files; None: red, green, blue bytes
    max_pixels: int = MAX_PIXELS  # of an image or of a file of labels, which are decoded whole


USUAL = Rules()


class Pair(NamedTuple):
    """An image and its labels, as paths, and their name within the split."""

    name: str
    image: str
    labels: str
    row: int = 0  # where one file holds the labels of many images
    others: tuple[str, ...] = ()  # files of labels by further annotators


class Listing(NamedTuple):
    """The files of a split: pairs, images without labels, labels without an image, and other problems."""

    pairs: tuple[Pair, ...]
    unpaired_images: tuple[str, ...]
    unpaired_labels: tuple[str, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what is worth knowing and no fault


# Draws the labels of a pair, uint8 [H, W], for an image of height and width.
Draw = Callable[[Files, Pair, tuple[int, int]], npt.NDArray[np.uint8]]


Decode = Callable[[bytes, str, int], Labels]  # of so many pixels at most


class Found(NamedTuple):
    """The files of a split, and how its labels are read."""

    listing: Listing
    label_map: LabelMap
    decode: Decode = decode_labels
    draw: Draw | None = None  # of labels that are no image files


@dataclass(frozen=True)
class Layout:
    """One data set. `tops`: folders below the root that may hold it. `marks`: folders by which it is recognised."""

    name: str
    tree: str  # for people
    tops: tuple[str, ...]
    marks: tuple[tuple[str, ...], ...] | Callable[[Files, str], bool]  # one of each row must be there; or a function
    splits: Callable[[Files, str], dict[str, str]]  # files, top: the splits that are there, our name -> theirs
    classes: Callable[[Files, str], ClassList]  # files, top
    find: Callable[[Files, str, str, ClassList, Rules], Found]  # files, top, their split, classes, rules
    # Of labels that are shapes, which need not cover an image: the classes that have any.
    shapes: Callable[[Files, str, Rules], set[str]] | None = None

    def top_in(self, files: Files) -> str | None:
        """The folder that the layout starts in ('' for the root itself); None where it is not there."""
        for top in ("", *self.tops):
            if self._fits(files, top):
                return top
        inner = [top for name in files.folders("") for top in (name, *(f"{name}/{one}" for one in self.tops))]
        found = [top for top in inner if self._fits(files, top)]
        if len(found) > 1:
            raise ValueError(f"{len(found)} data sets lie in {files.where('')}: {', '.join(found)}. Give one of them.")
        return found[0] if found else None

    def _fits(self, files: Files, top: str) -> bool:
        if not isinstance(self.marks, tuple):
            return self.marks(files, top)
        return all(any(files.exists(join(top, mark)) for mark in row) for row in self.marks)


def join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def is_split(name: str) -> bool:
    """Whether a folder is called as a split is."""
    return _our_split(name) != name or name in ("train", "val", "test")


def _our_split(name: str) -> str:
    plain = re.sub(r"[\W_]*\d*$", "", name.lower())
    return _SPLITS.get(plain, plain if plain in ("train", "val", "test") else name)


def name_splits(theirs: Iterable[str]) -> dict[str, str]:
    """Our names of splits ("train", "val", "test", "all") to theirs ("train2017", "valid"); others keep their own."""
    theirs = sorted(set(theirs))
    named: dict[str, str] = {name: name for name in theirs if name in ("train", "val", "test")}
    for name in theirs:
        ours = _our_split(name)
        if name not in named.values():
            named[name if ours in named else ours] = name
    return dict(sorted(named.items()))


def list_files(files: Files, folder: str, suffixes: Sequence[str], ending: str = "") -> list[tuple[str, str]]:
    """Files of these suffixes: the path below the folder without suffix and ending, and the whole path."""
    found = []
    for path in files.below(folder):
        stem, dot, suffix = path.rpartition(".")
        if dot and f".{suffix.lower()}" in suffixes and stem.endswith(ending):
            found.append((stem[len(folder) + 1 : len(stem) - len(ending)], path))
    return found


def match(files: Files, images: list[tuple[str, str]], labels: list[tuple[str, str]], ending: str = "") -> Listing:
    """Pairs by key, in the order of the images; both are (key, path), and a pair's name is its key and `ending`."""
    problems: list[str] = []
    labels_by_key: dict[str, str] = {}
    for key, path in labels:
        if key in labels_by_key:
            problems.append(f"an image has one file of labels; there are {files.where(labels_by_key[key])} and {path}.")
        labels_by_key.setdefault(key, path)
    pairs: list[Pair] = []
    unpaired_images: list[str] = []
    seen: dict[str, str] = {}
    for key, path in images:
        if key in seen:
            problems.append(f"images must differ in more than their suffix: {files.where(seen[key])} and {path}.")
            continue
        seen[key] = path
        if key in labels_by_key:
            pairs.append(Pair(key + ending, path, labels_by_key[key]))
        else:
            unpaired_images.append(path)
    unpaired_labels = tuple(path for key, path in labels_by_key.items() if key not in seen)
    return Listing(tuple(pairs), tuple(unpaired_images), unpaired_labels, tuple(problems))
