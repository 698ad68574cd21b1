"""Counts the parameters and operations of a model without allocating it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cacseg.classifier import ContextAwareClassifier
from cacseg.models.heads import OCRNet
from cacseg.models.model import SegmentationModel
from cacseg.models.zoo import create_model


class Summary(NamedTuple):
    """Parameters while training (auxiliary head and oracle projector included), deployed, and one image's FLOPs."""

    parameters: int
    deployed_parameters: int
    flops: int  # two for each multiply-add


def summarise(
    name: str,
    num_classes: int = 150,
    classifier: Literal["context", "plain"] = "context",
    *,
    backbone: str | None = None,
    size: tuple[int, int] = (512, 512),
) -> Summary:
    """The costs of `create_model(name, num_classes, classifier)` on one image of that size, from shapes alone."""
    with torch.device("meta"):
        model = create_model(name, num_classes, classifier, backbone=backbone).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, *size))
    return Summary(*count_parameters(model), counter.get_total_flops())


def count_parameters(model: SegmentationModel) -> tuple[int, int]:
    """Parameters in training, and deployed: without oracle projector and auxiliary head (but OCRNet's)."""
    oracle = model.classifier.oracle_projector if isinstance(model.classifier, ContextAwareClassifier) else None
    unread = _count(oracle) + (0 if isinstance(model.head, OCRNet) else _count(model.auxiliary))
    return _count(model), _count(model) - unread


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())
