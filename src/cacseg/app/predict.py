"""One image as the page shows it: the mask, confidence and entropy of each classifier, and how far its rows moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from cacseg.engine.backend import confidence_and_entropy
from cacseg.engine.device import is_out_of_memory
from cacseg.engine.features import answer_names, networks_with_moves
from cacseg.engine.inference import Inference, Scale, collate, predict_each, view_image
from cacseg.metrics import most_likely
from cacseg.models.model import SegmentationModel
from cacseg.runtime.bands import Pixels, as_picture, decode_bands, without_data
from cacseg.runtime.colours import MAX_CLASSES, Picture
from cacseg.runtime.decode import check_pixels, check_size, decode_image
from cacseg.runtime.headers import size_of
from cacseg.runtime.result import to_integers

SHOWN_PIXELS = 2**21  # 2048x1024; larger images are predicted and shown at this size
MAX_PIXELS = 100_000_000  # of an image that is decoded
MAPS = ("confidence", "entropy")

Bytes = npt.NDArray[np.uint8]


class Answer(NamedTuple):
    """What one classifier answers."""

    mask: Bytes  # [H, W], at the size of the image
    layers: Bytes  # [3, h, w], as shown: class, confidence and entropy as `cacseg predict` writes them


class Prediction(NamedTuple):
    shown: Picture  # [h, w, 3]
    answers: dict[str, Answer]  # "plain", and "context" where the model adapts
    moved: list[float] | None  # for each class 1 - cosine between the plain row and this image's, mean over windows


def read_image(content: bytes, name: str, bands: int | None = None) -> Pixels:
    """An image from a stranger; an OSError or a ValueError says what is wrong with it."""
    if not content:
        raise OSError(f"{name} is empty (0 bytes). Choose another file.")
    if bands is not None:
        check_size(size_of(content) or (0, 0), name, MAX_PIXELS, "Make it smaller.")
        return decode_bands(content, name, bands, MAX_PIXELS)
    check_pixels(content, name, MAX_PIXELS)
    return decode_image(content, name)


def shrink(image: Pixels, pixels: int) -> Pixels:
    """The image, or where it has more pixels a smaller one of the same proportion."""
    height, width = image.shape[:2]
    ratio = (pixels / (height * width)) ** 0.5
    if ratio >= 1.0:
        return image
    size = max(1, int(width * ratio)), max(1, int(height * ratio))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), image.dtype).reshape(*size[::-1], -1)


@dataclass(frozen=True)
class Predictor:
    """A model on its device, and how images are shown to it."""

    model: SegmentationModel
    inference: Inference
    scale: Scale | None
    device: torch.device

    def __post_init__(self) -> None:
        if self.inference.averages:
            raise ValueError(f"the page shows one scale without flip; got {self.inference}.")
        if self.model.num_classes > MAX_CLASSES:
            raise ValueError(f"a mask holds at most {MAX_CLASSES} classes; the model has {self.model.num_classes}.")
        self.model.to(self.device).eval()

    @property
    def outputs(self) -> list[str]:
        """The classifiers of the model, its default last."""
        return answer_names(self.model)

    @torch.no_grad()
    def predict(self, image: Pixels) -> Prediction:
        """Everything from one pass. Up to `SHOWN_PIXELS` masks are those of `cacseg predict`; larger images are
        predicted at that size and their scores, not their masks, are brought to the size of the image.
        """
        height, width = image.shape[:2]
        shown = shrink(image, SHOWN_PIXELS)
        size, moved = (shown.shape[0], shown.shape[1]), list[Tensor]()
        try:
            batch = collate([view_image(shown, self.scale, (1.0,))], self.model, self.device)
            networks = networks_with_moves(self.model, lambda *found: moved.append(found[-1]))
            scores = predict_each(networks, batch, size, self.inference)
            found = (_answer(one[0], (height, width)) for one in scores)
            answers = {name: _leave_gaps(one, image, shown) for name, one in zip(self.outputs, found, strict=True)}
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ValueError(
                f"an image of {width}x{height} did not fit into the memory of {self.device}. Try a smaller one, or "
                "start the app with another --device."
            ) from error
        return Prediction(as_picture(shown), answers, torch.cat(moved).mean(0).tolist() if moved else None)


def _answer(scores: Tensor, size: tuple[int, int]) -> Answer:
    shown = most_likely(scores, 0).to(torch.uint8).cpu().numpy()
    maps = [to_integers(one.cpu().numpy()) for one in confidence_and_entropy(scores, are_logits=True)]
    mask = shown if shown.shape == size else _enlarge(scores, np.unique(shown), size)
    return Answer(mask, np.stack([shown, *maps]))


def _leave_gaps(answer: Answer, image: Pixels, shown: Pixels) -> Answer:
    """255 in place of a class where the image has no data."""
    answer.layers[0] = without_data(answer.layers[0], shown)
    return answer._replace(mask=without_data(answer.mask, image))


def _enlarge(scores: Tensor, classes: npt.NDArray[np.uint8], size: tuple[int, int]) -> Bytes:
    """The best of some classes at a larger size, one class at a time: all scores of a photograph would not fit."""
    best = scores.new_full(size, -torch.inf)
    mask = torch.zeros(size, dtype=torch.uint8, device=scores.device)
    for label in classes.tolist():
        own = F.interpolate(scores[None, label, None], size=size, mode="bilinear", align_corners=False)[0, 0]
        mask.masked_fill_(own > best, label)
        torch.maximum(best, own, out=best)
    return mask.cpu().numpy()
