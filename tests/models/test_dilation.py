"""Taps that crops are too small to train."""

import pytest
import torch
from torch import nn

from cacseg.models import create_model
from cacseg.models.deeplabv3plus import DeepLabV3Plus
from cacseg.models.dilation import DilatedSide, untrained_taps


@pytest.fixture(scope="module")
def deeplab():
    torch.manual_seed(0)
    return create_model("deeplabv3plus", 5, "plain", backbone="test_resnet", output_stride=8, auxiliary=False)


@pytest.mark.parametrize(("size", "reached"), [((8, 8), 1), ((8, 40), 3), ((40, 40), 9)])
def test_a_tap_of_deeplab_that_is_not_reached_has_no_gradient(size, reached):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    head = DeepLabV3Plus([4, 4, 4, 4], channels=8)
    (conv,) = [one for one in head.modules() if getattr(one, "dilation", None) == (36, 36)]
    head([torch.randn(2, 4, *size, generator=generator) for _ in range(4)]).square().sum().backward()
    assert int((conv.weight.grad.abs().amax((0, 1)) > 0).sum()) == reached
    rows, columns = (DilatedSide(3, 36, 1, side, side).reached for side in size)
    assert sum(rows) * sum(columns) == reached


@pytest.mark.parametrize("padding", [0, 3, 6, 9])
@pytest.mark.parametrize(("kernel", "dilation", "stride"), [(3, 2, 1), (3, 6, 1), (5, 3, 1), (3, 4, 2), (2, 5, 1)])
def test_what_a_tap_reaches_is_what_its_gradient_says(kernel, dilation, stride, padding):
    conv = nn.Conv1d(1, 1, kernel, dilation=dilation, stride=stride, padding=padding, bias=False).double()
    for size in range(1, 14):
        if size + 2 * padding <= (kernel - 1) * dilation:
            continue
        values = torch.ones(1, 1, size, dtype=torch.float64)
        out = conv(values)
        (gradient,) = torch.autograd.grad(out.sum(), conv.weight)
        slack = (size + 2 * padding - (kernel - 1) * dilation - 1) % stride  # padding on the right that is not read
        if slack == 0:
            found = DilatedSide(kernel, dilation, stride, size, out.shape[-1]).reached
            assert all(ours or theirs == 0 for ours, theirs in zip(found, gradient[0, 0].tolist(), strict=True))
            if stride == 1:
                assert found == [value > 0 for value in gradient[0, 0].tolist()]


def test_what_is_said(deeplab):
    deeplab.train()
    deeplab.backbone.eval()
    (line,) = untrained_taps(deeplab, (224, 288), (360, 480))
    assert line.startswith("in crops of 224x288 (maps of 28x36) convolutions with a dilation of 36 have 8 of 9 taps")
    assert "in images of 360x480 (maps of 45x60) 8 of these read the image" in line
    assert "crops of about 296x296 or more, take dilations of at most 27 (model.dilations), or show" in line
    assert deeplab.training
    assert deeplab.head.training
    assert not any(one.training for one in deeplab.backbone.modules())
    assert not any(one._forward_hooks for one in deeplab.modules())
    assert len(untrained_taps(deeplab, (64, 64), (360, 480))) == 3


@pytest.mark.parametrize(
    ("crop", "shown"), [((224, 288), (224, 288)), ((224, 288), (200, 200)), ((296, 296), (2048, 2048))]
)
def test_nothing_is_said_where_nothing_is_wrong(deeplab, crop, shown):
    assert untrained_taps(deeplab, crop, shown) == []


def test_a_context_aware_one_is_looked_at_as_well():
    model = create_model("deeplabv3plus", 5, backbone="test_resnet", output_stride=8)
    assert len(untrained_taps(model, (224, 288), (360, 480))) == 1


def test_smaller_dilations_fit_smaller_crops():
    model = create_model("deeplabv3plus", 5, "plain", backbone="test_resnet", output_stride=8, dilations=(6, 12, 18))
    assert untrained_taps(model, (224, 288), (360, 480)) == []
    assert len(untrained_taps(model, (64, 64), (360, 480))) == 2  # of 12 and 18


def test_a_backbone_is_not_told_of_dilations():
    model = create_model("fcn", 5, "plain", backbone="test_resnet", output_stride=8)
    lines = untrained_taps(model, (24, 24), (360, 480))
    assert lines
    assert all("take a larger model.output_stride" in line and "model.dilations" not in line for line in lines)


def test_a_model_without_far_reaches_is_not_run(monkeypatch):
    model = create_model("fcn", 5, "plain", backbone="test_resnet", output_stride=8)
    monkeypatch.setattr(model, "forward", None)
    assert untrained_taps(model, (224, 288), (360, 480)) == []
