"""Opens a split of a data set by its name and root, and reads its pairs of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from cacseg._checks import first_few
from cacseg.data.class_list import ClassList, of_names, with_uncovered
from cacseg.data.decode import LABEL_SUFFIXES, Labels, decode_labels
from cacseg.data.label_map import IGNORE, LabelMap
from cacseg.data.layout import (
    ALL,
    USUAL,
    Crowd,
    Decode,
    Draw,
    EmptyClasses,
    Layout,
    Listing,
    Overlap,
    Pair,
    Rules,
    Uncovered,
)
from cacseg.data.layouts import LAYOUTS, OWN
from cacseg.data.sample import (
    FaultyDataError,
    Part,
    Pixels,
    Sample,
    SegmentationData,
    check_one_size,
    ignoring_gaps,
    majority,
)
from cacseg.data.synthetic import SyntheticData
from cacseg.runtime.bands import read_image
from cacseg.runtime.colours import Colour, background_index
from cacseg.runtime.decode import IMAGE_SUFFIXES, MAX_PIXELS, max_bytes
from cacseg.runtime.files import Files, open_files

DATA_SETS: dict[str, str] = {
    **{name: layout.tree for name, layout in LAYOUTS.items()},
    "synthetic": "nothing on disk: scenes drawn from (seed, split, index)",
}

NO_STAMP = {"bytes": "", "modified_ns": ""}


@dataclass(frozen=True)
class FileData:
    """Reads in place: no copies, no caches, nothing prepared. Picklable; workers may share it."""

    name: str
    split: str
    class_names: tuple[str, ...]
    palette: tuple[Colour, ...]
    files: Files
    pairs: tuple[Pair, ...]
    label_map: LabelMap
    decode: Decode = decode_labels
    draw: Draw | None = None
    ignore_index: int = IGNORE
    bands: int | None = None  # that images have, in the units of their files; None: red, green, blue bytes
    max_pixels: int = MAX_PIXELS

    def __len__(self) -> int:
        return len(self.pairs)

    def image_name(self, index: int) -> str:
        return self.pairs[index].name

    @property
    def has_annotators(self) -> bool:
        """Whether some images have labels of several annotators."""
        return any(pair.others for pair in self.pairs)

    def read(self, index: int) -> Sample:
        """A sample; of several annotators' labels the class that most of them chose, ignored where none has most."""
        return self._read(index, None)

    def read_drawn(self, index: int, number: float) -> Sample:
        """A sample with the labels of one annotator, drawn by a number in [0, 1)."""
        return self._read(index, number)

    def _read(self, index: int, number: float | None) -> Sample:
        pair = self.pairs[index]
        where_image = self.files.where(pair.image)
        image = self.read_image(pair.image)
        if self.draw is not None:
            labels = self.draw(self.files, pair, (image.shape[0], image.shape[1]))
        else:
            paths = [pair.labels, *pair.others]
            chosen = paths if number is None else [paths[int(number * len(paths))]]
            labels = majority([self._labels(path, image, where_image) for path in chosen], self.ignore_index)
        return ignoring_gaps(image, labels, self.ignore_index)

    def _labels(self, path: str, image: Pixels, where_image: str) -> npt.NDArray[np.uint8]:
        where = self.files.where(path)
        labels = self.label_map(self.read_labels(path), where)
        check_one_size(image, labels, where_image, where)
        return labels

    def read_image(self, path: str) -> Pixels:
        content = self.files.read(path, max_bytes(self.max_pixels, self.bands))
        return read_image(content, self.files.where(path), self.bands, self.max_pixels)

    def read_labels(self, path: str) -> Labels:
        """Of a file of labels, as stored."""
        content = self.files.read(path, max_bytes(self.max_pixels))
        return self.decode(content, self.files.where(path), self.max_pixels)

    def stamp(self, index: int) -> dict[str, str]:
        """Size and time of the files of a pair, by which a later change is noticed."""
        pair = self.pairs[index]
        stamps = [self.files.stamp(path) for path in (pair.image, pair.labels, *pair.others) if path]
        return {key: "+".join(one[key] for one in stamps) for key in stamps[0]}


def try_read(data: FileData, index: int) -> Sample | str:
    """A sample, or in one line why there is none."""
    try:
        return data.read(index)
    except (OSError, ValueError) as error:
        return str(error)
    except (MemoryError, cv2.error) as error:
        where, reason = data.files.where(data.pairs[index].image), " ".join(str(error).split())[:200]
        return f"{where} and its labels did not fit into memory ({reason}). Try fewer --workers, or cut them."


def stamp_of_sample(data: SegmentationData, index: int) -> dict[str, str]:
    """Size and time of the files of a sample; empty where it has none, or they are gone, which reading them says."""
    if isinstance(data, Part):
        return stamp_of_sample(data.data, data.places[index])
    try:
        return data.stamp(index) if isinstance(data, FileData) else NO_STAMP
    except OSError:
        return NO_STAMP


