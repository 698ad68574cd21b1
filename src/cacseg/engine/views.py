"""Images for a model: resized on the CPU as the protocol says, batched and normalised on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacseg.classifier import ContextAwareClassifier
from cacseg.data.transforms import TestTransform, normalise
from cacseg.engine.device import autocast
from cacseg.engine.inference import Inference, Networks, predict_each
from cacseg.models.model import SegmentationModel

Scale = tuple[int, int]  # the longest and the shortest side an image may have


def view_image(image: npt.NDArray[np.uint8], scale: Scale | None, ratios: Sequence[float]) -> list[Tensor]:
    """The image [3, h, w] at each ratio of `scale` (None: of its own size), each made from the original."""
    long, short = scale if scale is not None else (max(image.shape[:2]), min(image.shape[:2]))
    return [
        TestTransform(None if scale is None and ratio == 1.0 else _times(long, short, ratio))(image) for ratio in ratios
    ]


def collate(views: Sequence[Sequence[Tensor]], model: SegmentationModel, device: torch.device) -> list[Tensor]:
    """Normalised batches, one for each ratio, from the views of images of one size. Bytes travel, not floats."""
    if len(model.mean) != 3:
        raise ValueError(f"images are read as red, green and blue; the model takes {len(model.mean)} channel(s).")
    dtype = model.classifier.weight.dtype
    batches = (torch.stack(list(one)) for one in zip(*views, strict=True))
    mean, std = _mean_and_std(tuple(model.mean), tuple(model.std), device)
    return [normalise(send(batch, device), mean, std, None).to(dtype) for batch in batches]


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
    image: npt.NDArray[np.uint8],
    *,
    inference: Inference,
    scale: Scale | None,
    device: torch.device,
    precision: str = "fp32",
    output: str | None = None,
) -> npt.NDArray[np.uint8]:
    """The class of each pixel of one image [H, W, 3], by the model's default output or another ("plain")."""
    names = [model.default_output if output is None else output]
    shown = collate([view_image(image, scale, inference.ratios)], model, device)
    height, width = image.shape[:2]
    with autocast(device, precision):
        scores = next(predict_each(networks_of(model, names), shown, (height, width), inference))
    return scores[0].argmax(0).to(torch.uint8).cpu().numpy()


@lru_cache(maxsize=8)
def _mean_and_std(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Cached on the device: sending six numbers with each batch would wait for a GPU."""
    return torch.tensor([mean, std], device=device).unbind()


def _times(long: int, short: int, ratio: float) -> Scale:
    return max(1, round(long * ratio)), max(1, round(short * ratio))
