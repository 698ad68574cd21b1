"""Compares models on some images: scores, and pictures of the images that differ most."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch

from cacseg.data.pictures import Labels, compare_masks, draw_changes, unique_colours
from cacseg.data.sample import Part, Sample, SegmentationData
from cacseg.engine.evaluate import Evaluation, ImageResult, evaluate
from cacseg.engine.inference import Inference, Scale, segment_each
from cacseg.models.model import SegmentationModel
from cacseg.reports.tables import percent
from cacseg.runtime.colours import Colour, Picture, index_png, jpeg

EACH = 4  # images of a kind
SIDE = 320  # pixels, the longest side of a picture


class Subject(NamedTuple):
    """A model to look at, and its input protocol."""

    name: str
    load: Callable[[], SegmentationModel]
    inference: Inference = Inference()
    scale: Scale | None = None
    precision: str = "fp32"


class Cell(NamedTuple):
    title: str
    words: str  # below the picture
    picture: str  # a data URI
    is_mask: bool = False
    below: bool = False  # the one before it: what it changes


class Strip(NamedTuple):
    name: str  # of the image
    cells: list[Cell]


class Examination(NamedTuple):
    """The results of models on some images of a split."""

    groups: dict[str, list[Strip]]  # by what the images were chosen for
    classes: dict[str, Colour]  # those that occur in the pictures
    scored: int  # images that they were chosen from
    total: int  # of the split
    split: str  # "camvid val"


def evenly_spaced(data: SegmentationData, most: int) -> Part:
    """Evenly spaced images of a split."""
    return Part(data, np.linspace(0, len(data) - 1, min(most, len(data))).round().astype(int).tolist())


def examine(
    subjects: Sequence[Subject],
    data: SegmentationData,
    *,
    images: int,
    device: torch.device,
    batch: int = 1,
    workers: int = 4,
    evaluations: Mapping[str, Evaluation] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Examination:
    """Scores the subjects on at most `images` images and draws those that differ most.

    `evaluations` are those of the whole split, if there are any. `progress` is called with the number of images done,
    of all subjects together.
    """
    part: SegmentationData = evenly_spaced(data, images) if evaluations is None else data
    found = dict(evaluations or {})
    for done, subject in enumerate(subjects):
        if subject.name not in found:
            found[subject.name] = evaluate(
                subject.load(),
                part,
                inference=subject.inference,
                scale=subject.scale,
                boundaries=False,
                device=device,
                precision=subject.precision,
                batch=batch,
                workers=workers,
                progress=partial(_add, progress, done * len(part)),
            )
    chosen, palette = choose_images(found), unique_colours(part.palette)
    places = [place for group in chosen.values() for place in group]
    masks = {subject.name: _masks(subject, found[subject.name], part, places, device) for subject in subjects}
    groups: dict[str, list[Strip]] = {}
    occurring = set[int]()
    for title, group in chosen.items():
        strips = []
        for place in group:
            sample = part.read(place)
            of_image = {name: one[place] for name, one in masks.items()}
            shown = [mask for one in of_image.values() for mask in one.values()]
            occurring.update(*(np.unique(mask).tolist() for mask in (sample.labels, *shown)))
            results = {name: one.images[place] for name, one in found.items()}
            strips.append(Strip(part.image_name(place), _cells(sample, of_image, results, palette, part.ignore_index)))
        groups[title] = strips
    classes = {name: palette[k] for k, name in enumerate(part.class_names) if k in occurring}
    if max(occurring) >= len(palette):
        classes["ignored"] = (0, 0, 0)
    return Examination(groups, classes, len(part), len(data), f"{data.name} {data.split}")


def _add(progress: Callable[[int], None], before: int, done: int, _: object) -> None:
    progress(before + done)


def choose_images(found: Mapping[str, Evaluation], each: int = EACH) -> dict[str, list[int]]:
    """Chooses images by the reason they are shown for, each image once.

    Of one model those where context helps and hurts most, of several those where the others gain and lose most
    against the first; then the worst and the best. Few images are shared out evenly, so that no kind takes all of
    them. Images without a labelled pixel take no part.
    """
    (name, first), *others = found.items()
    own = np.array([_mean_ious(one, one.output) for one in found.values()])
    titles = "Context helps most", "Context hurts most"
    if others:
        gains, titles = own[1:].mean(0) - own[0], (f"Largest gains over {name}", f"Largest losses to {name}")
    else:
        gains = own[0] - _mean_ious(first, "plain")
    values, of = own.mean(0), " on average" if others else ""
    wanted = {
        titles[0]: [k for k in np.argsort(-gains, kind="stable") if gains[k] > 0],
        titles[1]: [k for k in np.argsort(gains, kind="stable") if gains[k] < 0],
        f"Worst images{of}": [k for k in np.argsort(values, kind="stable") if not math.isnan(values[k])],
        f"Best images{of}": [k for k in np.argsort(-values, kind="stable") if not math.isnan(values[k])],
    }
    chosen: dict[str, list[int]] = {}
    counts = _share_out(int((~np.isnan(values)).sum()), [min(each, len(places)) for places in wanted.values()])
    for (title, places), count in zip(wanted.items(), counts, strict=True):
        seen = {place for group in chosen.values() for place in group}
        if kept := [int(k) for k in places if k not in seen][:count]:
            chosen[title if kept == [int(k) for k in places[:count]] else f"{title}, of the others"] = kept
    return chosen


def _share_out(total: int, wishes: Sequence[int]) -> list[int]:
    """Shares places out in turn, until none is left or no more are wanted."""
    given = [0] * len(wishes)
    for turn in range(max(wishes, default=0)):
        for k, wish in enumerate(wishes):
            if turn < wish and sum(given) < total:
                given[k] += 1
    return given


def _mean_ious(found: Evaluation, output: str) -> npt.NDArray[np.float64]:
    return np.array([image.scores(output).mean_iou for image in found.images])


def _masks(
    subject: Subject,
    found: Evaluation,
    data: SegmentationData,
    places: Sequence[int],
    device: torch.device,
) -> dict[int, dict[str, Labels]]:
    """The masks of each image by the plain and by the model's own output."""
    names = list(dict.fromkeys(("plain", found.output)))
    model = subject.load().to(device).eval()
    how = {"inference": subject.inference, "scale": subject.scale, "device": device, "precision": subject.precision}
    return {
        place: dict(zip(names, segment_each(model, data.read(place).image, names, **how), strict=True))  # type: ignore[arg-type]
        for place in places
    }


