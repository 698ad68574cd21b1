"""Taps of dilated convolutions that reach past the edges of what a model is trained on."""

from __future__ import annotations

from itertools import chain
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cacseg.models.model import SegmentationModel

LARGEST_STRIDE = 32  # no map of these models is at a larger stride


class DilatedSide(NamedTuple):
    """One side of a dilated convolution: how it steps over a map, and how large that is."""

    kernel: int
    dilation: int
    stride: int
    size: int  # of the map that it reads
    out: int  # of the map that it gives

    @property
    def reached(self) -> list[bool]:
        """Of each tap, whether it reads the map somewhere; one that does not reads padding alone."""
        last = (self.out - 1) * self.stride
        padding = max(0, last + (self.kernel - 1) * self.dilation + 1 - self.size) // 2
        firsts = [tap * self.dilation - padding for tap in range(self.kernel)]
        return [first < self.size and first + last >= 0 for first in firsts]


class Convolution(NamedTuple):
    """Both sides of one, and whose it is."""

    rows: DilatedSide
    columns: DilatedSide
    in_head: bool

    @property
    def taps(self) -> int:
        """How many read the map somewhere."""
        return sum(self.rows.reached) * sum(self.columns.reached)


def untrained_taps(model: SegmentationModel, crop: tuple[int, int], shown: tuple[int, int]) -> list[str]:
    """A line for each dilation of which taps never learn in crops, and are used when larger images are shown.

    A tap that reads padding in every crop has no gradient. In a larger image it reads the image, and adds noise:
    DeepLabV3+, with dilations up to 36, needs maps of more than 36x36.
    """
    furthest = max((max(conv.dilation) * (max(conv.kernel_size) // 2) for conv in _convolutions(model)), default=0)
    if LARGEST_STRIDE * furthest < min(crop):
        return []
    both = (_find_dilated(model, size) for size in (crop, shown))
    pairs = dict.fromkeys(zip(*both, strict=True))  # each once, in order
    return [_describe(crop, shown, trained, used) for trained, used in pairs if trained.taps < used.taps]


def _describe(crop: tuple[int, int], shown: tuple[int, int], trained: Convolution, used: Convolution) -> str:
    rows, columns = sides = trained.rows, trained.columns
    taps, learnt = rows.kernel * columns.kernel, trained.taps
    dilation = max(rows.dilation, columns.dilation)
    enough = max(
        ceil((side.kernel // 2 * side.dilation + 1) * pixels / side.size)
        for side, pixels in zip(sides, crop, strict=True)
    )
    smaller = "a larger model.output_stride"
    if trained.in_head:
        smaller = f"dilations of at most {min(rows.size, columns.size) - 1} (model.dilations)"
    return (
        f"in crops of {crop[0]}x{crop[1]} (maps of {rows.size}x{columns.size}) convolutions with a dilation of "
        f"{dilation} have {taps - learnt} of {taps} taps that read padding alone and never learn; in images of "
        f"{shown[0]}x{shown[1]} (maps of {used.rows.size}x{used.columns.size}) {used.taps - learnt} of these "
        f"read the image. Train on crops of about {enough}x{enough} or more, take {smaller}, or show windows of the "
        "crop's size (data.window, data.stride)."
    )


def _convolutions(model: SegmentationModel) -> list[nn.Conv2d]:
    return [one for one in model.modules() if isinstance(one, nn.Conv2d) and max(one.dilation) > 1]


def _find_dilated(model: SegmentationModel, size: tuple[int, int]) -> list[Convolution]:
    """The dilated convolutions in the order in which they run on an image of that size; from shapes alone."""
    found: list[Convolution] = []
    of_head = set(model.head.modules())

    def record(conv: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(conv, nn.Conv2d)
        rows, columns = zip(
            conv.kernel_size, conv.dilation, conv.stride, inputs[0].shape[-2:], output.shape[-2:], strict=True
        )
        found.append(Convolution(DilatedSide(*rows), DilatedSide(*columns), conv in of_head))

    handles = [one.register_forward_hook(record) for one in _convolutions(model)]
    were_training = [one for one in model.modules() if one.training]
    values = {
        name: torch.empty_like(value, device="meta")
        for name, value in chain(model.named_parameters(), model.named_buffers())
    }
    try:
        with torch.no_grad():
            functional_call(model.eval(), values, (torch.empty(1, len(model.mean), *size, device="meta"),))
    finally:
        for one in were_training:
            one.training = True
        for handle in handles:
            handle.remove()
    return found
