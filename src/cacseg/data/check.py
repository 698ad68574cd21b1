"""Reads every file of a data set and lists all that is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from cacseg.data.file_data import FileData, Listing
from cacseg.data.files import open_files
from cacseg.data.label_map import IGNORE, MASK_HINT
from cacseg.data.layouts import LAYOUTS
from cacseg.data.open import check_name, check_own_ignore_index, find_split, find_top
from cacseg.data.pictures import colour, contact_sheet, legend, overlay
from cacseg.data.sample import Colour

PIECE = 16  # pairs that a process checks before it reports


@dataclass
class SplitReport:
    """One split: what is wrong, and how often each class occurs."""

    split: str
    images: int
    problems: list[str] = field(default_factory=list)
    pixels: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))  # by label, 255 ignored
    images_with: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)  # (height, width) -> images
    sheet: npt.NDArray[np.uint8] | None = None


@dataclass
class Report:
    """A whole data set."""

    name: str
    root: str
    class_names: tuple[str, ...]
    palette: tuple[Colour, ...]
    splits: list[SplitReport]

    @property
    def problems(self) -> list[str]:
        return [problem for split in self.splits for problem in split.problems]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and words."""
        return {
            "name": self.name,
            "root": self.root,
            "ok": not self.problems,
            "splits": [
                {
                    "split": one.split,
                    "images": one.images,
                    "problems": one.problems,
                    "ignored_pixels": int(one.pixels[255]),
                    "sizes": [{"height": h, "width": w, "images": n} for (h, w), n in sorted(one.sizes.items())],
                    "classes": [
                        {"name": name, "pixels": int(one.pixels[k]), "images": int(one.images_with[k])}
                        for k, name in enumerate(self.class_names)
                    ],
                }
                for one in self.splits
            ],
        }


def guess_name(root: str | Path) -> str:
    """The name of the data set, by its layout; a folder with the classes of CamVid or MSRC-21 is taken for these."""
    files = open_files(root)
    for name in ("ade20k", "cocostuff164k", "cityscapes", "pascal_context59"):
        if LAYOUTS[name].top_in(files) is not None:
            return name
    if LAYOUTS["folder"].top_in(files) is None:
        trees = "; ".join(f"{name}: {layout.tree}" for name, layout in LAYOUTS.items())
        raise ValueError(f"{root} has no known layout. There are {trees}.")
    for name in ("camvid", "msrc21"):
        top = find_top(LAYOUTS[name], files)
        try:
            if files.exists(f"{top}/classes.txt".lstrip("/")):
                LAYOUTS[name].classes(files, top)
                return name
        except ValueError:
            continue
    return "folder"