def _cells(
    sample: Sample,
    masks: Mapping[str, Mapping[str, Labels]],
    results: Mapping[str, ImageResult],
    palette: Sequence[Colour],
    ignore_index: int,
) -> list[Cell]:
    """image | labels | plain | context | changes of one model; or the own masks of several, each beside its changes."""
    image, labels = _small(sample.picture), _small(sample.labels)
    cells = [Cell("image", "", _photo(image)), Cell("labels", "", _mask(labels, palette), True)]
    if len(masks) == 1:
        shown = [(output, name, output, mask) for name, one in masks.items() for output, mask in one.items()]
    else:
        shown = [(name, name, *list(one.items())[-1]) for name, one in masks.items()]
    before = shown[0][3]
    for place, (title, name, output, mask) in enumerate(shown):
        words = f"mIoU {percent(results[name].scores(output).mean_iou)}"
        cells.append(Cell(title, words, _mask(_small(mask), palette), True))
        if place:
            marked = draw_changes(image, _small(before), _small(mask), labels, ignore_index)
            words = _count(before, mask, sample.labels, ignore_index)
            changes = "changes" if len(shown) == 2 else f"changes by {title}"
            cells.append(Cell(changes, words, _photo(marked), below=len(shown) > 2))
    if len(shown) == 1:
        wrong = draw_changes(image, labels, _small(before), labels, ignore_index)
        cells.append(Cell("errors", "", _photo(wrong)))
    return cells


def _count(before: Labels, after: Labels, labels: Labels, ignore_index: int) -> str:
    """The changed pixels as percent of the labelled ones."""
    total = max(1, int((labels != ignore_index).sum()))
    right, wrong, both = (
        100 * float(one.sum()) / total for one in compare_masks(before, after, labels, ignore_index).values()
    )
    return f"{right + wrong + both:.1f} % changed: {right:.1f} right, {wrong:.1f} wrong, {both:.1f} both wrong"


def _small(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """At most SIDE pixels wide and high; labels keep their values."""
    height, width = picture.shape[:2]
    ratio = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    how = cv2.INTER_AREA if picture.ndim == 3 else cv2.INTER_NEAREST
    return np.asarray(cv2.resize(picture, size, interpolation=how), np.uint8)


def _photo(picture: Picture) -> str:
    return data_uri(jpeg(picture, 80), "jpeg")


def _mask(labels: Labels, palette: Sequence[Colour]) -> str:
    return data_uri(index_png(labels, palette), "png")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
