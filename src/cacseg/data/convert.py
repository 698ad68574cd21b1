"""Writes a data set in another layout: images/ and labels/ of index PNGs, or COCO with run-length masks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from cacseg._files import acquire_lock, make_folder, write_file
from cacseg.data.layout import Rules
from cacseg.data.open import FileData, check_listing, open_data, open_layout, open_split
from cacseg.data.sample import FaultyDataError
from cacseg.data.spans import encode_runs, mask_runs
from cacseg.runtime.colours import index_png

Format = Literal["folder", "coco"]
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
    """Writes every split of a data set below `output` and reads it back; the number of images of each split.

    Files are written whole or not at all, and those that are there already are kept, so a conversion that was stopped
    goes on where it was. Nothing is written where the data set has faults.
    """
    if target not in get_args(Format):
        raise ValueError(f"the format must be {' or '.join(get_args(Format))}; got {target!r}.")
    output = Path(output)
    layout, files, top, classes = open_layout(name, root, rules)
    opened = []
    for split in layout.splits(files, top):
        data, listing = open_split(layout, files, top, classes, split, rules)
        check_listing(listing, files, f"the split {split!r} of {files.where(top)}")
        opened.append(data)
    source: dict[str, Any] = {"root": str(Path(root).resolve()), "name": layout.name, "target": target}
    source |= {"rules": list(rules), "classes": list(classes.names)}
    if output.exists() and any(output.iterdir()):
        before = json.loads((output / STATE).read_text()) if (output / STATE).is_file() else None
        if before != source:
            raise FileExistsError(f"{output} holds files of something else. Choose another folder.")
    make_folder(output)
    with acquire_lock(output, "converting"):
        write_file(output / STATE, json.dumps(source, indent=2) + "\n")
        colours = zip(classes.names, classes.palette, strict=True)
        text = "".join(f"{one} #{red:02x}{green:02x}{blue:02x}\n" for one, (red, green, blue) in colours)
        if target == "folder":
            write_file(output / "classes.txt", text)
        with ThreadPoolExecutor(max(1, workers)) as pool:
            for data in opened:
                _convert_split(data, output, target, pool, progress)
            for data in opened:
                _check_split(data, output, target, pool)
    return {data.split: len(data) for data in opened}


def _convert_split(
    data: FileData,
    output: Path,
    target: Format,
    pool: ThreadPoolExecutor,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    def write(index: int) -> list[dict[str, Any]]:
        image, labels = _paths(data, index, output)
        if target == "folder" and image.exists() and labels.exists():
            return []
        sample = data.read(index)
        if not image.exists():
            write_file(image, data.files.read(data.pairs[index].image))
        if target == "coco":
            return _annotations(sample.labels, index)
        write_file(labels, index_png(sample.labels, data.palette))
        return []

    place = output / "annotations" / f"instances_{data.split}.json"
    if target == "coco" and place.exists():
        return
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index, found in enumerate(pool.map(write, range(len(data)))):
        if target == "coco":
            image = _paths(data, index, output)[0].relative_to(output / "images" / data.split).as_posix()
            height, width = found[0]["segmentation"]["size"] if found else data.read(index).labels.shape
            images.append({"id": index + 1, "file_name": image, "height": height, "width": width})
            annotations += [{"id": len(annotations) + k + 1, **one} for k, one in enumerate(found)]
        if progress is not None:
            progress(data.split, index + 1, len(data))
    if target == "coco":
        categories = [{"id": k + 1, "name": name, "supercategory": ""} for k, name in enumerate(data.class_names)]
        content = {"info": {}, "licenses": [], "images": images, "annotations": annotations, "categories": categories}
        write_file(place, json.dumps(content))


def _paths(data: FileData, index: int, output: Path) -> tuple[Path, Path]:
    pair = data.pairs[index]
    suffix = pair.image.rpartition(".")[2]
    return (
        output / "images" / data.split / f"{pair.name}.{suffix}",
        output / "labels" / data.split / f"{pair.name}.png",
    )


def _annotations(labels: np.ndarray[Any, np.dtype[np.uint8]], index: int) -> list[dict[str, Any]]:
    """One for each class of the image, a mask in COCO's compressed runs."""
    found = []
    for label in np.unique(labels[labels != 255]).tolist():
        mask = labels == label
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        top, left = int(rows[0]), int(columns[0])
        found.append(
            {
                "image_id": index + 1,
                "category_id": label + 1,
                "segmentation": {"size": list(labels.shape), "counts": encode_runs(mask_runs(mask)).decode()},
                "area": int(mask.sum()),
                "bbox": [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
                "iscrowd": 0,
            }
        )
    return found


def _check_split(data: FileData, output: Path, target: Format, pool: ThreadPoolExecutor) -> None:
    """Reads back what was written: the same images and the same labels."""
    written = open_data(target, output, data.split, uncovered="ignore" if target == "coco" else "background")
    names: Sequence[str] = [written.image_name(k) for k in range(len(written))]
    place = {name: k for k, name in enumerate(names)}

    def differs(index: int) -> bool:
        name = data.image_name(index)
        return name not in place or not np.array_equal(data.read(index).labels, written.read(place[name]).labels)

    wrong = [data.image_name(k) for k, one in enumerate(pool.map(differs, range(len(data)))) if one]
    if wrong or len(written) != len(data) or tuple(written.class_names) != tuple(data.class_names):
        what = f"{len(wrong)} images, {wrong[0]} among them" if wrong else "files that are not of it"
        raise FaultyDataError(
            f"{output} is not what {data.files.where('')} holds: {what}. Was the source changed meanwhile? Remove the "
            "folder and convert again."
        )
