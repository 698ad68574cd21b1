"""Reads every file of a data set and lists all that is wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from cacseg.data.bands import BandSums, joined, sums_of
from cacseg.data.check_sheet import make_sheet
from cacseg.data.label_map import IGNORE, MASK_HINT
from cacseg.data.layout import ALL, USUAL, Layout, Rules
from cacseg.data.layouts import KNOWN_FOLDERS, LAYOUTS, OWN
from cacseg.data.open import FileData, open_layout, open_split, try_read
from cacseg.runtime.colours import Colour
from cacseg.runtime.decode import check_header, max_bytes
from cacseg.runtime.files import open_files

PIECE = 16  # pairs that go to a process together
RARE = 10  # images with a class, below which it is too rare
NEEDED = ("train", "val")  # splits of a training run
NEEDS_SHARE = "there are no splits: `cacseg train` needs --set data.val_share=0.2, which holds a fifth of them out"


@dataclass
class SplitReport:
    """One split: what is wrong, and how often each class occurs."""

    split: str
    images: int
    problems: list[str] = field(default_factory=list)
    pixels: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))  # by label, 255 ignored
    images_with: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (height, width) -> images
    bands: BandSums | None = None  # where images have bands
    sheet: npt.NDArray[np.uint8] | None = None


@dataclass
class Report:
    """A whole data set."""

    name: str
    root: str
    class_names: tuple[str, ...]
    palette: tuple[Colour, ...]
    splits: list[SplitReport]
    missing: list[str] = field(default_factory=list)  # splits that training needs
    notes: list[str] = field(default_factory=list)  # what is worth knowing and no fault
    unsplit: bool = False  # only "all" is there: training has to hold images out
    asked: bool = False  # the splits were named: what training needs beside them is not looked at

    @property
    def ok(self) -> bool:
        """Whether `cacseg train` takes the data as they are; of splits that were asked for, whether all is readable."""
        return not self.problems and (self.asked or not self.unsplit)

    @property
    def verdict(self) -> str:
        if count := len(self.problems):
            return f"{count} thing{'' if count == 1 else 's'} wrong."
        return f"every file is readable; {NEEDS_SHARE}." if self.unsplit else "nothing is wrong."

    @property
    def problems(self) -> list[str]:
        return [*self.missing, *(problem for split in self.splits for problem in split.problems)]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and words."""
        return {
            "name": self.name,
            "root": self.root,
            "ok": self.ok,
            "missing": self.missing,
            "unsplit": self.unsplit,
            "notes": self.notes,
            "classes": [
                {"name": name, "colour": list(shade)}
                for name, shade in zip(self.class_names, self.palette, strict=True)
            ],
            "splits": [
                {
                    "split": one.split,
                    "images": one.images,
                    "problems": one.problems,
                    "ignored_pixels": int(one.pixels[255]),
                    **({} if one.bands is None else {"bands": bands_as_json(one.bands)}),
                    "sizes": [{"height": h, "width": w, "images": n} for (h, w), n in sorted(one.sizes.items())],
                    "classes": [
                        {"name": name, "pixels": int(one.pixels[k]), "images": int(one.images_with[k])}
                        for k, name in enumerate(self.class_names)
                    ],
                }
                for one in self.splits
            ],
        }


def bands_as_json(found: BandSums) -> list[dict[str, float]]:
    keys = {"mean": found.mean, "std": found.std, "least": found.least, "most": found.most}
    keys |= {"pixels": found.pixels, "no_data": found.empty}
    return [{key: float(values[band]) for key, values in keys.items()} for band in range(len(found.mean))]


