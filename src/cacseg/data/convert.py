"""Writes a data set in another layout: images/ and labels/ of index PNGs, or COCO with run-length masks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from cacseg._files import LOCK, acquire_lock, make_folder, write_file
from cacseg._text import read_json
from cacseg.data.class_list import NO_CLASS, ClassList, parse_classes
from cacseg.data.layout import ALL, Rules, Uncovered
from cacseg.data.open import FileData, check_listing, open_data, open_layout, open_split, try_read
from cacseg.data.sample import FaultyDataError, FaultyImagesError
from cacseg.data.spans import encode_runs, mask_runs
from cacseg.runtime.colours import index_png
from cacseg.runtime.polygons import write_coco

Format = Literal["folder", "coco"]
PARTS = "parts"  # what COCO says of each image, until all are there
TARGETS = {"folder": "classes.txt", "coco": "COCO"}
STATE = "convert.json"  # what the folder is made of, so that another conversion is not mixed with it


def convert(
    name: str,
    root: str | Path,
    output: str | Path,
    *,
    target: Format = "folder",
    rules: Rules,
    workers: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, int]:
    """Writes every split of a data set as the folder `output` and reads it back; the number of images of each split.

    All is written into `output`.part, which gets its name when it was read back and is the same as the source. What was
    stopped goes on there: images that are done are not done again. Of a conversion that was finished nothing is
    written, and it is compared again. Images that cannot be read are named in one `FaultyImagesError`; the others are
    in `output`.part, read back too.
    """
    if target not in get_args(Format):
        raise ValueError(f"the format must be {' or '.join(get_args(Format))}; got {target!r}.")
    output = Path(output).resolve()
    part = output.with_name(f"{output.name}.part")
    layout, files, top, classes = open_layout(name, root, rules)
    opened = []
    for split in layout.splits(files, top):
        data, listing = open_split(layout, files, top, classes, split, rules)
        check_listing(listing, files, f"the split {split!r} of {files.where(top)}")
        opened.append(data)
    text = _check_names(classes, target, files.where(top))
    source: dict[str, Any] = {"root": str(Path(root).resolve()), "name": layout.name, "target": target}
    made_by = [value for key, value in rules._asdict().items() if key != "max_pixels"]  # which may be raised meanwhile
    source |= {"rules": made_by, "classes": list(classes.names)}
    is_finished = _holds(output, source)
    _holds(part, source)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        if is_finished:
            for data in opened:
                _check_split(data, output, target, pool, _split_name(data, opened, target))
            return {data.split: len(data) for data in opened}
        make_folder(output.parent)
        make_folder(part)
        with acquire_lock(part, "converting"):
            write_file(part / STATE, json.dumps(source, indent=2) + "\n")
            if target == "folder":
                write_file(part / "classes.txt", text)
            faults = {}
            for data in opened:
                split = _split_name(data, opened, target)
                faults[data.split] = _convert_split(data, part, target, pool, progress, split)
            for data in opened:
                _check_split(data, part, target, pool, _split_name(data, opened, target), faults[data.split])
            reasons = [reason for of_split in faults.values() for reason in of_split.values()]
            if not reasons and (part / PARTS).is_dir():
                shutil.rmtree(part / PARTS)
        (part / LOCK).unlink(missing_ok=True)
        if reasons:
            raise FaultyImagesError(
                f"{len(reasons)} of {sum(map(len, opened))} images cannot be read; {part} has the others. Mend or "
                "remove these and run the same command again, or rename that folder to do without them.",
                reasons,
            )
        if output.exists():  # and empty
            output.rmdir()
        part.rename(output)
    return {data.split: len(data) for data in opened}


def _check_names(classes: ClassList, target: Format, where: str) -> str:
    """The text of classes.txt; an error where a class could not be read back by its name."""
    colours = zip(classes.names, classes.palette, strict=True)
    lines = [f"{one} #{red:02x}{green:02x}{blue:02x}" for one, (red, green, blue) in colours]
    for name, line in zip(classes.names, lines, strict=True):
        if target == "coco":
            is_whole = name not in NO_CLASS
        else:
            try:
                is_whole = parse_classes(line, "").names == (name,)
            except ValueError:
                is_whole = False
        if not is_whole:
            raise ValueError(f"{TARGETS[target]} cannot hold the name {name!r} of a class of {where}. Rename it there.")
    if len(classes.names) == 1:
        raise ValueError(
            f"{where} has one class, {classes.names[0]!r}, and would be read back with a background added. Add a class "
            "'background' there."
        )
    return "".join(f"{line}\n" for line in lines)


def _holds(folder: Path, source: dict[str, Any]) -> bool:
    """Whether a folder holds this conversion; an error where it holds something else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    state = folder / STATE
    if not folder.is_dir() or not state.is_file() or read_json(state, dict) != source:
        raise FileExistsError(f"{folder} holds files of something else. Choose another folder.")
    return True


