"""Scores a model on a split of a data set. Each image is read once; only counts are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

from cacseg.classifier import ContextAwareClassifier
from cacseg.data.sample import FaultyDataError, FaultyImagesError, SegmentationData, read_sample
from cacseg.engine.device import autocast, check_memory, explain_memory
from cacseg.engine.inference import Inference, Scale, collate, output_names, predict_each, send, view_image
from cacseg.engine.tiled import comes_in_parts, networks_for, parts_of
from cacseg.metrics import Scores, Tally, boundary_tally, confusion, most_likely, scores, tally
from cacseg.models.files import list_names
from cacseg.models.model import SegmentationModel
from cacseg.runtime.prefetch import batch_by_key, prefetch

T = TypeVar("T")
FETCHED = 256  # tallies of images at a time
Counts = Mapping[str, Tensor]  # a confusion matrix [n, n] for each output
Progress = Callable[[int, Counts], None]  # images done by this process, counts so far (on the device)


class ImageResult(NamedTuple):
    """What is kept of an image."""

    place: int  # in the data set
    name: str
    size: tuple[int, int]
    tallies: dict[str, Tally]

    def scores(self, output: str) -> Scores:
        """Of this image alone; classes in neither its labels nor its prediction are left out of the means."""
        return scores(self.tallies[output])


class ImageCounts(NamedTuple):
    """All that is counted of an image."""

    name: str
    size: tuple[int, int]
    counts: dict[str, Tensor]  # a confusion matrix [n, n] for each output
    near: dict[str, Tensor]  # [3, n] of `boundary_tally`, where it is counted


@dataclass(frozen=True)
class Evaluation:
    """Counts over the whole split for each output (see `SegmentationModel.all_logits`), and each image's scores."""

    class_names: tuple[str, ...]
    counts: dict[str, Tensor]
    images: tuple[ImageResult, ...]  # in the order of the data set
    output: str  # the model's default
    boundaries: dict[str, Tally] = field(default_factory=dict)  # of each output, where they were counted

    def scores(self, output: str | None = None) -> Scores:
        output = self.output if output is None else output
        return scores(self.counts[output], self.boundaries.get(output))

    def worst_first(self) -> list[ImageResult]:
        """The images by their own mean IoU; those without a labelled pixel last."""
        return sorted(self.images, key=lambda one: np.nan_to_num(one.scores(self.output).mean_iou, nan=np.inf))


def compare_classes(model: SegmentationModel, data: SegmentationData) -> list[str]:
    """An error where model and data have not the same number of classes; a line for each name that differs."""
    theirs, ours = list(data.class_names), model.class_names
    if model.num_classes != len(theirs):
        listed = f" ({list_names(list(ours))})" if ours is not None else ""
        raise ValueError(
            f"model and data must have the same classes; the model has {model.num_classes}{listed}, {data.name} has "
            f"{len(theirs)} ({list_names(theirs)}). Give the data set that the model was trained for."
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
    boundaries: bool = True,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    batch: int = 1,
    workers: int = 4,
    progress: Progress | None = None,
    places: Sequence[int] | None = None,
    keep: Callable[[ImageCounts], None] | None = None,
) -> Evaluation:
    """Runs the model over the split and counts. Predictions are compared with the labels at the labels' own size.

    `workers` threads decode and resize ahead; up to `batch` images of equal size run together, which changes nothing
    but rounding. In a process group images are sharded round-robin over ranks, counts are summed and images gathered,
    so that all ranks return the same. With `oracle` the model must have that branch; in windows and at other scales it
    gets the labels of the same part of the image. `boundaries` counts boundary IoU as well. `places` are the images
    that are scored; None is all of them. `keep` is called with the counts of each image.

    Images that cannot be read end in one `FaultyImagesError` that names them all, and in no score. After the first of
    them the others are only read, unless `keep` has a use for their counts.
    """
    device = torch.device(device)
    compare_classes(model, data)
    if len(data) == 0:
        raise ValueError(f"the split {data.split!r} of {data.name} has no images. Nothing can be evaluated on it.")
    names = output_names(model, oracle)
    if oracle and "oracle" not in names:
        raise ValueError("the model has no oracle: its classifier is plain, or the branch was left out.")
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    places = range(len(data)) if places is None else places
    share = places[rank::ranks]  # each image once, whatever the number of ranks
    n, was_training = model.num_classes, model.training
    totals = {name: torch.zeros(n, n, dtype=torch.long, device=device) for name in names}
    near = {name: torch.zeros(3, n, dtype=torch.long, device=device) for name in names if boundaries}
    tallies = _ImageTallies()
    faults: list[str] = []

    def read(index: int) -> _LoadedImage | str:
        try:
            sample = read_sample(data, index)
        except FaultyDataError as error:
            return str(error)
        labels = torch.from_numpy(np.ascontiguousarray(sample.labels))
        return _LoadedImage(index, data.image_name(index), view_image(sample.image, scale, inference.ratios), labels)

    def readable() -> Iterator[_LoadedImage]:
        for one in prefetch(read, share, workers, nbytes=lambda one: 0 if isinstance(one, str) else one.nbytes()):
            if isinstance(one, str):
                faults.append(one)
            else:
                yield one

    def shapes(one: _LoadedImage) -> tuple[torch.Size, torch.Size]:
        return one.views[0].shape, one.labels.shape

    groups = batch_by_key(readable(), shapes, batch, nbytes=_LoadedImage.nbytes)
    model.to(device).eval()
    done = 0
    try:
        for group in groups:
            if faults and keep is None:
                continue
            height, width = group[0].labels.shape
            described = f"{len(group)} image(s) of {width}x{height} ({group[0].name})"
            if "oracle" in names or not comes_in_parts(inference, group[0].views[0], (height, width)):
                try:
                    check_memory(device, n, (height, width), [one.views for one in group], inference.window is None)
                except MemoryError as error:
                    raise ValueError(f"{group[0].name}: {error}") from error
            with explain_memory(described, device), autocast(device, precision):
                labels = send(torch.stack([one.labels for one in group]), device)
                known = _oracle_labels(model, labels, data.ignore_index) if "oracle" in names else None
                found = _predictions(
                    model, names, [one.views for one in group], (height, width), inference, known, device
                )
                kept = [ImageCounts(one.name, (height, width), {}, {}) for one in group]
                for name, predictions in zip(names, found, strict=True):
                    for place, (one, predicted, labelled) in enumerate(zip(group, predictions, labels, strict=True)):
                        counts = confusion(predicted, labelled, n, data.ignore_index)
                        totals[name] += counts
                        tallies.add(one, name, counts)
                        kept[place].counts[name] = counts
                        if boundaries:
                            band = torch.stack(boundary_tally(predicted, labelled, n, data.ignore_index))
                            near[name] += band
                            kept[place].near[name] = band
            if keep is not None:
                for image in kept:
                    keep(image)
            done += len(group)
            if progress is not None:
                progress(done, totals)
    finally:
        model.train(was_training)
    if ranks > 1:
        faults = [fault for part in _gather_objects(faults, ranks) for fault in part]
    if faults:
        split = f"the split {data.split!r} of {data.name}"
        raise FaultyImagesError(
            f"{len(faults)} of {len(places)} images of {split} cannot be used, so there is no score.", faults
        )
    results = tallies.finish()
    if ranks > 1:
        results = _gather(results, [*totals.values(), *near.values()], ranks)
    if [one.place for one in results] != list(places):
        raise RuntimeError(f"{len(places)} images must be counted once each; {len(results)} were.")
    found_counts = {name: counts.cpu() for name, counts in totals.items()}
    if len(places) == len(data):
        check_labelled(found_counts, data)
    near_contours = {name: Tally(*counts.cpu()) for name, counts in near.items()}
    return Evaluation(tuple(data.class_names), found_counts, tuple(results), model.default_output, near_contours)


