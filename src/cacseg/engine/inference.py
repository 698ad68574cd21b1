"""From images to scores of each pixel: whole or by sliding windows, at one or several scales, with or without flip.

A network is any function from normalised images [b, 3, h, w] to logits [b, n, *, *] of whatever resolution. Its
logits are upsampled to the size of its input (bilinear, align_corners=False), overlapping windows are averaged there,
and the result is resized to the size that the caller wants; with several scales or a flip the softmax probabilities are
averaged. All of this is float32, whatever autocast does to the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cacseg._checks import check_choice, check_integer
from cacseg.classifier import ContextAwareClassifier
from cacseg.data.sample import Pixels
from cacseg.data.transforms import TestTransform, normalise
from cacseg.engine.device import autocast
from cacseg.functional.labels import resize_labels
from cacseg.metrics import most_likely
from cacseg.models.model import SegmentationModel
from cacseg.runtime.backend import Scale as Scale
from cacseg.runtime.windows import place_windows

# Several outputs of one pass: from images, and labels for an oracle, to the logits of each output in turn.
Networks = Callable[[Tensor, Tensor | None], Iterable[Tensor]]

MULTIPLE = 32  # of sizes and places of tiles: no network has a larger stride
MULTI_SCALE = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)


@dataclass(frozen=True)
class Tiling:
    """How a large image is cut.

    Args:
        tile: side of a tile in pixels, a multiple of 32.
        overlap: of neighbouring tiles, a multiple of 32, at most half of a tile. Three eighths of it at the edge of a
            tile are thrown away: more than the network's receptive field reaches makes tiles exact.
        context: the classifier is made from the whole "image", or from each "tile" alone.
        keep: MiB of features that are kept from the first pass to the second; others are computed twice.
    """

    tile: int = 1024
    overlap: int = 128
    context: Literal["image", "tile"] = "image"
    keep: float = 1024

    def __post_init__(self) -> None:
        check_choice("context", self.context, ("image", "tile"))
        check_integer("tile", self.tile, scalars=True)
        check_integer("overlap", self.overlap, scalars=True)
        if self.tile < MULTIPLE or self.tile % MULTIPLE:
            raise ValueError(f"a tile's side must be a multiple of {MULTIPLE}; got {self.tile}.")
        if not 0 <= self.overlap <= self.tile // 2 or self.overlap % MULTIPLE:
            raise ValueError(
                f"the overlap must be a multiple of {MULTIPLE}, at most half of a tile of {self.tile}; got "
                f"{self.overlap}."
            )
        if not self.keep >= 0:
            raise ValueError(f"keep must be at least 0 MiB; got {self.keep}.")


@dataclass(frozen=True)
class Inference:
    """How an image is shown to the network.

    Args:
        window: height and width of sliding windows; None shows the image whole. Where an image is smaller, so is the
            window; the last window of a row or column is shifted back so that it ends with the image.
        stride: from one window to the next, at most `window`; needed with it.
        ratios: sizes at which the image is shown, relative to its own.
        flip: each of them mirrored as well.
        window_batch: windows that go through the network at once.
        tiling: tiles that share one context, in the place of windows.
    """

    window: tuple[int, int] | None = None
    stride: tuple[int, int] | None = None
    ratios: tuple[float, ...] = (1.0,)
    flip: bool = False
    window_batch: int = 4
    tiling: Tiling | None = None

    def __post_init__(self) -> None:
        if self.tiling is not None and self.window is not None:
            raise ValueError("tiles and sliding windows exclude each other. Leave one out.")
        if (self.window is None) != (self.stride is None):
            raise ValueError(f"window and stride go together; got window={self.window}, stride={self.stride}.")
        pairs = zip(self.window or (), self.stride or (), strict=True)
        if not all(1 <= stride <= window for window, stride in pairs):
            raise ValueError(
                f"stride must be at least 1 and at most the window, or pixels would be skipped; got "
                f"stride={self.stride} for window={self.window}."
            )
        if not self.ratios or not all(0.0 < ratio < float("inf") for ratio in self.ratios):
            raise ValueError(f"ratios must be at least one positive number; got {self.ratios}.")
        if self.window_batch < 1:
            raise ValueError(f"window_batch must be at least 1; got {self.window_batch}.")

    def settings(self) -> dict[str, Any]:
        """What decides the scores: neither what goes together nor what is kept in memory."""
        shown = asdict(self)
        del shown["window_batch"]
        if self.tiling is not None:
            del shown["tiling"]["keep"]
        return shown

    @property
    def averages(self) -> bool:
        """Whether the scores are mean probabilities, rather than logits."""
        return len(self.ratios) > 1 or self.flip


@torch.no_grad()
def predict_each(
    networks: Networks,
    shown: Sequence[Float[Tensor, "b c _ _"]],
    size: tuple[int, int],
    inference: Inference = Inference(),  # noqa: B008 (frozen)
    labels: Int[Tensor, "b H0 W0"] | None = None,
) -> Iterator[Float[Tensor, "b n H0 W0"]]:
    """The scores of several outputs of one network at `size`, one after another, from one pass.

    They are float32 logits, or mean probabilities where `inference.averages`. Their argmax is the class.
    `shown` holds the images at each ratio, resized by the caller, for example from the original file. Labels go to the
    network as the images do: flipped, resized by nearest neighbour, cut to the window. Without windows the full-size
    scores of one output are in memory at a time.
    """
    if len(shown) != len(inference.ratios):
        raise ValueError(f"there must be one image for each of {len(inference.ratios)} ratios; got {len(shown)}.")
    if not inference.averages:
        for logits in _logits(networks, shown[0], inference, labels):
            yield _resize(logits, size)
        return
    totals: list[Tensor] = []
    views = [(one, flipped) for one in shown for flipped in ((False, True) if inference.flip else (False,))]
    for one, flipped in views:
        seen = labels.flip(-1) if flipped and labels is not None else labels
        for place, logits in enumerate(_logits(networks, one.flip(-1) if flipped else one, inference, seen)):
            if len(totals) == place:
                totals.append(logits.new_zeros((*logits.shape[:2], *size), dtype=torch.float32))
            for total, scores in zip(totals[place], logits, strict=True):  # an image at a time: full maps are large
                probabilities = _resize(scores[None], size)[0].softmax(0)
                total += probabilities.flip(-1) if flipped else probabilities
    for total in totals:
        yield total.div_(len(views))


def scale_images(images: Float[Tensor, "b c H W"], ratio: float) -> Float[Tensor, "b c _ _"]:
    """Images at another size, rounded to whole pixels; bilinear without smoothing, as OpenCV does it."""
    if ratio == 1.0:
        return images
    size = [max(1, round(side * ratio)) for side in images.shape[2:]]
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


def _logits(
    networks: Networks, images: Tensor, inference: Inference, labels: Tensor | None
) -> Iterator[Float[Tensor, "b n H W"]]:
    """The logits of each output at the size of the images."""
    if inference.window is None:
        for logits in networks(images, labels):
            yield _resize(logits, images.shape[2:])
    else:
        yield from _slide(networks, images, inference, labels)


def _slide(networks: Networks, images: Tensor, inference: Inference, labels: Tensor | None) -> Iterator[Tensor]:
    assert inference.window is not None
    assert inference.stride is not None
    sides = zip(images.shape[2:], inference.window, inference.stride, strict=True)
    rows, columns = (place_windows(*one) for one in sides)
    height, width = rows.length, columns.length
    if labels is not None:
        labels = resize_labels(labels, images.shape[2:])
    places = list(product(range(images.shape[0]), rows.starts, columns.starts))
    totals: list[Tensor] = []
    for first in range(0, len(places), inference.window_batch):
        chosen = places[first : first + inference.window_batch]
        crops = torch.stack([images[i, :, y : y + height, x : x + width] for i, y, x in chosen])
        seen = None
        if labels is not None:
            seen = torch.stack([labels[i, y : y + height, x : x + width] for i, y, x in chosen])
        for place, logits in enumerate(networks(crops, seen)):
            if len(totals) == place:
                shape = (images.shape[0], logits.shape[1], *images.shape[2:])
                totals.append(logits.new_zeros(shape, dtype=torch.float32))
            for (i, y, x), scores in zip(chosen, _resize(logits, (height, width)), strict=True):
                totals[place][i, :, y : y + height, x : x + width] += scores
    coverage = [torch.tensor(one.coverage, dtype=torch.float32).to(images.device) for one in (rows, columns)]
    for total in totals:
        yield total.div_(coverage[0][:, None] * coverage[1])


def _resize(scores: Tensor, size: Sequence[int]) -> Tensor:
    """Scores at another size, in float32: half precision would decide near ties at random."""
    scores = scores.float()
    if tuple(scores.shape[2:]) == tuple(size):
        return scores
    return F.interpolate(scores, size=tuple(size), mode="bilinear", align_corners=False)


def view_image(image: Pixels, scale: Scale | None, ratios: Sequence[float]) -> list[Tensor]:
    """The image [c, h, w] at each ratio of `scale` (None: of its own size), each made from the original."""
    long, short = scale if scale is not None else (max(image.shape[:2]), min(image.shape[:2]))
    sides = [(max(1, round(long * ratio)), max(1, round(short * ratio))) for ratio in ratios]
    return [TestTransform(one)(image) for one in sides]


def collate(views: Sequence[Sequence[Tensor]], model: SegmentationModel, device: torch.device) -> list[Tensor]:
    """The views of images of one size as batches that the model takes, one for each ratio."""
    if model.bands is None and len(model.mean) != 3:
        raise ValueError(f"images are read as red, green and blue; the model takes {len(model.mean)} channel(s).")
    return normalise_views(views, tuple(model.mean), tuple(model.std), model.classifier.weight.dtype, device)


def normalise_views(
    views: Sequence[Sequence[Tensor]],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> list[Tensor]:
    """Normalised batches, one for each ratio, from the views of images of one size. Bytes travel, not floats."""
    batches = (torch.stack(list(one)) for one in zip(*views, strict=True))
    means, stds = mean_and_std(mean, std, device)
    return [normalise(send(batch, device), means, stds, None).to(dtype) for batch in batches]


def send(batch: Tensor, device: torch.device) -> Tensor:
    """Copies a batch to the device, asynchronously to a GPU."""
    if device.type == "cuda":
        return batch.pin_memory().to(device, non_blocking=True)
    return batch.to(device)


def output_names(model: SegmentationModel, oracle: bool = False) -> list[str]:
    """The keys of `model.all_logits`, with labels (`oracle`) or without."""
    classifier = model.classifier
    names = ["plain"]
    if isinstance(classifier, ContextAwareClassifier):
        if classifier.context_design != "none":
            names += ["context", "mean"]
        if oracle and classifier.oracle_design != "none":
            names.append("oracle")
    return names


def networks_of(model: SegmentationModel, names: Sequence[str]) -> Networks:
    """The named outputs of the model, in the form that `predict_each` takes."""

    def logits(images: Tensor, labels: Tensor | None) -> Iterator[Tensor]:
        if list(names) == [model.default_output]:  # computes no other
            found = {model.default_output: model.classifier(model.features(images))}
        else:
            found = model.all_logits(images, labels)
        for name in names:  # one after another: at full size they are large
            yield found[name] if model.stride is None else model.upsample_logits(found[name].float(), images.shape[2:])

    return logits


def segment(
    model: SegmentationModel,
    image: Pixels,
    *,
    inference: Inference,
    scale: Scale | None,
    device: torch.device,
    precision: str = "fp32",
) -> npt.NDArray[np.uint8]:
    """The class of each pixel of one image [H, W, c], by the model's default output."""
    names = [model.default_output]
    return segment_each(model, image, names, inference=inference, scale=scale, device=device, precision=precision)[0]


def segment_each(
    model: SegmentationModel,
    image: Pixels,
    names: Sequence[str],
    *,
    inference: Inference,
    scale: Scale | None,
    device: torch.device,
    precision: str = "fp32",
) -> list[npt.NDArray[np.uint8]]:
    """The class of each pixel by each of the named outputs (see `output_names`), from one pass."""
    shown = collate([view_image(image, scale, inference.ratios)], model, device)
    height, width = image.shape[:2]
    with autocast(device, precision):
        scores = predict_each(networks_of(model, names), shown, (height, width), inference)
        return [most_likely(one[0], 0).to(torch.uint8).cpu().numpy() for one in scores]


@lru_cache(maxsize=8)
def mean_and_std(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Cached on the device: sending six numbers with each batch would wait for a GPU."""
    return torch.tensor([mean, std], device=device).unbind()
