"""Labels on their way into the maths: resized, and masked where they take no part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

LabelSampling = Literal["nearest", "centred", "aligned"]


def resize_labels(
    labels: Int[Tensor, "b *full"], size: Sequence[int], sampling: LabelSampling = "nearest"
) -> Int[Tensor, "b *spatial"]:
    """Labels at another size, each that of one pixel; a region smaller than a feature's cell may vanish.

    - "nearest": the first pixel of each cell, as the authors' code has it;
      ``F.interpolate(labels[:, None].float(), size, mode="nearest")[:, 0].long()``, exact up to 2**24.
    - "centred": the pixel in its middle ("nearest-exact"), where upsampling with align_corners=False has a feature.
    - "aligned": the one at i (H - 1) / (h - 1), where upsampling with align_corners=True has it.
    """
    if labels.ndim != len(size) + 1:
        shape = tuple(labels.shape)
        raise ValueError(f"labels must be [b, *full], one dimension more than {tuple(size)}; got shape {shape}.")
    if tuple(labels.shape[1:]) == tuple(size):
        return labels.long()
    if sampling != "aligned":
        mode = "nearest" if sampling == "nearest" else "nearest-exact"
        return F.interpolate(labels[:, None].float(), size=tuple(size), mode=mode)[:, 0].long()
    for dimension, (source, output) in enumerate(zip(labels.shape[1:], size, strict=True), start=1):
        labels = labels.index_select(dimension, sampled_pixels(source, output, sampling).to(labels.device))
    return labels.long()


def sampled_pixels(source: int, output: int, sampling: LabelSampling) -> Int[Tensor, " output"]:
    """Along one dimension: which of the `source` pixels each of the `output` ones takes."""
    if sampling == "aligned":
        step = (source - 1) / max(output - 1, 1)
        return (torch.arange(output, dtype=torch.float64) * step + 0.5).long()
    return resize_labels(torch.arange(source)[None], (output,), sampling)[0]


def read_mask(labels: Tensor, dimensions: int, ignore_index: int = 255) -> Tensor:
    """Labels of background and foreground, 0 and 1, from what people have for them.

    A mask of floats or bools, foreground from 0.5 on, becomes integers; [b, 1, *full], where the scores have that many
    dimensions, loses the 1. Integers stay, and so does the ignore index.
    """
    if not isinstance(labels, Tensor):
        return labels
    if labels.ndim == dimensions and labels.ndim > 1 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.dtype == torch.bool:
        return labels.long()
    if labels.is_floating_point():
        return torch.where(labels == ignore_index, ignore_index, (labels >= 0.5).long())
    return labels


def labelled(labels: Int[Tensor, "*any"], num_classes: int, ignore_index: int = 255) -> Bool[Tensor, "*any"]:
    """Where a label takes part: in [0, n) and not the ignore index."""
    labels = labels.long()  # n itself may not fit into a narrow type, and would wrap around
    return (labels >= 0) & (labels < num_classes) & (labels != ignore_index)


def fit_labels(
    labels: Int[Tensor, "b *full"],
    size: Sequence[int],
    num_classes: int,
    ignore_index: int = 255,
    sampling: LabelSampling = "nearest",
) -> Int[Tensor, "b *spatial"]:
    """Labels at the size of the features, -1 wherever they take no part; packed labels, with size (), as they are."""
    labels = resize_labels(labels, size, sampling)
    return torch.where(labelled(labels, num_classes, ignore_index), labels, -1)


def class_masks(
    labels: Int[Tensor, "b *spatial"],
    num_classes: int,
    ignore_index: int = 255,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "b n *spatial"]:
    """The binary masks y_* of Eq. (1), M_k of Eq. (11): one for each class, zero where ignored.

    Equals ``F.one_hot(labels, n)`` with the classes in dimension 1. Comparing instead of indexing,
    so that no label, however wrong, addresses memory.
    """
    classes = torch.arange(num_classes, device=labels.device).view(-1, *[1] * (labels.ndim - 1))  # [n, 1...]
    kept = torch.where(labelled(labels, num_classes, ignore_index), labels.long(), -1)
    return (kept[:, None] == classes).to(dtype)