def check_labelled(counts: Counts, data: SegmentationData) -> None:
    """An error where there is nothing to score."""
    if counts["plain"].sum() == 0:
        raise ValueError(
            f"no pixel of {len(data)} images is labelled: every label is the ignore index {data.ignore_index}. Look at "
            "the labels, and at what is ignored."
        )


def _predictions(
    model: SegmentationModel,
    names: Sequence[str],
    views: Sequence[list[Tensor]],
    size: tuple[int, int],
    inference: Inference,
    known: Tensor | None,
    device: torch.device,
) -> Iterator[Tensor]:
    """The classes [b, H, W] of each output in turn."""
    if "oracle" not in names and comes_in_parts(inference, views[0][0], size):
        assert inference.tiling is not None
        masks = [torch.empty((len(views), *size), dtype=torch.uint8, device=device) for _ in names]
        for place, (view,) in enumerate(views):
            mean, std = tuple(model.mean), tuple(model.std)
            for box, scores in parts_of(model, view, names, inference.tiling, mean, std, device):
                for mask, one in zip(masks, scores, strict=True):
                    mask[place, box.top : box.bottom, box.left : box.right] = most_likely(one, 0)
        yield from masks
    else:
        shown = collate(views, model, device)
        for logits in predict_each(networks_for(model, names, inference), shown, size, inference, known):
            yield most_likely(logits, 1)


class _LoadedImage(NamedTuple):
    place: int
    name: str
    views: list[Tensor]  # uint8 [3, h, w], one for each ratio
    labels: Tensor  # uint8 [H, W]

    def nbytes(self) -> int:
        return self.labels.nbytes + sum(view.nbytes for view in self.views)


class _ImageTallies:
    """The tallies of each image, fetched from the device `FETCHED` at a time: each fetch waits for it."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, str], Tensor] = {}
        self.images: dict[int, ImageResult] = {}

    def add(self, image: _LoadedImage, output: str, counts: Tensor) -> None:
        size = (image.labels.shape[0], image.labels.shape[1])
        self.images.setdefault(image.place, ImageResult(image.place, image.name, size, {}))
        self.waiting[image.place, output] = torch.stack(tally(counts)).int()
        if len(self.waiting) >= FETCHED:
            self._fetch()

    def finish(self) -> list[ImageResult]:
        self._fetch()
        return [self.images[index] for index in sorted(self.images)]

    def _fetch(self) -> None:
        if self.waiting:
            fetched = torch.stack(list(self.waiting.values())).cpu()
            for (index, output), rows in zip(self.waiting, fetched, strict=True):
                self.images[index].tallies[output] = Tally(*rows)
            self.waiting.clear()


def _oracle_labels(model: SegmentationModel, labels: Tensor, ignore_index: int) -> Tensor:
    """Labels with the ignore index that the model was made with, for its oracle."""
    assert isinstance(model.classifier, ContextAwareClassifier)
    return torch.where(labels == ignore_index, model.classifier.ignore_index, labels.long())


def _gather(images: list[ImageResult], totals: Iterable[Tensor], ranks: int) -> list[ImageResult]:
    """Sums the counts of all ranks in place; returns the images of all ranks, in order."""
    for counts in totals:
        distributed.all_reduce(counts)
    gathered = _gather_objects(images, ranks)
    return sorted((image for part in gathered for image in part), key=lambda image: image.place)


def _gather_objects(mine: list[T], ranks: int) -> list[list[T]]:
    """The lists of all ranks."""
    gathered: list[list[T]] = [[] for _ in range(ranks)]
    distributed.all_gather_object(gathered, mine)
    return gathered
