"""Converted models on a CUDA device: kernels run for moved dropout and one-channel heads. Run with `make gpu`."""

import copy

import pytest
import torch
from torch import nn

import cacseg

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def make(classes=5, kernel=1, dropout=0.0):
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 32, 4, stride=4),
        nn.ReLU(),
        nn.Dropout2d(dropout),
        nn.Conv2d(32, classes, kernel, 1, kernel // 2),
    )
    return cacseg.convert(nn.Sequential(*layers), seam="3")


def step(model, images, labels):
    torch.manual_seed(1)
    model.zero_grad()
    losses = model.loss(images, labels)
    losses["total"].backward()
    return losses, [parameter.grad for parameter in model.parameters()]


def draw(classes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, max(2, classes), (2, 32, 48), generator=generator)
    labels[:, :5] = 255
    return torch.randn(2, 3, 32, 48, generator=generator), labels


def close(found, truth):
    for name, value in truth[0].items():
        assert found[0][name].item() == pytest.approx(value.item(), rel=2e-5)
    for mine, other in zip(found[1], truth[1], strict=True):
        assert (mine.cpu().double() - other.cpu().double()).norm() <= 1e-4 * other.cpu().double().norm()


def test_kernels_drop_the_same_channels(monkeypatch):
    model, (images, labels) = make(dropout=0.5).cuda(), [one.cuda() for one in draw(5)]
    fused, ran = cacseg.ops.context_aware_logits, []
    monkeypatch.setattr(
        cacseg.ops, "context_aware_logits", lambda *given, **named: ran.append(1) or fused(*given, **named)
    )
    found = step(model, images, labels)
    assert ran == [1]
    monkeypatch.setattr(cacseg.ops, "context_aware_logits", lambda *given, **named: None)
    close(found, step(model, images, labels))


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_binary_model_equals_that_of_the_cpu(kernel, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, (images, labels) = make(classes=1, kernel=kernel), draw(1)
    truth = step(copy.deepcopy(model).double(), images.double(), labels)
    close(step(model.cuda(), images.cuda(), labels.cuda().float()), truth)
    assert model(images.cuda()).shape == (2, 1, 8, 12)
