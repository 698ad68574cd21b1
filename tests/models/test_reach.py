"""Taps that crops are too small to train."""

import pytest
import torch

from cacseg.models import create_model
from cacseg.models.reach import Dilated, untrained_taps


@pytest.fixture(scope="module")
def deeplab():
    torch.manual_seed(0)
    return create_model("deeplabv3plus", 5, "plain", backbone="test_resnet", output_stride=8, auxiliary=False)


def gradients(model, size):
    """Of the convolution with a dilation of 36, a number for each tap: the largest of its channels."""
    (conv,) = [one for one in model.head.modules() if getattr(one, "dilation", None) == (36, 36)]
    model.train().zero_grad()
    labels = torch.randint(0, 5, (2, *size), generator=torch.Generator().manual_seed(0))
    model.loss(torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)), labels)["total"].backward()
    return conv.weight.grad.abs().amax((0, 1))


@pytest.mark.parametrize(("size", "reached"), [((64, 64), 1), ((64, 320), 3), ((320, 320), 9)])
def test_a_tap_that_is_not_reached_has_no_gradient(deeplab, size, reached):
    assert int((gradients(deeplab, size) > 0).sum()) == reached
    assert Dilated((3, 3), (36, 36), (size[0] // 8, size[1] // 8)).reached == reached


def test_what_is_said(deeplab):
    deeplab.train()
    lines = untrained_taps(deeplab, (224, 288), (360, 480))
    (line,) = lines
    assert line.startswith("in crops of 224x288 (maps of 28x36) convolutions with a dilation of 36 have 8 of 9 taps")
    assert "in images of 360x480 (maps of 45x60) 8 of these read the image" in line
    assert deeplab.training
    assert not any(one._forward_pre_hooks for one in deeplab.modules())
    assert len(untrained_taps(deeplab, (64, 64), (360, 480))) == 3


@pytest.mark.parametrize(
    ("crop", "shown"), [((224, 288), (224, 288)), ((224, 288), (200, 200)), ((320, 320), (2048, 2048))]
)
def test_nothing_is_said_where_nothing_is_wrong(deeplab, crop, shown):
    assert untrained_taps(deeplab, crop, shown) == []


def test_a_model_without_far_reaches_is_not_run(monkeypatch):
    model = create_model("fcn", 5, "plain", backbone="test_resnet", output_stride=8)
    monkeypatch.setattr(model, "forward", None)
    assert untrained_taps(model, (224, 288), (360, 480)) == []
