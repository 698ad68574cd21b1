"""Projectors that matter from the start: those of the default preset begin by giving 0, which would hide mistakes."""

import pytest
import torch
from torch import nn

from cacseg import designs


def wake(module):
    """The same for one that is there already; gives it back."""
    for name, parameter in module.named_parameters():
        if "_projector.2." in name:
            nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(len(name)))
    return module


@pytest.fixture(scope="module", autouse=True)
def awake():
    """In all tests of the folder whose conftest imports this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(designs, "choose_zero_start", lambda given, default, *names: False)
        yield
