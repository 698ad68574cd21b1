"""Labels on their way to the features' size: one launch instead of ten."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from cacseg import functional
from cacseg.functional.labels import rounding
from cacseg.ops._choice import kernels, kernels_run_on


@lru_cache(maxsize=64)  # the sizes of a training run repeat
def nearest(source: int, output: int, centred: bool, device: torch.device) -> Tensor:
    """Which input each output position takes, with the rounding of F.interpolate."""
    positions = torch.arange(source, dtype=torch.float32)
    return F.interpolate(positions[None, None], size=output, mode=rounding(centred))[0, 0].int().to(device)


@torch.library.custom_op("cacseg::fitted_labels", mutates_args=())
def fitted_labels(
    labels: Tensor, height: int, width: int, num_classes: int, ignore_index: int, centred: bool
) -> Tensor:
    """Labels [b, H, W] at another size, -1 wherever they take no part."""
    rows = nearest(labels.shape[1], height, centred, labels.device)
    columns = nearest(labels.shape[2], width, centred, labels.device)
    return kernels("labels").fit(labels, rows, columns, num_classes, ignore_index)


@fitted_labels.register_fake
def _(labels: Tensor, height: int, width: int, num_classes: int, ignore_index: int, centred: bool) -> Tensor:
    return labels.new_empty(labels.shape[0], height, width, dtype=torch.int64)


def fit_labels(
    labels: Tensor, size: Sequence[int], num_classes: int, ignore_index: int = 255, *, centred: bool = False
) -> Tensor:
    """`functional.fit_labels`: at the size of the features, -1 wherever they take no part."""
    if labels.ndim == 3 and kernels_run_on(labels.device):
        return fitted_labels(labels, *size, num_classes, ignore_index, centred)
    return functional.fit_labels(labels, size, num_classes, ignore_index, centred=centred)


def labels_for_kernels(labels: Tensor, size: Sequence[int], num_classes: int, ignore_index: int) -> Tensor:
    """Labels at the features' size. The kernels leave out what is not in [0, n), so fitted labels pass as they are."""
    if tuple(labels.shape[1:]) == tuple(size) and not 0 <= ignore_index < num_classes:
        return labels.long()
    return fit_labels(labels, size, num_classes, ignore_index)
