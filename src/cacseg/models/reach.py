"""Taps of dilated convolutions that reach past the edges of what a model is trained on."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call

from cacseg.models.model import SegmentationModel

LARGEST_STRIDE = 32  # of a map that a model makes of an image


class Dilated(NamedTuple):
    """A dilated convolution and the map that it reads."""

    kernel: tuple[int, int]
    dilation: tuple[int, int]
    size: tuple[int, int]

    @property
    def reached(self) -> int:
        """Taps that read the map somewhere; the others read padding alone."""
        sides = zip(self.kernel, self.dilation, self.size, strict=True)
        rows, columns = (
            sum(abs(tap - kernel // 2) * step < side for tap in range(kernel)) for kernel, step, side in sides
        )
        return rows * columns


def untrained_taps(model: SegmentationModel, crop: tuple[int, int], shown: tuple[int, int]) -> list[str]:
    """A line for each dilation of which taps keep their initial values in training, but are used afterwards.

    A tap that reads padding in every crop has no gradient. Where a larger image is `shown`, it reads the image, and
    adds noise to it: DeepLabV3+ with dilations up to 36, for one, needs maps of more than 36x36.
    """
    reaches = [
        size // 2 * step for one in _found(model) for size, step in zip(one.kernel_size, one.dilation, strict=True)
    ]
    if LARGEST_STRIDE * max(reaches, default=0) < min(*crop, *shown):
        return []
    pairs = dict.fromkeys(zip(_dilated(model, crop), _dilated(model, shown), strict=True))  # each once, in order
    return [
        f"in crops of {crop[0]}x{crop[1]} (maps of {ours.size[0]}x{ours.size[1]}) convolutions with a dilation of "
        f"{max(ours.dilation)} have {ours.kernel[0] * ours.kernel[1] - ours.reached} of "
        f"{ours.kernel[0] * ours.kernel[1]} taps that read padding alone and never learn; in images of "
        f"{shown[0]}x{shown[1]} (maps of {theirs.size[0]}x{theirs.size[1]}) {theirs.reached - ours.reached} of these "
        "read the image. Train on larger crops, or show windows of the crop's size (data.window, data.stride)."
        for ours, theirs in pairs
        if ours.reached < theirs.reached
    ]


def _found(model: SegmentationModel) -> list[nn.Conv2d]:
    return [one for one in model.modules() if isinstance(one, nn.Conv2d) and max(one.dilation) > 1]


def _dilated(model: SegmentationModel, size: tuple[int, int]) -> list[Dilated]:
    """The dilated convolutions in the order in which they run on an image of that size; from shapes alone."""
    found: list[Dilated] = []

    def note(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(module, nn.Conv2d)
        height, width = inputs[0].shape[-2:]
        found.append(Dilated(module.kernel_size, module.dilation, (height, width)))  # type: ignore[arg-type]

    handles = [one.register_forward_pre_hook(note) for one in _found(model)]
    was_training = model.training
    try:
        values = {
            name: torch.empty_like(value, device="meta")
            for name, value in chain(model.named_parameters(), model.named_buffers())
        }
        image = torch.empty(1, len(model.mean), *size, device="meta")
        with torch.no_grad():
            functional_call(model.eval(), values, (image,))
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return found
