"""Distributed data parallel with find_unused_parameters=False: every parameter must take part in every step."""

import pytest
import torch
from torch import multiprocessing

from cacseg.models import MODELS, create_model
from distributed_worker import train_two_steps

HEADS = ["fcn_mobilenetv2", "deeplabv3plus_mobilenetv2", "ocrnet_hrnet_w18", "upernet_resnet50"]


@pytest.mark.parametrize(
    ("name", "classifier"),
    [
        *((name, "context") for name in HEADS),
        *(pytest.param(name, "context", marks=pytest.mark.slow) for name in MODELS if name not in HEADS),
        *(pytest.param(name, "plain", marks=pytest.mark.slow) for name in HEADS),
    ],
)
def test_every_parameter_gets_a_gradient(name, classifier):
    """From shapes alone, so that the largest models cost nothing. Backbones meet both classifiers behind a head."""
    with torch.device("meta"):
        model = create_model(name, 19, classifier)
        losses = model.loss(torch.empty(2, 3, 64, 64), torch.empty(2, 64, 64, dtype=torch.long))
        losses["total"].backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


@pytest.mark.slow
def test_two_processes_stay_together(tmp_path):
    multiprocessing.spawn(train_two_steps, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
