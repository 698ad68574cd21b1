"""Whole, sliding and multi-scale inference against plain loops in float64."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cacseg.engine.inference import MULTI_SCALE, Inference, predict_each, scale_images
from cacseg.runtime.windows import place_windows


def predict(network, images, size, inference=Inference()):  # noqa: B008 (frozen)
    """The scores of a network with one output, from images that are resized here."""
    shown = [scale_images(images, ratio) for ratio in inference.ratios]
    return next(predict_each(lambda one, _: [network(one)], shown, size, inference))


class Tiny(nn.Module):
    """Logits at a quarter of the resolution that depend on the whole window, as a context-aware classifier's do."""

    def __init__(self, num_classes=4, step=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=step, padding=1), nn.Tanh(), nn.Conv2d(8, num_classes, 1))
        self.seen = []

    def forward(self, images):
        self.seen.append(tuple(images.shape))
        logits = self.layers(images)
        return logits * (1.0 + images.mean((1, 2, 3), keepdim=True)) + images.amax((1, 2, 3), keepdim=True)


def build(num_classes=4):
    torch.manual_seed(0)
    return Tiny(num_classes).double().eval().requires_grad_(False)


def resize(maps, size):
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False)


def naive_slide(network, image, window, stride):
    """One image, one window at a time, counted pixel by pixel."""
    height, width = image.shape[2:]
    total, count = 0, torch.zeros(height, width, dtype=torch.float64)
    for row in range(max(height - window[0] + stride[0] - 1, 0) // stride[0] + 1):
        for column in range(max(width - window[1] + stride[1] - 1, 0) // stride[1] + 1):
            bottom, right = min(row * stride[0] + window[0], height), min(column * stride[1] + window[1], width)
            top, left = max(bottom - window[0], 0), max(right - window[1], 0)
            crop = image[:, :, top:bottom, left:right]
            logits = resize(network(crop), crop.shape[2:])
            total = total + F.pad(logits, (left, width - right, top, height - bottom))
            count[top:bottom, left:right] += 1
    assert (count > 0).all()
    return total / count


def naive(network, image, size, inference):
    """The definition, for one image."""
    found = []
    for ratio in inference.ratios:
        shown = resize(image, [round(side * ratio) for side in image.shape[2:]])
        for flipped in (False, True) if inference.flip else (False,):
            view = shown.flip(-1) if flipped else shown
            if inference.window is None:
                logits = resize(network(view), view.shape[2:])
            else:
                logits = naive_slide(network, view, inference.window, inference.stride)
            logits = resize(logits, size)
            found.append(logits.flip(-1) if flipped else logits)
    if len(found) == 1:
        return found[0]
    return sum(one.softmax(1) for one in found) / len(found)


WAYS = {
    "whole": Inference(),
    "flip": Inference(flip=True),
    "multi-scale": Inference(ratios=MULTI_SCALE, flip=True),
    "one other scale": Inference(ratios=(1.25,)),
    "slide": Inference(window=(16, 20), stride=(12, 12)),
    "slide, window by window": Inference(window=(16, 20), stride=(12, 12), window_batch=1),
    "slide without overlap": Inference(window=(16, 16), stride=(16, 16), window_batch=7),
    "slide, wider than the image": Inference(window=(16, 64), stride=(7, 32)),
    "slide, larger than the image": Inference(window=(64, 64), stride=(32, 32)),
    "slide, multi-scale": Inference(window=(16, 20), stride=(11, 13), ratios=(0.5, 1.0, 1.75), flip=True),
}


@pytest.mark.parametrize("size", [(32, 44), (45, 37)])
@pytest.mark.parametrize("way", WAYS)
def test_equals_the_definition(way, size):
    network, inference = build(), WAYS[way]
    images = torch.rand(2, 3, 32, 44, dtype=torch.float64)
    found = predict(network, images, size, inference)
    expected = torch.cat([naive(network, image[None], size, inference) for image in images])
    assert found.shape == (2, 4, *size)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)
    if inference.averages:
        torch.testing.assert_close(found.sum(1), torch.ones(2, *size))


@pytest.mark.parametrize("side", range(1, 40))
@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 11), (7, 1), (12, 5)])
def test_windows_cover_every_pixel_and_stay_inside(side, window, stride):
    length, starts, cover = place_windows(side, window, stride)
    assert length == min(window, side)
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert starts[-1] + length == side
    assert all(b - a <= stride for a, b in pairwise(starts))
    assert len(starts) == max(side - window + stride - 1, 0) // stride + 1
    counted = [0] * side
    for start in starts:
        for place in range(start, start + length):
            counted[place] += 1
    assert cover == counted
    assert min(cover) >= 1


