"""A model scored on a split of a data set: every image once, no scores kept but the counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed

from cacseg.classifier import ContextAwareClassifier
from cacseg.data.sample import SegmentationData
from cacseg.engine.ahead import ahead, by_key
from cacseg.engine.device import autocast, explain_memory
from cacseg.engine.inference import Inference, predict_each
from cacseg.engine.views import Scale, answer_names, collate, networks_of, send, view_image
from cacseg.metrics import Scores, Tally, confusion, scores, tally
from cacseg.models.model import SegmentationModel

Counts = Mapping[str, Tensor]  # a confusion matrix [n, n] for each answer
Progress = Callable[[int, Counts], None]  # images done here so far, counts so far (on the device)


class ImageResult(NamedTuple):
    """What is kept of an image."""

    place: int  # in the data set
    name: str
    size: tuple[int, int]
    tallies: dict[str, Tally]

    def scores(self, answer: str) -> Scores:
        """Of this image alone: classes that it neither has nor is said to have are left out of its means."""
        return scores(self.tallies[answer])


@dataclass(frozen=True)
class Evaluation:
    """Counts over the whole split for each answer (see `SegmentationModel.all_logits`), and the images one by one."""

    class_names: tuple[str, ...]
    counts: dict[str, Tensor]
    images: tuple[ImageResult, ...]  # in the order of the data set
    answer: str  # the one that the model gives when it is simply called

    def scores(self, answer: str | None = None) -> Scores:
        return scores(self.counts[self.answer if answer is None else answer])

    def worst_first(self) -> list[ImageResult]:
        """The images by their own mean IoU; those without a labelled pixel last."""

        def key(image: ImageResult) -> tuple[float, int]:
            value = image.scores(self.answer).mean_iou
            return (math.inf if math.isnan(value) else value), image.place

        return sorted(self.images, key=key)


def compare_classes(model: SegmentationModel, data: SegmentationData) -> list[str]:
    """An error where model and data have not the same number of classes; a line for each name that differs."""
    theirs, ours = list(data.class_names), model.class_names
    if model.num_classes != len(theirs):
        listed = f" ({_list(ours)})" if ours is not None else ""
        raise ValueError(
            f"model and data must have the same classes; the model has {model.num_classes}{listed}, {data.name} has "
            f"{len(theirs)} ({_list(theirs)}). Give the data set that the model was trained for."
        )
    pairs = enumerate(zip(ours or theirs, theirs, strict=True))
    return [f"class {k} is {a!r} in the model and {b!r} in {data.name}" for k, (a, b) in pairs if a != b]


def evaluate(
    model: SegmentationModel,
    data: SegmentationData,
    *,
    inference: Inference = Inference(),  # noqa: B008 (frozen)
    scale: Scale | None = None,
    oracle: bool = False,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    batch: int = 1,
    workers: int = 4,
    progress: Progress | None = None,
) -> Evaluation:
    """Runs the model over the split and counts. Answers are compared with the labels at the labels' own size.

    Images are decoded and resized ahead by `workers` threads; images of one size may go together (`batch`), which
    changes nothing but rounding. In a process group each process takes every so many-th image, counts are summed and
    the images gathered, so that all processes return the same. With `oracle` the model must have that branch; in
    windows and at other scales it is given the labels of what it is shown.
    """
    device = torch.device(device)
    compare_classes(model, data)
    if len(data) == 0:
        raise ValueError(f"the split {data.split!r} of {data.name} has no images. Nothing can be evaluated on it.")
    names = answer_names(model, oracle)
    if oracle and "oracle" not in names:
        raise ValueError("the model has no oracle: its classifier is plain, or the branch was left out.")
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    share = range(rank, len(data), ranks)  # none twice, none left out, whatever the number of processes
    n, was_training = model.num_classes, model.training
    totals = {name: torch.zeros(n, n, dtype=torch.long, device=device) for name in names}
    rows = _Rows(names)
    read = _Reader(data, n, scale, inference.ratios)
    images = ahead(read, share, workers, weigh=_Shown.weigh)
    groups = by_key(images, lambda one: (one.views[0].shape, one.labels.shape), batch, weigh=_Shown.weigh)
    model.to(device).eval()
    done = 0
    try:
        for group in groups:
            with explain_memory(_describe(group), device), autocast(device, precision):
                for one, name, counts in _count(group, model, names, inference, data.ignore_index, device):
                    totals[name] += counts
                    rows.add(one, name, counts)
            done += len(group)
            if progress is not None:
                progress(done, totals)
    finally:
        model.train(was_training)
    results = rows.finish()
    if ranks > 1:
        results = _gather(results, totals, ranks)
    if [one.place for one in results] != list(range(len(data))):
        raise RuntimeError(f"{len(data)} images must be counted once each; {len(results)} were.")
    found_counts = {name: counts.cpu() for name, counts in totals.items()}
    if found_counts["plain"].sum() == 0:
        raise ValueError(
            f"no pixel of {len(data)} images is labelled: every label is the ignore index {data.ignore_index}. Look at "
            "the labels, and at what is ignored."
        )
    return Evaluation(tuple(data.class_names), found_counts, tuple(results), model.default_output)


class _Shown(NamedTuple):
    place: int
    name: str
    views: list[Tensor]  # uint8 [3, h, w], one for each ratio
    labels: Tensor  # uint8 [H, W]

    def weigh(self) -> int:
        """Bytes."""
        return self.labels.nbytes + sum(view.nbytes for view in self.views)


class _Reader:
    """Reads an image and its labels, checks them, and resizes the image; run by the threads."""

    def __init__(
        self, data: SegmentationData, num_classes: int, scale: Scale | None, ratios: tuple[float, ...]
    ) -> None:
        self.data, self.num_classes, self.scale, self.ratios = data, num_classes, scale, ratios

    def __call__(self, index: int) -> _Shown:
        sample, name = self.data.read(index), self.data.image_name(index)
        if sample.labels.shape != sample.image.shape[:2]:
            (height, width), (rows, columns) = sample.image.shape[:2], sample.labels.shape
            raise ValueError(
                f"labels must have the size of their image; {name} of {self.data.name} is {width}x{height} and its "
                f"labels are {columns}x{rows}. `cacseg data check` finds all of these."
            )
        present = np.flatnonzero(np.bincount(sample.labels.ravel(), minlength=256))
        wrong = [k for k in present.tolist() if k >= self.num_classes and k != self.data.ignore_index]
        if wrong:
            raise ValueError(
                f"labels must be in [0, {self.num_classes}) or the ignore index {self.data.ignore_index}; {name} of "
                f"{self.data.name} has {_list(wrong)}. `cacseg data check` finds all of these."
            )
        views = view_image(sample.image, self.scale, self.ratios)
        return _Shown(index, name, views, torch.from_numpy(np.ascontiguousarray(sample.labels)))


def _count(
    group: list[_Shown],
    model: SegmentationModel,
    names: list[str],
    inference: Inference,
    ignore_index: int,
    device: torch.device,
) -> Iterator[tuple[_Shown, str, Tensor]]:
    """The confusion matrix of each answer on each image of a batch, from one pass."""
    labels = send(torch.stack([one.labels for one in group]), device)
    known = _known_labels(model, labels, ignore_index) if "oracle" in names else None
    shown = collate([one.views for one in group], model, device)
    found = predict_each(networks_of(model, names), shown, (labels.shape[1], labels.shape[2]), inference, known)
    for name, logits in zip(names, found, strict=True):
        for place, one in enumerate(group):
            yield one, name, confusion(logits[place].argmax(0), labels[place], model.num_classes, ignore_index)


def _describe(group: list[_Shown]) -> str:
    height, width = group[0].labels.shape
    return f"{len(group)} image(s) of {width}x{height} ({group[0].name})"


class _Rows:
    """The tallies of the images. They stay on the device for a while, so that nobody waits for each of them."""

    def __init__(self, names: list[str], flush: int = 256) -> None:
        self.names, self.flush = names, flush
        self.waiting: dict[tuple[int, str], Tensor] = {}
        self.images: dict[int, ImageResult] = {}

    def add(self, image: _Shown, answer: str, counts: Tensor) -> None:
        size = (image.labels.shape[0], image.labels.shape[1])
        self.images.setdefault(image.place, ImageResult(image.place, image.name, size, {}))
        self.waiting[image.place, answer] = torch.stack(tally(counts)).int()
        if len(self.waiting) >= self.flush:
            self._fetch()

    def finish(self) -> list[ImageResult]:
        self._fetch()
        return [self.images[index] for index in sorted(self.images)]

    def _fetch(self) -> None:
        if self.waiting:
            fetched = torch.stack(list(self.waiting.values())).cpu()
            for (index, answer), rows in zip(self.waiting, fetched, strict=True):
                self.images[index].tallies[answer] = Tally(*rows)
            self.waiting.clear()


def _known_labels(model: SegmentationModel, labels: Tensor, ignore_index: int) -> Tensor:
    """Labels as the oracle wants them: with the ignore index that the model was made with."""
    assert isinstance(model.classifier, ContextAwareClassifier)
    return torch.where(labels == ignore_index, model.classifier.ignore_index, labels.long())


def _gather(images: list[ImageResult], totals: dict[str, Tensor], ranks: int) -> list[ImageResult]:
    """Sums the counts of all processes in place; everybody's images, in order."""
    for counts in totals.values():
        distributed.all_reduce(counts)
    gathered: list[list[ImageResult] | None] = [None] * ranks
    distributed.all_gather_object(gathered, images)
    return sorted((image for part in gathered for image in part or ()), key=lambda image: image.place)


def _list(values: object) -> str:
    shown = [str(value) for value in values]  # type: ignore[attr-defined]
    return ", ".join(shown[:6]) + (", ..." if len(shown) > 6 else "")