def guess_name(root: str | Path) -> str:
    """The name of the data set, by its layout; a folder with the classes of CamVid or MSRC-21 is taken for these."""
    files = open_files(root)
    for name in ("ade20k", "cocostuff164k", "cityscapes", "pascal_context59", *OWN[:-1]):
        if LAYOUTS[name].top_in(files) is not None:
            return name
    if LAYOUTS["folder"].top_in(files) is None:
        raise ValueError(
            f"{root} has no known layout. Images and masks of your own: {LAYOUTS['folder'].tree}. `cacseg data list` "
            f"shows the others: {', '.join(LAYOUTS)}."
        )
    for name in KNOWN_FOLDERS:
        top = LAYOUTS[name].top_in(files) or ""
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
    rules: Rules = USUAL,
    workers: int | None = None,
    sheet_rows: int = 6,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Reads every pair of the splits (all there are by default) in `workers` processes (one a core by default).

    `progress` is called with a split, how many of its pairs are done, and how many there are. 0 workers: none but
    this process. Workers are spawned, so a script that calls this needs its `if __name__ == "__main__":`.
    """
    if name == "synthetic":
        raise ValueError(f"{name!r} has no files to check.")
    if workers is not None and workers < 0:
        raise ValueError(f"workers must not be negative; got {workers}.")
    layout, files, top, classes = open_layout(name, root, rules)
    wanted = list(splits) or list(layout.splits(files, top))
    if not wanted:
        raise ValueError(f"there is no split in {files.where(top)}; {name!r} needs {layout.tree}.")
    opened = [open_split(layout, files, top, classes, split, rules) for split in wanted]
    datas = [data for data, _ in opened]
    reports = [SplitReport(data.split, len(data)) for data in datas]
    broken: list[dict[int, str]] = [{} for _ in datas]
    bands: list[list[BandSums]] = [[] for _ in datas]
    pairs = [(which, index) for which, data in enumerate(datas) for index in range(len(data))]
    workers = (os.cpu_count() or 1) if workers is None else workers
    for (which, index), found in zip(pairs, _check_pairs(datas, pairs, workers), strict=True):
        report = reports[which]
        if isinstance(found, str):
            broken[which][index] = found
        else:
            size, counts, sums = found
            if sums is not None:
                bands[which].append(sums)
            report.pixels += counts
            report.images_with += counts > 0
            report.sizes[size] += 1
        if progress is not None:
            progress(report.split, index + 1, report.images)
    for report, (data, listing), problems, of_split in zip(reports, opened, broken, bands, strict=True):
        report.bands = joined(of_split) if of_split else None
        report.problems = list(listing.problems)
        report.problems += [f"{files.where(path)} has no labels." for path in listing.unpaired_images]
        report.problems += [f"{files.where(path)} has no image." for path in listing.unpaired_labels]
        report.problems += [problems[index] for index in sorted(problems)]
        if not len(data):
            report.problems.append(f"the split {data.split!r} of {files.where('')} is empty: no image with labels.")
        elif not report.pixels[: len(classes.names)].any() and not problems:
            report.problems.append(f"no pixel of the split {data.split!r} has a class: everything is ignored.")
        elif (
            len(classes.names) == 2
            and not report.pixels[1]
            and (report.pixels[IGNORE] or data.split == "train")  # which training refuses
            and not problems
        ):
            report.problems.append(
                f"no pixel of the split {data.split!r} is {classes.names[1]!r} (1), and {report.pixels[IGNORE]} are "
                f"ignored. {MASK_HINT}"
            )
        report.sheet = make_sheet(data, listing, problems, sheet_rows)
    known = splits or wanted == [ALL]
    missing = [] if known else [_missing(split, files.where(top), layout) for split in NEEDED if split not in wanted]
    notes = [f"{data.split}: {note}" for data, listing in opened for note in listing.notes]
    notes += [_cut(data) for data in datas]
    if not splits:
        seen = np.sum([report.images_with for report in reports], axis=0)
        notes += [f"no image has the class {name!r}." for k, name in enumerate(classes.names) if not seen[k]]
    notes += [_rare(report, classes.names) for report in reports if report.split in ("train", ALL)]
    notes = [note for note in notes if note]
    unsplit = wanted == [ALL]
    if unsplit and not splits and reports[0].images == 1:
        reports[0].problems.append("there are no splits, and holding images out for validation needs 2 or more; got 1.")
    return Report(
        layout.name, str(root), classes.names, classes.palette, reports, missing, notes, unsplit, asked=bool(splits)
    )


def _cut(data: FileData) -> str:
    """Of a split whose images have more bits than are read, judged by its first image."""
    if data.bands is not None or not len(data):
        return ""
    image = data.pairs[0].image
    try:
        content = data.files.read(image, max_bytes(data.max_pixels))
        check_header(content, image, data.max_pixels)
        read = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    except (OSError, ValueError, MemoryError, cv2.error):
        return ""
    if read is None or read.dtype == np.uint8:
        return ""
    bands = 1 if read.ndim == 2 else read.shape[2]
    return (
        f"{data.split}: images have {bands} band(s) of {read.dtype}, of which 8 bits are read. data.bands={bands} "
        "(--bands here) takes them as they are."
    )


def _rare(report: SplitReport, names: Sequence[str]) -> str:
    """Classes that few images to train on have; of splits too small to say so, nothing."""
    found = [f"{name} ({report.images_with[k]})" for k, name in enumerate(names) if 0 < report.images_with[k] < RARE]
    if not found or report.images < 2 * RARE:
        return ""
    return (
        f"{report.split}: classes in fewer than {RARE} of {report.images} images, too few to learn them well: "
        f"{', '.join(found)}. Label more of them; data.balance=0.1 shows the images that have them more often."
    )


def _missing(split: str, where: str, layout: Layout) -> str:
    hold = " or --set data.val_share=0.2, which holds images out" if split == "val" else ""
    return (
        f"there is no split {split!r} in {where}, and `cacseg train` needs it. {layout.name!r} is {layout.tree}. Make "
        f"it, or train with --set data.{split}_split=NAME{hold}; --split checks other splits alone."
    )


# What is wrong with a pair; or its size, pixels by label, and sums of its bands.
Found = str | tuple[tuple[int, int], npt.NDArray[np.int64], BandSums | None]


def _check_pair(data: FileData, index: int) -> Found:
    sample = try_read(data, index)
    if isinstance(sample, str):
        return sample
    image, labels = sample
    sums = None if data.bands is None else sums_of(image)
    return (labels.shape[0], labels.shape[1]), np.bincount(labels.ravel(), minlength=256), sums


def _check_pairs(datas: list[FileData], pairs: Sequence[tuple[int, int]], workers: int) -> Iterator[Found]:
    """Results in the order of the pairs, which are (data set, index)."""
    if workers == 0 or len(pairs) <= PIECE:
        yield from (_check_pair(datas[which], index) for which, index in pairs)
        return
    # spawn: the parent may hold threads (a progress bar), which a forked child would inherit half-locked.
    workers = min(workers, -(-len(pairs) // PIECE))
    with ProcessPoolExecutor(workers, get_context("spawn"), _start, (datas,)) as pool:
        try:
            yield from pool.map(_check_shared, pairs, chunksize=PIECE)
        except BrokenProcessPool as error:
            raise OSError("a process of the check was killed; out of memory? Try fewer --workers.") from error


_shared: list[FileData] = []  # of a worker: sent once, not with every piece


def _start(datas: list[FileData]) -> None:
    cv2.setNumThreads(0)
    # Decoders write of each broken file to stderr themselves, through the progress bar; we say it once, at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    _shared[:] = datas


def _check_shared(pair: tuple[int, int]) -> Found:
    return _check_pair(_shared[pair[0]], pair[1])