def test_windows_go_through_the_network_in_batches():
    network = build()
    predict(network, torch.rand(2, 3, 32, 32).double(), (32, 32), Inference((16, 16), (16, 16), window_batch=3))
    assert network.seen == [(3, 3, 16, 16), (3, 3, 16, 16), (2, 3, 16, 16)]


def test_a_window_as_large_as_the_image_is_the_whole_image():
    network, images = build(), torch.rand(1, 3, 24, 28).double()
    whole = predict(network, images, (24, 28))
    assert torch.equal(predict(network, images, (24, 28), Inference((24, 28), (24, 28))), whole)


def test_several_outputs_from_one_pass_are_those_of_several_passes():
    """Also of an output that reads labels, which are cut, resized and flipped as the images are."""
    network, calls = build(), []

    def outputs(images, labels):
        calls.append(tuple(images.shape))
        one_hot = F.one_hot(resize_nearest(labels, images.shape[2:]), 4).permute(0, 3, 1, 2)
        return [network(images), one_hot.double()]

    def resize_nearest(labels, size):
        return F.interpolate(labels[:, None].double(), size=tuple(size), mode="nearest")[:, 0].long()

    images, labels = torch.rand(2, 3, 32, 44).double(), torch.randint(0, 4, (2, 32, 44))
    for way, inference in WAYS.items():
        calls.clear()
        shown = [scale_images(images, ratio) for ratio in inference.ratios]
        first, second = predict_each(outputs, shown, (32, 44), inference, labels)
        passes = len(calls)
        assert torch.equal(first, predict(network, images, (32, 44), inference)), way
        if inference.ratios == (1.0,):  # an oracle that returns its labels is right everywhere
            assert torch.equal(second.argmax(1), labels), way
        else:
            assert (second.argmax(1) == labels).double().mean() > 0.5, way
        expected = []
        for ratio in inference.ratios:
            size = [round(side * ratio) for side in (32, 44)]
            sides = zip(size, inference.window or size, inference.stride or size, strict=True)
            rows, columns = (place_windows(*one) for one in sides)
            windows = 2 * len(rows.starts) * len(columns.starts)
            expected.append(1 if inference.window is None else -(-windows // inference.window_batch))
        assert passes == sum(expected) * (2 if inference.flip else 1), way


def test_sums_are_float32_whatever_the_network_computes_in():
    network, images = build(), torch.rand(1, 3, 32, 32)
    for inference in WAYS.values():
        found = predict(lambda x: network(x.double()).bfloat16(), images, (40, 40), inference)
        assert found.dtype == torch.float32
        assert not found.requires_grad


def test_nothing_keeps_a_graph():
    network = build().requires_grad_(True)
    assert not predict(network, torch.rand(1, 3, 16, 16).double(), (16, 16)).requires_grad


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(window=(8, 8)), "window and stride go together"),
        (dict(stride=(8, 8)), "window and stride go together"),
        (dict(window=(8, 8), stride=(9, 8)), r"pixels would be skipped; got stride=\(9, 8\) for window=\(8, 8\)"),
        (dict(window=(8, 8), stride=(0, 8)), "stride must be at least 1"),
        (dict(ratios=()), "at least one positive number"),
        (dict(ratios=(1.0, -0.5)), "at least one positive number"),
        (dict(window_batch=0), "window_batch must be at least 1; got 0"),
    ],
)
def test_what_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Inference(**arguments)


def test_one_image_for_each_ratio():
    with pytest.raises(ValueError, match="one image for each of 2 ratios; got 1"):
        list(predict_each(lambda x, _: [x], [torch.rand(1, 3, 4, 4)], (4, 4), Inference(ratios=(0.5, 1.0))))
