"""A model of torch that is ready to predict: ours, or a converted one of another library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from cacseg._checks import check_normalisation
from cacseg.data.sample import Pixels
from cacseg.engine.context import CarriedContext
from cacseg.engine.device import (
    autocast,
    check_memory,
    choose_device,
    choose_precision,
    explain_memory,
    is_out_of_memory,
)
from cacseg.engine.foreign import REFUSALS, find_logits, find_multiple, padded_logits
from cacseg.engine.inference import Inference, Networks, normalise_views, predict_each, view_image
from cacseg.engine.tiled import comes_in_parts, networks_for, parts_of
from cacseg.metrics import most_likely
from cacseg.models.model import SegmentationModel, evaluating
from cacseg.presets import or_default
from cacseg.runtime.backend import BAND, LEAST, Answer, Context, Scale, name_classes

GPU_BAND = 2**26  # scores whose probabilities are in memory at once: 256 MiB


class TorchBackend:
    """A model on its device, in evaluation mode while it predicts, and how images are shown to it.

    Args:
        model: ours, or any module from normalised images to logits (a tensor, a dict with "out", or an output with
            `.logits`), such as `cacseg.convert` returns; then `mean` and `std` must be given.
        mean, std: what pixels in [0, 1], or bands in their own units, are normalised with; None is the model's own.
            Lists, tuples, arrays or tensors.
        bands: of images, where a model of another library takes no red, green and blue.
        class_names, palette: None are the model's own.
        device: "auto", "cpu", "cuda", ...
        precision: "fp32", "bf16" or "fp16"; "auto" is bf16 on a GPU that has it and a CPU with AMX.
    """

    has_maps = True

    def __init__(
        self,
        model: nn.Module,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        bands: int | None = None,
        class_names: Sequence[str] | None = None,
        palette: Sequence[Sequence[int]] | None = None,
        inference: Inference = Inference(),  # noqa: B008 (frozen)
        scale: Scale | None = None,
        device: str | torch.device = "auto",
        precision: str = "auto",
    ) -> None:
        self.device = choose_device(str(device))
        self.precision = choose_precision(self.device) if precision == "auto" else precision
        autocast(self.device, self.precision)  # an unknown one is an error here
        self.model, self.inference, self.scale = model.to(self.device), inference, scale
        if not isinstance(model, SegmentationModel) and (mean is None or std is None or class_names is None):
            raise ValueError(
                f"a {type(model).__name__} does not know how its images are normalised, nor its classes; give mean, "
                "std (of pixels in [0, 1]) and class_names."
            )
        if inference.tiling is not None and not isinstance(model, SegmentationModel):
            raise ValueError(f"tiles need a model of cacseg.create_model; got {type(model).__name__}.")
        self.bands = model.bands if isinstance(model, SegmentationModel) else bands
        if isinstance(model, SegmentationModel) and bands not in (None, model.bands):
            raise ValueError(f"the model says itself what images it takes (bands={model.bands}); got bands={bands}.")
        if isinstance(model, SegmentationModel):
            mean, std = or_default(mean, model.mean), or_default(std, model.std)
        assert mean is not None
        assert std is not None
        channels = 3 if self.bands is None else self.bands
        self.mean, self.std = check_normalisation(mean, std, channels, are_bands=self.bands is not None)
        if isinstance(model, SegmentationModel):
            count = model.num_classes
            self.classes = name_classes(
                count, or_default(class_names, model.class_names), or_default(palette, model.palette)
            )
        else:
            assert class_names is not None
            self.classes = name_classes(len(class_names), class_names, palette)
        # On a CPU four at once take 1.2 times as long an image as one after the other: their maps leave the caches.
        self.batch = 4 if self.device.type == "cuda" else 1
        # Two on a GPU: while one waits for its masks, the other starts the next images.
        self.threads = 2 if self.device.type == "cuda" else 0
        self.dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
        # Products of bfloat16 on a CPU want channels last: in the other order maps are copied before each.
        is_amx = self.device.type == "cpu" and self.precision == "bf16"
        self.layout = torch.channels_last if is_amx else torch.contiguous_format
        self._multiple = 1  # of the sides of images, where a model of another library needs one
        self._carried: CarriedContext | None = None

    def carrying(self, carry: float, context: Context | None = None) -> TorchBackend:
        """The same model, to be called with frames in their order (`CarriedContext`), from one thread."""
        if self.inference.window is not None or self.inference.tiling is not None or self.inference.averages:
            raise ValueError("carry needs frames shown whole, once: no windows, tiles, scales or flips (use --whole).")
        if not isinstance(self.model, SegmentationModel):
            raise ValueError(f"carry needs a model of cacseg.create_model; got {type(self.model).__name__}.")
        found = copy(self)
        found.threads, found._carried = 0, CarriedContext(self.model, carry)
        if context is not None:
            found._carried.pool.load(context, self.device)
        return found

    def context(self) -> Context | None:
        return None if self._carried is None else self._carried.pool.as_arrays()

    def settings(self) -> dict[str, Any]:
        return {**self.inference.settings(), "scale": self.scale, "precision": self.precision}

    def state(self) -> int:
        """By where the weights are, and how often each was written."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        return hash(tuple((one.data_ptr(), 0 if one.is_inference() else one._version) for one in tensors))

    def view(self, image: Pixels) -> list[Tensor]:
        return view_image(image, self.scale, self.inference.ratios)

    def predict(
        self, views: Sequence[list[Tensor]], size: tuple[int, int], *, maps: bool = False, plain: bool = False
    ) -> list[Answer]:
        if not comes_in_parts(self.inference, views[0][0], size):
            check_memory(self.device, len(self.classes.names), size, views, self.inference.window is None)
        try:
            with explain_memory(f"an image of {size[1]}x{size[0]}", self.device), evaluating(self.model):
                return self._predict(views, size, maps, plain)
        except ValueError as error:
            if error.__cause__ is not None and is_out_of_memory(error.__cause__):
                raise MemoryError(str(error)) from error
            raise

    def _predict(self, views: Sequence[list[Tensor]], size: tuple[int, int], maps: bool, plain: bool) -> list[Answer]:
        if comes_in_parts(self.inference, views[0][0], size):
            return [self._predict_parts(view, maps, plain) for (view,) in views]
        shown = normalise_views(views, self.mean, self.std, self.dtype, self.device)
        shown = [one.contiguous(memory_format=self.layout) for one in shown]
        with autocast(self.device, self.precision):
            scores = next(predict_each(self._networks(plain), shown, size, self.inference))
        if scores.shape[1] == 1:  # binary: one logit for each pixel, of background and foreground
            if self.inference.averages:
                raise ValueError("a model of one logit is shown at one scale without flip; got several views.")
            scores = torch.cat([-scores / 2, scores / 2], dim=1)
        if scores.shape[1] != len(self.classes.names):
            raise ValueError(
                f"the model gives scores of {scores.shape[1]} classes; there are {len(self.classes.names)} names."
            )
        masks = most_likely(scores, 1).to(torch.uint8).cpu().numpy()  # of all images: one wait for a GPU
        if not maps:
            return [Answer(mask) for mask in masks]
        answers = []
        for mask, each in zip(masks, scores, strict=True):
            found = confidence_and_entropy(each, are_logits=not self.inference.averages)
            answers.append(Answer(mask, *(one.cpu().numpy() for one in found)))
        return answers

    def _predict_parts(self, view: Tensor, maps: bool, plain: bool) -> Answer:
        """By tiles: full-size scores would take n x H x W floats."""
        model, tiling = self.model, self.inference.tiling
        assert isinstance(model, SegmentationModel)
        assert tiling is not None
        outputs = ["plain" if plain else model.default_output]
        mask = np.empty(view.shape[1:], np.uint8)
        found = tuple(np.empty(mask.shape, np.float32) for _ in range(2 * maps))
        with autocast(self.device, self.precision):
            for box, (scores,) in parts_of(model, view, outputs, tiling, self.mean, self.std, self.device):
                place = slice(box.top, box.bottom), slice(box.left, box.right)
                mask[place] = most_likely(scores, 0).to(torch.uint8).cpu().numpy()
                for whole, part in zip(
                    found, confidence_and_entropy(scores, are_logits=True) if maps else (), strict=True
                ):
                    whole[place] = part.cpu().numpy()
        return Answer(mask, *found)

    def _networks(self, plain: bool) -> Networks:
        model = self.model
        if self._carried is not None and not plain:
            return self._carried
        if isinstance(model, SegmentationModel):
            return networks_for(model, ["plain" if plain else model.default_output], self.inference)
        run: Callable[[Tensor], Any] = model.plain if plain and hasattr(model, "plain") else model  # type: ignore[assignment]

        def logits(images: Tensor, labels: Tensor | None) -> Iterator[Tensor]:
            yield self._foreign_logits(run, images)

        return logits

    def _foreign_logits(self, run: Callable[[Tensor], Any], images: Tensor) -> Tensor:
        """From the first image on that the model refuses for its size, images are padded as `cacseg.export` does."""
        if self._multiple == 1:
            try:
                return find_logits(run(images))
            except REFUSALS as error:
                if is_out_of_memory(error):
                    raise
                self._multiple, _ = find_multiple(run, images.shape[1], self.device, dtype=images.dtype)
                if self._multiple == 1:
                    raise
        return padded_logits(run, images, self._multiple)


def confidence_and_entropy(
    scores: Float[Tensor, "n H W"], *, are_logits: bool
) -> tuple[Float[Tensor, "H W"], Float[Tensor, "H W"]]:
    """The probability of the likeliest class, and the entropy over the logarithm of n.

    In bands of rows: on a CPU they stay in its caches and take less than half of the time, on a GPU they save memory.
    """
    n, _, width = scores.shape
    most = GPU_BAND if scores.is_cuda else BAND * torch.get_num_threads()
    maps = [_of_band(band, are_logits) for band in scores.split(max(1, most // (n * width)), dim=1)]
    confidence, entropy = (torch.cat(parts) for parts in zip(*maps, strict=True))
    return confidence, entropy.div_(math.log(max(2, n)))


def _of_band(scores: Float[Tensor, "n h W"], are_logits: bool) -> tuple[Float[Tensor, "h W"], Float[Tensor, "h W"]]:
    logarithms = scores.log_softmax(0) if are_logits else scores.log()
    entropy = -(logarithms.exp() * logarithms.clamp_min(LEAST)).sum(0)
    return logarithms.amax(0).exp(), entropy
