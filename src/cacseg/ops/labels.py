"""Labels on their way to the features' size: one launch instead of ten."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from cacseg import functional
from cacseg.functional.labels import LabelSampling, sampled_pixels
from cacseg.ops._choice import is_traced, kernels, kernels_run_on


@lru_cache(maxsize=64)  # the sizes of a training run repeat
def pixels_on(device: torch.device, source: int, output: int, sampling: LabelSampling) -> Tensor:
    """Which pixel each output position takes, for the kernel."""
    return sampled_pixels(source, output, sampling).int().to(device)


def fit_on_device(
    labels: Tensor, height: int, width: int, num_classes: int, ignore_index: int, sampling: str
) -> Tensor:
    """Labels [b, H, W] at another size, -1 wherever they take no part."""
    rows, columns = (
        pixels_on(labels.device, *sizes, cast(LabelSampling, sampling))
        for sizes in zip(labels.shape[1:], (height, width), strict=True)
    )
    with torch.cuda.device_of(labels):  # kernels are launched on the current device
        return kernels("labels").fit(labels, rows, columns, num_classes, ignore_index)


fitted_labels = torch.library.custom_op("cacseg::fitted_labels", fit_on_device, mutates_args=())


@fitted_labels.register_fake
def _(labels: Tensor, height: int, width: int, num_classes: int, ignore_index: int, sampling: str) -> Tensor:
    return labels.new_empty(labels.shape[0], height, width, dtype=torch.int64)


def fit_labels(
    labels: Tensor, size: Sequence[int], num_classes: int, ignore_index: int = 255, sampling: LabelSampling = "nearest"
) -> Tensor:
    """`functional.fit_labels`: at the size of the features, -1 wherever they take no part."""
    if labels.ndim == 3 and kernels_run_on(labels.device):
        # The operator where torch traces: without the dispatcher the host needs a third of the time.
        height, width = size
        fit = fitted_labels if is_traced(labels) else fit_on_device
        return fit(labels, height, width, num_classes, ignore_index, sampling)
    return functional.fit_labels(labels, size, num_classes, ignore_index, sampling)


def labels_for_kernels(
    labels: Tensor, size: Sequence[int], num_classes: int, ignore_index: int, sampling: LabelSampling = "nearest"
) -> Tensor:
    """Labels at the features' size. The kernels leave out what is not in [0, n), so fitted labels pass as they are."""
    if tuple(labels.shape[1:]) == tuple(size) and not 0 <= ignore_index < num_classes:
        return labels.long()
    return fit_labels(labels, size, num_classes, ignore_index, sampling)
