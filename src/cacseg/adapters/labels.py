"""The labels of a converted model: where they stand among the arguments of its forward, and what must hold of them."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cacseg._checks import check_proportions, have_one_stride
from cacseg.adapters.search import tensors_in

logger = logging.getLogger("cacseg")


class LabelsArgument(NamedTuple):
    """Where `labels` stands among the arguments of a converted forward."""

    signature: inspect.Signature  # of the converted forward
    position: int  # among the positional arguments
    is_originals: bool  # the original forward has that argument itself


def find_labels_argument(original: type[nn.Module]) -> LabelsArgument:
    """The original's own place for labels, or a new one after its positional arguments."""
    signature = inspect.signature(original.forward)
    parameters = list(signature.parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter.name for parameter in parameters if parameter.kind in kinds]
    if "labels" in signature.parameters:
        if signature.parameters["labels"].default is inspect.Parameter.empty:
            raise TypeError(
                f"the forward of {original.__name__} requires labels, and a converted model runs it without: its "
                "losses come from the classifier. Give the argument the default None."
            )
        position = positional.index("labels") - 1 if "labels" in positional else sys.maxsize  # without self
        return LabelsArgument(signature, position, is_originals=True)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    kind = inspect.Parameter.KEYWORD_ONLY if takes_any else inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters.insert(len(positional) + takes_any, inspect.Parameter("labels", kind, default=None))
    position = sys.maxsize if takes_any else len(positional) - 1
    return LabelsArgument(signature.replace(parameters=parameters), position, is_originals=False)


def check_label_size(labels: Tensor, inputs: Any, output: Any) -> None:
    """Labels [b, H, W] must have the proportions of the images, or the size of a map that the model returns.

    The images are the maps among the inputs, with channels first or last; one that fits is enough. A model may return
    less than it reads: convolutions without padding cut the borders off.
    """
    images = [one for one in tensors_in(inputs) if one.ndim == 4]
    if not images or labels.ndim != 3:
        return
    size = labels.shape[1:]
    if any(have_one_stride(size, one.shape[2:]) or have_one_stride(size, one.shape[1:3]) for one in images):
        return
    if not any(size in (one.shape[2:], one.shape[1:3]) for one in tensors_in(output) if one.ndim == 4):
        check_proportions("labels", size, "images", images[0].shape[2:])


def warn_of_ignored_foreground(labels: Tensor, ignore_index: int) -> None:
    """Labels of background and foreground that look like a mask of 0 and 255, whose foreground would be ignored."""
    if labels.is_meta or torch.any(labels == 1):
        return
    ignored = (labels == ignore_index).float().mean().item()
    if ignored > 0.0:
        logger.warning(
            "cacseg: labels of binary segmentation are 0 and 1; the first ones hold no 1, and %.0f%% are %d, which is "
            "ignored. Masks of 0 and %d: pass labels > 0, or another ignore_index to convert.",
            100 * ignored,
            ignore_index,
            ignore_index,
        )
