"""Labels on their way into the maths: resized, and masked where they take no part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def resize_labels(
    labels: Int[Tensor, "b *full"], size: Sequence[int], *, centred: bool = False
) -> Int[Tensor, "b *spatial"]:
    """Labels at another size by nearest neighbour, with the rounding of `F.interpolate(mode="nearest")`.

    Equals ``F.interpolate(labels[:, None].float(), size, mode="nearest")[:, 0].long()``, exact for labels up to
    2**24. A region smaller than a feature's cell may vanish: its class is then absent from the oracle prototypes.

    That takes the first pixel of each cell, which is where `align_corners=True` puts a feature; `centred` takes the one
    in the middle ("nearest-exact"), where `align_corners=False` does.
    """
    if tuple(labels.shape[1:]) == tuple(size):
        return labels.long()
    return F.interpolate(labels[:, None].float(), size=tuple(size), mode=rounding(centred))[:, 0].long()


def rounding(centred: bool) -> str:
    """The mode of F.interpolate."""
    return "nearest-exact" if centred else "nearest"


def labelled(labels: Int[Tensor, "*any"], num_classes: int, ignore_index: int = 255) -> Bool[Tensor, "*any"]:
    """Where a label takes part: in [0, n) and not the ignore index."""
    labels = labels.long()  # n itself may not fit into a narrow type, and would wrap around
    return (labels >= 0) & (labels < num_classes) & (labels != ignore_index)


def fit_labels(
    labels: Int[Tensor, "b *full"],
    size: Sequence[int],
    num_classes: int,
    ignore_index: int = 255,
    *,
    centred: bool = False,
) -> Int[Tensor, "b *spatial"]:
    """Labels at the size of the features, -1 wherever they take no part; packed labels, with size (), as they are."""
    labels = resize_labels(labels, size, centred=centred)
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
