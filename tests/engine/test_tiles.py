"""Tiles that share one context give what the whole image gives."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from cacseg.engine.inference import Tiling
from cacseg.engine.tiled import tiled_networks
from cacseg.engine.tiles import Axis
from cacseg.models import create_model


def narrow(preset="tuned", **arguments):
    """A small FCN, without pooling over the image."""
    torch.manual_seed(0)
    model = create_model("fcn", 5, backbone="test_resnet", head_channels=16, preset=preset, **arguments).eval()
    with torch.no_grad():  # classifiers that differ from image to image, and features that differ from place to place
        for parameter in model.classifier.context_projector.parameters():
            parameter.normal_(0.0, 0.3)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0.0, 0.1)
    return model


def tiled(model, images, tile, overlap, context="image", keep=2**30, name=None):
    tiling = Tiling(tile, overlap, context, keep)
    with torch.no_grad():
        (found,) = tiled_networks(model, [name or model.default_output], tiling)(images, None)
    return found


@pytest.fixture(scope="module")
def model():
    return narrow()


def reach(model, side=512):
    """Pixels beyond which an input changes no feature: measured, with the pooling of the classifier left out."""
    image = torch.randn(1, 3, side, side, requires_grad=True)
    features = model.features(image)
    middle = features.shape[2] // 2
    features[0, :, middle, middle].sum().backward()
    rows = image.grad[0].abs().sum((0, 2)).nonzero().flatten()
    centre = (middle + 0.5) * side / features.shape[2]
    return max(centre - rows.min().item(), rows.max().item() + 1 - centre)


@pytest.mark.parametrize(
    ("preset", "size"),
    [
        pytest.param("tuned", (1344, 1376), marks=pytest.mark.slow),
        ("tuned", (300, 1417)),
        ("released", (300, 1417)),
        ("paper", (1400, 100)),
    ],
)
def test_tiles_that_see_enough_equal_the_whole_image(preset, size):
    model = narrow(preset)
    halo = 3 / 8 * 448
    assert reach(model) + 32 < halo  # upsampling reads the next feature too
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(images)
    found = tiled(model, images, 896, 448)
    assert found.shape == whole.shape
    assert (found - whole).abs().max() <= 1e-5 * whole.abs().max()
    assert (tiled(model, images, 896, 448, keep=0) - whole).abs().max() <= 1e-5 * whole.abs().max()
    plain = tiled(model, images, 896, 448, name="plain")
    with torch.no_grad():
        assert (plain - model.plain(images)).abs().max() <= 1e-5 * plain.abs().max()


def test_context_of_the_tiles_alone_is_another(model):
    """Two halves of unlike brightness: each has other prototypes than both together."""
    images = torch.randn(1, 3, 128, 1792, generator=torch.Generator().manual_seed(1))
    images[..., 896:] += 2.0
    with torch.no_grad():
        whole = model(images)
    together, apart = (tiled(model, images, 896, 448, context) for context in ("image", "tile"))
    assert (together - whole).abs().max() <= 1e-5 * whole.abs().max()
    assert (apart - whole).abs().max() > 1e-2 * whole.abs().max()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fcn", {"backbone": "test_resnet"}),
        ("upernet", {"backbone": "test_resnet"}),
        ("deeplabv3plus", {"backbone": "test_resnet", "dilations": (1, 2)}),
        ("ocrnet", {"backbone": "test_resnet"}),
        ("fcn", {"backbone": "test_resnet", "classifier": "plain"}),
        ("upernet", {"backbone": "mobilenetv2_035", "padding": "same"}),
    ],
)
@pytest.mark.parametrize("size", [(96, 128), (75, 90)])
def test_one_tile_that_covers_the_image_is_the_whole_image(name, arguments, size):
    torch.manual_seed(0)
    model = create_model(name, 4, head_channels=16, **arguments).eval()
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        whole = model(images)
    assert (tiled(model, images, 128, 32) - whole).abs().max() <= 1e-5 * whole.abs().max()


@pytest.mark.parametrize(
    ("side", "tile", "overlap"), [(1000, 256, 64), (257, 256, 0), (100, 256, 64), (1024, 256, 128)]
)
def test_every_pixel_is_finished_once_and_shares_add_up(side, tile, overlap):
    axis = Axis(side, tile, overlap)
    count = len(axis.starts)
    ends = [axis.finished(index) for index in range(count)]
    assert ends[0][0] == 0
    assert ends[-1][1] == side
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    assert all(axis.span(index)[1] > axis.span(index)[0] for index in range(count))
    places = torch.arange(side) + 0.5
    shares = torch.stack([axis.weights(index, places) for index in range(count)])
    assert torch.allclose(shares.sum(0), torch.ones(side))
    for index, row in enumerate(shares):  # nothing of what a tile did not see, nor of its inner edges
        start, end = axis.span(index)
        inner = row.nonzero().flatten()
        assert inner.min() >= (start if index == 0 else start + 3 / 8 * overlap)
        assert inner.max() < (end if index == count - 1 else end - 3 / 8 * overlap)


@pytest.mark.parametrize("given", [(100, 0), (0, 0), (128, 16), (128, 96), (128, -32)])
def test_tilings_that_are_refused(given):
    with pytest.raises(ValueError, match="multiple of 32"):
        Tiling(*given)


def test_what_has_no_tiles():
    with pytest.raises(ValueError, match="context"):
        Tiling(128, 32, "window")
    with pytest.raises(ValueError, match="oracle"):
        tiled(narrow(), torch.zeros(1, 3, 32, 32), 128, 32, name="oracle")
