"""Predicts many images: read ahead in threads, batched by size, written in threads."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from cacseg._files import write_file
from cacseg.data.decode import decode_image
from cacseg.data.pictures import jpeg, overlay, save_index_png
from cacseg.data.sample import Colour
from cacseg.engine.device import autocast, explain_memory, is_out_of_memory
from cacseg.engine.inference import Inference, Scale, collate, networks_of, predict_each, view_image
from cacseg.engine.inputs import Input, Journal
from cacseg.engine.prefetch import batch_by_key, prefetch
from cacseg.metrics import most_likely
from cacseg.models.model import SegmentationModel

_Kind = TypeVar("_Kind")

JPEG_SIDE = 65500  # pixels that a JPEG may be wide or high


@dataclass(frozen=True)
class SaveOptions:
    """What is written for each image beside its mask.

    Args:
        overlays: the mask over the image, `overlays/NAME.jpg`.
        confidence: the probability of the predicted class, `confidence/NAME.png`: 0 to 1 as 0 to 255 (or to 65535).
        entropy: of the probabilities over the logarithm of the class count, `entropy/NAME.png`, scaled likewise.
        opacity: of the overlay's colours.
        bits: 8 or 16, of confidence and entropy maps.
    """

    overlays: bool = True
    confidence: bool = False
    entropy: bool = False
    opacity: float = 0.5
    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in (8, 16):
            raise ValueError(f"maps have 8 or 16 bits; got {self.bits}.")
        if not 0.0 <= self.opacity <= 1.0:
            raise ValueError(f"opacity must be in [0, 1]; got {self.opacity}.")

    def paths(self, folder: Path, name: str) -> dict[str, Path]:
        kinds = {"masks": (True, "png"), "overlays": (self.overlays, "jpg")}
        kinds |= {"confidence": (self.confidence, "png"), "entropy": (self.entropy, "png")}
        return {kind: folder / kind / f"{name}.{suffix}" for kind, (wanted, suffix) in kinds.items() if wanted}


class Failure(NamedTuple):
    path: Path
    reason: str


class Summary(NamedTuple):
    written: int
    skipped: int  # done by an earlier run
    failed: list[Failure]


class _LoadedImage(NamedTuple):
    item: Input
    image: npt.NDArray[np.uint8]
    views: list[Tensor]

    def nbytes(self) -> int:
        return self.image.nbytes + sum(view.nbytes for view in self.views)


class _Prediction(NamedTuple):
    item: Input
    image: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    maps: dict[str, npt.NDArray[np.unsignedinteger]]

    def nbytes(self) -> int:
        return self.image.nbytes + self.mask.nbytes + sum(one.nbytes for one in self.maps.values())


def predict_images(
    model: SegmentationModel,
    inputs: Sequence[Input],
    journal: Journal,
    palette: Sequence[Colour],
    *,
    save: SaveOptions = SaveOptions(),  # noqa: B008 (frozen)
    inference: Inference = Inference(),  # noqa: B008 (frozen)
    scale: Scale | None = None,
    output: str | None = None,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    batch: int = 1,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Writes the prediction of each image into the journal's folder, at the image's own size.

    Args:
        model: in evaluation mode afterwards, on `device`.
        inputs: the images. One whose files are all in place by the journal is skipped; one that cannot be read, or does
            not fit into memory even alone, is a `Failure`, and the rest goes on.
        journal: of the folder. A file that cannot be written there raises.
        palette: of masks and overlays.
        save: which files are written.
        inference, scale: how images are shown to the model.
        output: "plain" for the fixed classifier; None is the model's default.
        device, precision, batch: where and how the model runs; up to `batch` images of equal size run together.
        workers: threads that read, and as many that write; `prefetch` bounds the memory of images that wait.
        progress: called with the number of finished images, skipped ones included, and how many of them failed.
    """
    if model.num_classes > 256:
        raise ValueError(f"a mask of 8 bits holds at most 256 classes; the model has {model.num_classes}.")
    device, output = torch.device(device), model.default_output if output is None else output

    def is_done(item: Input) -> bool:
        return journal.is_done(item) and all(path.exists() for path in save.paths(journal.folder, item.name).values())

    todo = [item for item in inputs if not is_done(item)]
    predictor = _Predictor(model.to(device).eval(), inference, scale, output, device, precision, save)
    failed: list[Failure] = []

    def without_failures(results: Iterable[_Kind | Failure]) -> Iterator[_Kind]:
        for one in results:
            if isinstance(one, Failure):
                failed.append(one)
            else:
                yield one

    def write(one: _Prediction) -> _Prediction:
        _write(one, journal.folder, palette, save)
        return one

    images = without_failures(prefetch(predictor.read, todo, workers, nbytes=_nbytes))
    groups = batch_by_key(images, lambda one: one.image.shape, batch, nbytes=_nbytes)
    # Two threads: while one waits for a GPU's masks, the other starts the next images on it.
    threads = 2 if device.type == "cuda" else 0
    predicted = prefetch(predictor.predict, groups, threads, nbytes=lambda group: sum(map(_nbytes, group)))
    predictions = without_failures(one for group in predicted for one in group)
    written, skipped = 0, len(inputs) - len(todo)
    if progress is not None:
        progress(skipped, 0)
    for one in prefetch(write, predictions, workers, nbytes=_nbytes):
        journal.add(one.item, (one.image.shape[0], one.image.shape[1]))
        written += 1
        if progress is not None:
            progress(skipped + written + len(failed), len(failed))
    return Summary(written, skipped, failed)