def open_data(
    name: str,
    root: str | Path | None,
    split: str,
    *,
    ignore_index: int | None = None,
    overlap: Overlap = "later",
    uncovered: Uncovered = "background",
    crowd: Crowd = "class",
    empty_classes: EmptyClasses = "keep",
    bands: int | None = None,
    max_pixels: int = MAX_PIXELS,
    size: tuple[int, int] | None = None,
    length: int | None = None,
    seed: int | None = None,
) -> SegmentationData:
    """One split of a data set, read in place from a folder or a .zip.

    `root` is the folder that holds the layout of DATA_SETS[name], the one above it, or a .zip of either.
    `ignore_index` belongs to "folder": the value in its files that marks ignored pixels (255). In samples, ignored is
    always 255. The others belong to labels that are shapes. `overlap`: the "later" or the "smaller" one is on top;
    `uncovered`: pixels that none covers are a class "background", or ignored ("ignore"); `crowd`: COCO's crowd regions
    are of their class ("class"), or ignored; `empty_classes`: "keep" or "drop" classes that no image of any split has.
    `bands`: images have so many, in the units of their files, instead of red, green and blue bytes. `max_pixels`: an
    image or a file of labels with more is refused. `size` (height, width), `length` and `seed` belong to "synthetic".
    """
    if name == "synthetic":
        if root is not None or ignore_index is not None or bands is not None:
            raise ValueError("'synthetic' takes neither root, ignore_index nor bands.")
        return SyntheticData(split, size=size or (128, 128), length=length, seed=seed or 0)
    if size is not None or length is not None or seed is not None:
        raise ValueError(f"size, length and seed belong to 'synthetic'; {name!r} is what its files are.")
    rules = Rules(ignore_index, overlap, uncovered, crowd, empty_classes, bands, max_pixels)
    layout, files, top, classes = open_layout(name, root, rules)
    data, listing = open_split(layout, files, top, classes, split, rules)
    check_listing(listing, files, f"the split {split!r} of {files.where(top)}")
    return data


def open_layout(name: str, root: str | Path | None, rules: Rules) -> tuple[Layout, Files, str, ClassList]:
    """A data set of files: its layout, the files, the folder below the root where it starts, and its classes.

    'folder' is any layout of one's own data: that of `images/`, `labels/` and those of labelling tools.
    """
    if name not in LAYOUTS:
        raise ValueError(f"unknown data set {name!r}. There are {', '.join(DATA_SETS)}.")
    if root is None:
        raise ValueError(f"{name!r} needs a root, the folder or .zip with {DATA_SETS[name]}: --root PATH.")
    files = open_files(root)
    tops = ((one, LAYOUTS[one].top_in(files)) for one in (OWN if name == "folder" else (name,)))
    name, top = next(((one, top) for one, top in tops if top is not None), (name, None))
    layout = LAYOUTS[name]
    if rules.ignore_index is not None and name != "folder":
        raise ValueError(
            f"ignore_index belongs to 'folder'; what {name!r} ignores is known. Leave it out, or name it 'folder'."
        )
    if top is None:
        there = f"the folders {', '.join(folders[:6])}" if (folders := files.folders("")) else "no folders"
        more = f" (or the files of a labelling tool: {', '.join(OWN[:-1])})" if name == "folder" else ""
        raise FileNotFoundError(f"{name!r} needs {layout.tree}{more}; {files.where('')} has {there}.")
    classes = layout.classes(files, top)
    if layout.shapes is None:
        if rules._replace(ignore_index=None, bands=None, max_pixels=MAX_PIXELS) != USUAL:
            settings = "overlap, uncovered, crowd and empty_classes"
            raise ValueError(f"{settings} belong to labels that are shapes; those of {name!r} are images.")
        return layout, files, top, classes
    if rules.empty_classes == "drop":
        used = layout.shapes(files, top, rules)
        if rules.uncovered == "background" and (found := background_index(classes.names)) is not None:
            used.add(classes.names[found])
        classes = of_names([name for name in classes.names if name in used], files.where(top))
    return layout, files, top, with_uncovered(classes, rules.uncovered, files.where(top))


def open_split(
    layout: Layout, files: Files, top: str, classes: ClassList, split: str, rules: Rules
) -> tuple[FileData, Listing]:
    """The pairs of a split that is there, by our name or theirs, and whatever else lies in its folders."""
    there = layout.splits(files, top)
    theirs = there.get(split, split)
    if theirs not in there.values():
        if list(there) == [ALL]:  # no fault of the files, so nothing that a check would list
            raise ValueError(
                f"there is no split {split!r} in {files.where(top)}, whose images are not split. Set "
                "data.val_share=0.2 to hold a fifth of them out for validation."
            )
        held = " Hold images out of another with data.val_share=0.2." if split == "val" else ""
        raise FaultyDataError(
            f"there is no split {split!r} in {files.where(top)}. There is {', '.join(there) or 'none'}; "
            f"{layout.name!r} needs {layout.tree}.{held}"
        )
    listing, label_map, decode, draw = layout.find(files, top, theirs, classes, rules)
    names, palette = classes.names, classes.palette
    how: Any = {"bands": rules.bands, "max_pixels": rules.max_pixels}
    return FileData(layout.name, split, names, palette, files, listing.pairs, label_map, decode, draw, **how), listing


def check_listing(listing: Listing, files: Files, where: str) -> None:
    """Every image has labels, every label file an image, and there is at least one pair."""
    if listing.problems:
        more = f" So it is with {len(listing.problems) - 1} more." if len(listing.problems) > 1 else ""
        raise FaultyDataError(listing.problems[0] + more)
    for kind, other, suffixes, paths in (
        ("image", "labels", LABEL_SUFFIXES, listing.unpaired_images),
        ("label file", "image", IMAGE_SUFFIXES, listing.unpaired_labels),
    ):
        if paths:
            listed = first_few([files.where(path) for path in paths], 3)
            raise FaultyDataError(
                f"every {kind} needs its {other}, of the same path and name; {len(paths)} of {where} have none: "
                f"{listed}. Add what is missing ({', '.join(suffixes)}) or remove these files."
            )
    if not listing.pairs:
        raise FaultyDataError(f"{where} is empty: no image and label files there.")