def _split_name(data: FileData, opened: Sequence[FileData], target: Format) -> str:
    """COCO's tools call data without splits default."""
    is_alone = len(opened) == 1 and data.split not in ("train", "val", "test")
    return "default" if target == "coco" and is_alone else data.split


def _convert_split(
    data: FileData,
    output: Path,
    target: Format,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, int, int], None] | None,
    split: str,
) -> dict[int, str]:
    """Why images could not be read, by their places."""

    def write(index: int) -> str | None:
        image, labels = _paths(data, index, output, split)
        made = labels if target == "folder" else _part(data, index, output, split)
        if image.exists() and made.exists():
            return None
        sample = try_read(data, index)
        if isinstance(sample, str):
            return sample
        if not image.exists():
            write_file(image, data.files.read(data.pairs[index].image))
        if target == "folder":
            write_file(labels, index_png(sample.labels, data.palette))
        else:
            write_file(made, _annotations(sample.labels, image.relative_to(output / "images" / split).as_posix()))
        return None

    faults: dict[int, str] = {}
    for index, fault in enumerate(pool.map(write, range(len(data)))):
        if fault is not None:
            faults[index] = fault
        if progress is not None:
            progress(data.split, index + 1, len(data))
    if target == "coco":
        parts = (_part(data, index, output, split) for index in range(len(data)) if index not in faults)
        place = output / "annotations" / f"instances_{split}.json"
        write_coco(place, data.class_names, (path.read_text() for path in parts))
    return faults


def _part(data: FileData, index: int, output: Path, split: str) -> Path:
    return output / PARTS / split / f"{data.pairs[index].name}.json"


def _paths(data: FileData, index: int, output: Path, split: str) -> tuple[Path, Path]:
    pair = data.pairs[index]
    suffix = pair.image.rpartition(".")[2]
    return (
        output / "images" / split / f"{pair.name}.{suffix}",
        output / "labels" / split / f"{pair.name}.png",
    )


def _annotations(labels: npt.NDArray[np.uint8], file_name: str) -> str:
    """What a COCO file says of one image: for each class a mask in compressed runs."""
    found = []
    for label in np.unique(labels[labels != 255]).tolist():
        mask = labels == label
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        top, left = int(rows[0]), int(columns[0])
        found.append(
            {
                "category_id": label + 1,
                "segmentation": {"size": list(labels.shape), "counts": encode_runs(mask_runs(mask)).decode()},
                "area": int(mask.sum()),
                "bbox": [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
                "iscrowd": 0,
            }
        )
    image = {"file_name": file_name, "height": labels.shape[0], "width": labels.shape[1]}
    return json.dumps({"image": image, "annotations": found})


def _check_split(
    data: FileData, output: Path, target: Format, pool: ThreadPoolExecutor, split: str, left_out: Collection[int] = ()
) -> None:
    """Reads back what was written: the same images and the same labels, but for those left out."""
    places = [index for index in range(len(data)) if index not in left_out]
    if not places:
        return
    read_as = ALL if target == "coco" and split == "default" else split
    uncovered: Uncovered = "ignore" if target == "coco" else "background"
    written = open_data(target, output, read_as, uncovered=uncovered, max_pixels=data.max_pixels)
    names: Sequence[str] = [written.image_name(k) for k in range(len(written))]
    place = {name: k for k, name in enumerate(names)}

    def differs(index: int) -> bool:
        name = data.image_name(index)
        return name not in place or not np.array_equal(data.read(index).labels, written.read(place[name]).labels)

    wrong = [data.image_name(k) for k, one in zip(places, pool.map(differs, places), strict=True) if one]
    if wrong or len(written) != len(places) or tuple(written.class_names) != tuple(data.class_names):
        what = f"{len(wrong)} images, {wrong[0]} among them" if wrong else "files that are not of it"
        raise FaultyDataError(
            f"{output} is not what {data.files.where('')} holds: {what}. Was the source changed meanwhile? Remove the "
            "folder and convert again."
        )
