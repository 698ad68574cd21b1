"""Label Studio's 'Brush labels to PNG': a mask for each brush region, and its JSON export, which names the images."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cacseg.data.class_list import ClassList, of_names
from cacseg.data.decode import decode_labels
from cacseg.data.label_map import identity_map
from cacseg.data.layout import ALL, Found, Layout, Listing, Pair, Rules, join
from cacseg.data.reading import read_json
from cacseg.data.sample import FaultyDataError
from cacseg.data.shapes import Canvas
from cacseg.data.spans import mask_runs, paint, run_spans
from cacseg.runtime.decode import IMAGE_SUFFIXES, MAX_PIXELS, max_bytes
from cacseg.runtime.files import Files

# task-3-annotation-7-by-1-tag-tree-0.png: task, annotation, user, name of the control, class, count.
MASK = re.compile(r"task-(\d+)-annotation-(\d+)-by-(.+)-(\d+)\.png")


class Brushes(NamedTuple):
    """Names of the classes, and of each image its path and its masks: a place among the names, and a path."""

    names: tuple[str, ...]
    images: tuple[tuple[str, str, tuple[tuple[int, str], ...]], ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def _masks(files: Files, top: str) -> dict[tuple[int, int], list[tuple[str, int, str]]]:
    """Of each task and annotation: what stands between user and count, the count, the path."""
    found: dict[tuple[int, int], list[tuple[str, int, str]]] = {}
    for path in files.below(top):
        if name := MASK.fullmatch(path.rpartition("/")[2]):
            found.setdefault((int(name[1]), int(name[2])), []).append((name[3], int(name[4]), path))
    return found


def _is_label_studio(files: Files, top: str) -> bool:
    folders = ("", *files.folders(top))
    return any(MASK.fullmatch(name) for folder in folders for name in files.names(join(top, folder)))


@lru_cache(maxsize=2)  # one opening asks for classes and for images
def _read(files: Files, top: str) -> Brushes:
    try:
        return _parse(files, top)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FaultyDataError(
            f"{files.where(top)} has no JSON export of Label Studio ({error!r}). Export it again."
        ) from error


def _parse(files: Files, top: str) -> Brushes:
    masks, tasks = _masks(files, top), list[dict[str, Any]]()
    for name in files.names(top):
        content = read_json(files, join(top, name)) if name.endswith(".json") else None
        tasks += content if isinstance(content, list) else []
    if not tasks:
        raise FaultyDataError(
            f"{files.where(top)} has brush masks and no JSON file that says which image each belongs to. Export the "
            "project as JSON too, and put the file and the images there."
        )
    there = {path.rpartition("/")[2]: path for path in files.below(top) if path.lower().endswith(IMAGE_SUFFIXES)}
    names: dict[str, int] = {}
    images, problems = [], []
    unlabelled = others = 0
    for task in tasks:
        stated = str(task.get("file_upload") or next(map(str, task["data"].values()), "")).rpartition("/")[2]
        image = there.get(stated) or there.get(stated.partition("-")[2])  # uploads get a prefix
        regions: list[tuple[int, str]] = []
        for one in task.get("annotations", ())[-1:]:  # the last one, where several people have labelled
            order: dict[str, tuple[int, str]] = {}
            awaited = Counter[str]()  # masks of each class
            for result in one["result"]:
                if labels := result.get("value", {}).get("brushlabels"):
                    control, label = result["from_name"], "-".join(labels)
                    order.setdefault(f"-{control}-{label}".replace("/", "-"), (len(order), label))
                    names.setdefault(label, len(names))
                    awaited[label] += 1
                else:
                    others += str(result.get("type")).endswith("labels")
            listed = []
            for middle, count, path in masks.get((task["id"], one["id"]), ()):
                if end := next((end for end in order if middle.endswith(end)), None):
                    listed.append((order[end][0], count, names[order[end][1]], path))
                    awaited[order[end][1]] -= 1
                else:
                    problems.append(
                        f"{files.where(path)} has a class that the JSON file does not name. Export both again."
                    )
            problems += [
                f"{count} regions {label!r} of task {task['id']} have no mask in {files.where(top)}: no "
                f"task-{task['id']}-annotation-{one['id']}-...-{label}-*.png. Export the masks again."
                for label, count in awaited.items()
                if count > 0
            ]
            regions = [(label, path) for _, _, label, path in sorted(listed)]
        if image is None:
            problems.append(f"the image of task {task['id']} is not there: {files.where(join(top, stated))}. Add it.")
        elif regions:
            images.append((image.rpartition("/")[2].rpartition(".")[0], image, tuple(regions)))
        else:
            unlabelled += 1
    notes = [f"{unlabelled} images have no brush masks and are left out."] if unlabelled else []
    if others:
        notes.append(f"{others} regions are no brush strokes and are left out; for polygons export COCO.")
    return Brushes(tuple(names), tuple(images), tuple(problems), tuple(notes))


@dataclass(frozen=True)
class BrushLabels:
    canvas: Canvas
    masks: tuple[tuple[tuple[int, str], ...], ...]  # of each row

    def __call__(self, files: Files, pair: Pair, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        spans, labels = [], []
        for k, (label, path) in enumerate(self.masks[pair.row]):
            limit = max(MAX_PIXELS, size[0] * size[1])
            mask = decode_labels(files.read(path, max_bytes(limit)), files.where(path), limit).indices
            if mask is None or mask.shape != size:
                raise FaultyDataError(
                    f"{files.where(path)} must be a grey mask of {size[1]}x{size[0]} pixels, the size of "
                    f"{files.where(pair.image)}. Export it again."
                )
            spans.append(run_spans(mask_runs(mask > 127), k))
            labels.append(label)
        values = self.canvas.values[np.array(labels, np.int64)]
        return paint(spans, values, size, self.canvas.below, self.canvas.smaller_on_top)


def _classes(files: Files, top: str) -> ClassList:
    return of_names(sorted(_read(files, top).names), files.where(top))


def _used(files: Files, top: str, rules: Rules) -> set[str]:
    read = _read(files, top)
    return {read.names[label] for _, _, masks in read.images for label, _ in masks}


def _find(files: Files, top: str, split: str, classes: ClassList, rules: Rules) -> Found:
    read = _read(files, top)
    pairs = tuple(Pair(name, image, masks[0][1], row) for row, (name, image, masks) in enumerate(read.images))
    draw = BrushLabels(Canvas.make(read.names, classes, rules), tuple(masks for _, _, masks in read.images))
    return Found(Listing(pairs, (), (), read.problems, read.notes), identity_map(len(classes.names)), draw=draw)


LABEL_STUDIO = Layout(
    "label_studio",
    "task-*-annotation-*-by-*.png (Brush labels to PNG) + the JSON export + the images",
    (),
    _is_label_studio,
    lambda files, top: {ALL: ""},
    _classes,
    _find,
    _used,
)