def check_data(
    name: str,
    root: str | Path,
    splits: Sequence[str] = (),
    *,
    ignore_index: int | None = None,
    workers: int | None = None,
    sheet_rows: int = 6,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Reads every pair of the splits (all there are by default) in `workers` processes (one a core by default).

    `progress` is called with a split, how many of its pairs are done, and how many there are. 0 workers: none but
    this process. Workers are spawned, so a script that calls this needs its `if __name__ == "__main__":`.
    """
    check_name(name)
    if name not in LAYOUTS:
        raise ValueError(f"{name!r} has no files to check.")
    check_own_ignore_index(name, ignore_index)
    if workers is not None and workers < 0:
        raise ValueError(f"workers must not be negative; got {workers}.")
    layout, files = LAYOUTS[name], open_files(root)
    top = find_top(layout, files)
    classes = layout.classes(files, top)
    wanted = list(splits) or list(layout.splits(files, top))
    if not wanted:
        raise ValueError(f"there is no split in {files.where(top)}; {name!r} needs {layout.tree}.")
    if workers is None:
        workers = os.cpu_count() or 1
    listings: list[Listing] = []
    datas: list[FileData] = []
    for split in wanted:
        found = layout.find(files, top, find_split(layout, files, top, split), classes, ignore_index)
        pairs = found.listing.pairs
        listings.append(found.listing)
        datas.append(FileData(name, split, classes.names, classes.palette, files, pairs, found.label_map, found.decode))
    reports = [SplitReport(data.split, len(data)) for data in datas]
    broken: list[dict[int, str]] = [{} for _ in datas]
    done = [0] * len(datas)
    for which, start, piece in _pieces(datas, workers):
        report = reports[which]
        broken[which] |= {start + place: problem for place, problem in piece.problems.items()}
        report.pixels += piece.pixels
        report.images_with += piece.images_with
        for size, count in piece.sizes.items():
            report.sizes[size] = report.sizes.get(size, 0) + count
        done[which] += piece.count
        if progress is not None:
            progress(report.split, done[which], report.images)
    for report, data, listing, problems in zip(reports, datas, listings, broken, strict=True):
        report.problems = list(listing.problems)
        report.problems += [f"{files.where(path)} has no labels." for path in listing.unpaired_images]
        report.problems += [f"{files.where(path)} has no image." for path in listing.unpaired_labels]
        report.problems += [problems[index] for index in sorted(problems)]
        if not len(data):
            report.problems.append(f"the split {data.split!r} is empty: no image with labels.")
        elif not report.pixels[: len(classes.names)].any() and not problems:
            report.problems.append(f"no pixel of the split {data.split!r} has a class: everything is ignored.")
        elif len(classes.names) == 2 and not report.pixels[1] and report.pixels[IGNORE] and not problems:
            report.problems.append(
                f"no pixel of the split {data.split!r} is {classes.names[1]!r} (1), and {report.pixels[IGNORE]} are "
                f"ignored. {MASK_HINT}"
            )
        report.sheet = _sheet(data, sheet_rows, problems)
    return Report(name, str(root), classes.names, classes.palette, reports)


@dataclass
class _Piece:
    count: int
    problems: dict[int, str]  # place in the piece -> what is wrong
    pixels: npt.NDArray[np.int64]
    images_with: npt.NDArray[np.int64]
    sizes: dict[tuple[int, int], int]


def _check_piece(data: FileData, indices: range) -> _Piece:
    piece = _Piece(len(indices), {}, np.zeros(256, np.int64), np.zeros(256, np.int64), {})
    for place, index in enumerate(indices):
        try:
            labels = data.read(index).labels
        except (ValueError, OSError) as error:
            piece.problems[place] = str(error)
            continue
        counts = np.bincount(labels.ravel(), minlength=256)
        piece.pixels += counts
        piece.images_with += counts > 0
        size = labels.shape[0], labels.shape[1]
        piece.sizes[size] = piece.sizes.get(size, 0) + 1
    return piece


def _pieces(datas: list[FileData], workers: int) -> Iterator[tuple[int, int, _Piece]]:
    """Results in order, each with its data set and the index of its first pair."""
    places = [
        (which, range(start, min(start + PIECE, len(data))))
        for which, data in enumerate(datas)
        for start in range(0, len(data), PIECE)
    ]
    if workers == 0 or len(places) < 2:
        for which, indices in places:
            yield which, indices.start, _check_piece(datas[which], indices)
        return
    # spawn: the parent may hold threads (a progress bar), which a forked child would inherit half-locked.
    with ProcessPoolExecutor(min(workers, len(places)), get_context("spawn"), _start, (datas,)) as pool:
        try:
            pieces = pool.map(_check_shared, *zip(*places, strict=True))
            for (which, indices), piece in zip(places, pieces, strict=True):
                yield which, indices.start, piece
        except BrokenProcessPool as error:
            raise OSError("a process of the check was killed; out of memory? Try fewer --workers.") from error


_shared: list[FileData] = []  # of a worker: sent once, not with every piece


def _start(datas: list[FileData]) -> None:
    cv2.setNumThreads(0)
    # Decoders write of each broken file to stderr themselves, through the progress bar; we say it once, at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    _shared[:] = datas


def _check_shared(which: int, indices: range) -> _Piece:
    return _check_piece(_shared[which], indices)


def _sheet(data: FileData, rows: int, broken: Container[int]) -> npt.NDArray[np.uint8] | None:
    """Images, labels and overlays of pairs taken evenly from the split, two in a row, with a legend."""
    readable = [index for index in range(len(data)) if index not in broken]
    if not readable or rows < 1:
        return None
    count = min(len(readable), 2 * rows)
    chosen = [readable[k * len(readable) // count] for k in range(count)]
    cells, names = [], []
    for index in chosen:
        image, labels = data.read(index)
        cells.append([image, colour(labels, data.palette), overlay(image, labels, data.palette)])
        names.append(data.image_name(index))
    if count % 2 == 0:
        cells = [left + right for left, right in zip(cells[::2], cells[1::2], strict=True)]
        names = [f"{left}   |   {right}" for left, right in zip(names[::2], names[1::2], strict=True)]
    titles = ["image", "labels", "overlay"] * (len(cells[0]) // 3)
    sheet = contact_sheet(cells, titles=titles, names=names)
    return np.concatenate([sheet, legend(data.class_names, data.palette, sheet.shape[1])])


def class_table(report: Report, split: SplitReport) -> list[tuple[str, int, float, int]]:
    """Rows of (class, pixels, share of the labelled pixels, images)."""
    total = max(1, int(split.pixels[: len(report.class_names)].sum()))
    return [
        (name, int(split.pixels[k]), int(split.pixels[k]) / total, int(split.images_with[k]))
        for k, name in enumerate(report.class_names)
    ]