@dataclass(frozen=True)
class _Predictor:
    """The model and how images are shown to it."""

    model: SegmentationModel
    inference: Inference
    scale: Scale | None
    output: str
    device: torch.device
    precision: str
    save: SaveOptions

    def read(self, item: Input) -> _LoadedImage | Failure:
        try:
            image = decode_image(item.path.read_bytes(), str(item.path))
            height, width = image.shape[:2]
            if self.save.overlays and max(height, width) > JPEG_SIDE:
                return Failure(
                    item.path,
                    f"{item.path} is {width}x{height}; overlays are JPEGs, at most {JPEG_SIDE} pixels wide and high. "
                    "Leave them out with --no-overlays.",
                )
            return _LoadedImage(item, image, view_image(image, self.scale, self.inference.ratios))
        except (OSError, ValueError, MemoryError) as error:
            return Failure(item.path, str(error))

    def predict(self, group: list[_LoadedImage]) -> list[_Prediction] | list[_Prediction | Failure]:
        """The predictions of images of one size; one by one where they do not fit into memory together."""
        try:
            return self._predict(group)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return [self._predict_alone(one) for one in group]

    def _predict_alone(self, one: _LoadedImage) -> _Prediction | Failure:
        height, width = one.image.shape[:2]
        try:
            with explain_memory(f"an image of {width}x{height}", self.device):
                return self._predict([one])[0]
        except ValueError as error:
            return Failure(one.item.path, str(error))

    def _predict(self, group: list[_LoadedImage]) -> list[_Prediction]:
        size = (group[0].image.shape[0], group[0].image.shape[1])
        shown = collate([one.views for one in group], self.model, self.device)
        with autocast(self.device, self.precision):
            scores = next(predict_each(networks_of(self.model, [self.output]), shown, size, self.inference))
        masks = most_likely(scores, 1).to(torch.uint8).cpu().numpy()  # of all images: one wait for a GPU
        are_logits = not self.inference.averages
        return [
            _Prediction(one.item, one.image, mask, read_maps(each, self.save, are_logits))
            for one, mask, each in zip(group, masks, scores, strict=True)
        ]


def _nbytes(one: _LoadedImage | _Prediction | Failure) -> int:
    return 0 if isinstance(one, Failure) else one.nbytes()


def read_maps(scores: Tensor, save: SaveOptions, are_logits: bool) -> dict[str, npt.NDArray[np.unsignedinteger]]:
    """The confidence and entropy maps of one image, where they are saved, from its scores [n, H, W]."""
    maps: dict[str, Tensor] = {}
    if save.confidence or save.entropy:
        probabilities = scores.softmax(0) if are_logits else scores
        if save.confidence:
            maps["confidence"] = probabilities.amax(0)
        if save.entropy:
            maps["entropy"] = torch.special.entr(probabilities).sum(0) / math.log(scores.shape[0])
    top = 2**save.bits - 1
    dtype = np.uint8 if save.bits == 8 else np.uint16
    return {key: (one.clamp(0, 1) * top).round().cpu().numpy().astype(dtype) for key, one in maps.items()}


def _write(one: _Prediction, folder: Path, palette: Sequence[Colour], save: SaveOptions) -> None:
    paths = save.paths(folder, one.item.name)
    for kind, values in one.maps.items():
        content = io.BytesIO()
        Image.fromarray(values).save(content, "PNG")
        write_file(paths[kind], content.getvalue())
    if save.overlays:
        write_file(paths["overlays"], jpeg(overlay(one.image, one.mask, palette, save.opacity)))
    save_index_png(paths["masks"], one.mask, palette, overwrite=True)
