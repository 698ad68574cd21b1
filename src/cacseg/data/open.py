"""Opens a data set by its name and root."""

from __future__ import annotations

from pathlib import Path

from cacseg.data.file_data import FileData, check_listing
from cacseg.data.files import Files, open_files
from cacseg.data.label_map import check_ignore_index
from cacseg.data.layouts import LAYOUTS, Layout
from cacseg.data.sample import SegmentationData
from cacseg.data.synthetic import SyntheticData

DATA_SETS: dict[str, str] = {
    **{name: layout.tree for name, layout in LAYOUTS.items()},
    "synthetic": "nothing on disk: scenes drawn from (seed, split, index)",
}


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
    check_name(name)
    if name == "synthetic":
        if root is not None or ignore_index is not None:
            raise ValueError("'synthetic' takes neither root nor ignore_index.")
        return SyntheticData(split, size=size or (128, 128), length=length, seed=seed or 0)
    if size is not None or length is not None or seed is not None:
        raise ValueError(f"size, length and seed belong to 'synthetic'; {name!r} is what its files are.")
    check_own_ignore_index(name, ignore_index)
    if root is None:
        raise ValueError(f"{name!r} needs a root, the folder or .zip with {DATA_SETS[name]}.")
    layout, files = LAYOUTS[name], open_files(root)
    top = find_top(layout, files)
    classes = layout.classes(files, top)
    if ignore_index is not None:
        check_ignore_index(ignore_index, len(classes.names))
    found = layout.find(files, top, find_split(layout, files, top, split), classes, ignore_index)
    check_listing(found.listing, files, f"the split {split!r} of {files.where(top)}")
    return FileData(
        name=name,
        split=split,
        class_names=classes.names,
        palette=classes.palette,
        files=files,
        pairs=found.listing.pairs,
        label_map=found.label_map,
        decode=found.decode,
    )


def check_name(name: str) -> None:
    """The data set is one we know."""
    if name not in DATA_SETS:
        raise ValueError(f"unknown data set {name!r}. There are {', '.join(DATA_SETS)}.")


def check_own_ignore_index(name: str, ignore_index: int | None) -> None:
    """Only a folder of one's own takes an ignore index."""
    if ignore_index is not None and name != "folder":
        raise ValueError(
            f"ignore_index belongs to 'folder'; what {name!r} ignores is known. Leave it out, or name it 'folder'."
        )


def find_top(layout: Layout, files: Files) -> str:
    """The folder below the root where the layout starts."""
    top = layout.top_in(files)
    if top is None:
        there = ", ".join(files.folders("")[:6]) or "no folder"
        raise FileNotFoundError(f"{layout.name!r} needs {layout.tree}; {files.where('')} has {there}.")
    return top


def find_split(layout: Layout, files: Files, top: str, split: str) -> str:
    """The layout's own name of a split that is there."""
    there = layout.splits(files, top)
    if split not in there:
        raise ValueError(
            f"there is no split {split!r} in {files.where(top)}. There is {', '.join(there) or 'none'}; "
            f"{layout.name!r} needs {layout.tree}."
        )
    return there[split]
