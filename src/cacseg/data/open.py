"""Opens a split of a data set by its name and root, and reads its pairs of files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cacseg._checks import first_few
from cacseg.data.class_list import ClassList
from cacseg.data.decode import LABEL_SUFFIXES, Labels, decode_labels
from cacseg.data.label_map import IGNORE, LabelMap
from cacseg.data.layouts import LAYOUTS, Layout, Listing, Pair
from cacseg.data.sample import FaultyDataError, Sample, SegmentationData, check_one_size
from cacseg.data.synthetic import SyntheticData
from cacseg.runtime.colours import Colour
from cacseg.runtime.decode import IMAGE_SUFFIXES, decode_image
from cacseg.runtime.files import Files, open_files

DATA_SETS: dict[str, str] = {
    **{name: layout.tree for name, layout in LAYOUTS.items()},
    "synthetic": "nothing on disk: scenes drawn from (seed, split, index)",
}


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
    decode: Callable[[bytes, str], Labels] = decode_labels
    ignore_index: int = IGNORE

    def __len__(self) -> int:
        return len(self.pairs)

    def image_name(self, index: int) -> str:
        return self.pairs[index].name

    def read(self, index: int) -> Sample:
        pair = self.pairs[index]
        where_image, where_labels = self.files.where(pair.image), self.files.where(pair.labels)
        image = decode_image(self.files.read(pair.image), where_image)
        labels = self.label_map(self.decode(self.files.read(pair.labels), where_labels), where_labels)
        check_one_size(image, labels, where_image, where_labels)
        return Sample(image, labels)


def open_data(
    name: str,
    root: str | Path | None,
    split: str,
    *,
    ignore_index: int | None = None,
    size: tuple[int, int] | None = None,
    length: int | None = None,
    seed: int | None = None,
) -> SegmentationData:
    """One split of a data set, read in place from a folder or a .zip.

    `root` is the folder that holds the layout of DATA_SETS[name], the one above it, or a .zip of either.
    `ignore_index` belongs to "folder": the value in its files that marks ignored pixels (255). In samples, ignored is
    always 255. `size` (height, width), `length` and `seed` belong to "synthetic".
    """
    if name == "synthetic":
        if root is not None or ignore_index is not None:
            raise ValueError("'synthetic' takes neither root nor ignore_index.")
        return SyntheticData(split, size=size or (128, 128), length=length, seed=seed or 0)
    if size is not None or length is not None or seed is not None:
        raise ValueError(f"size, length and seed belong to 'synthetic'; {name!r} is what its files are.")
    layout, files, top, classes = open_layout(name, root, ignore_index)
    data, listing = open_split(layout, files, top, classes, split, ignore_index)
    check_listing(listing, files, f"the split {split!r} of {files.where(top)}")
    return data


def open_layout(name: str, root: str | Path | None, ignore_index: int | None) -> tuple[Layout, Files, str, ClassList]:
    """A data set of files: its layout, the files, the folder below the root where it starts, and its classes."""
    if name not in LAYOUTS:
        raise ValueError(f"unknown data set {name!r}. There are {', '.join(DATA_SETS)}.")
    if ignore_index is not None and name != "folder":
        raise ValueError(
            f"ignore_index belongs to 'folder'; what {name!r} ignores is known. Leave it out, or name it 'folder'."
        )
    if root is None:
        raise ValueError(f"{name!r} needs a root, the folder or .zip with {DATA_SETS[name]}.")
    layout, files = LAYOUTS[name], open_files(root)
    top = layout.top_in(files)
    if top is None:
        there = ", ".join(files.folders("")[:6]) or "no folder"
        raise FileNotFoundError(f"{name!r} needs {layout.tree}; {files.where('')} has {there}.")
    return layout, files, top, layout.classes(files, top)


def open_split(
    layout: Layout, files: Files, top: str, classes: ClassList, split: str, ignore_index: int | None
) -> tuple[FileData, Listing]:
    """The pairs of a split that is there, and whatever else lies in its folders."""
    there = layout.splits(files, top)
    if split not in there:
        raise FaultyDataError(
            f"there is no split {split!r} in {files.where(top)}. There is {', '.join(there) or 'none'}; "
            f"{layout.name!r} needs {layout.tree}."
        )
    listing, label_map, decode = layout.find(files, top, there[split], classes, ignore_index)
    data = FileData(layout.name, split, classes.names, classes.palette, files, listing.pairs, label_map, decode)
    return data, listing


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
