import math

import pytest
import torch
import torch.nn.utils.prune
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from cacseg.models import create_model, levels
from cacseg.models.levels import PyramidConvNormAct, concatenate_levels, convolve_levels

CHANNELS = (4, 6, 8, 10)


def draw_pyramid(sizes=((13, 9), (7, 5), (4, 3), (2, 2)), b=2, **options):
    return [torch.randn(b, d, *size, **options) for d, size in zip(CHANNELS, sizes, strict=True)]


def test_levels_are_concatenated_at_the_size_of_the_finest():
    pyramid = draw_pyramid()
    joined = concatenate_levels(pyramid)
    assert joined.shape == (2, sum(CHANNELS), 13, 9)
    torch.testing.assert_close(joined[:, :4], pyramid[0])


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(
    "sizes",
    [
        ((13, 9), (7, 5), (4, 3), (2, 2)),
        ((16, 24), (8, 12), (4, 6), (2, 3)),
        ((8, 8), (8, 8), (4, 4), (1, 1)),  # a level of the finest's size, and one of a pixel
        ((5, 6), (9, 11), (3, 9), (5, 3)),  # finer than the first in both directions, and in one
    ],
)
def test_levels_apart_give_what_the_concatenated_ones_give(kernel, sizes, monkeypatch):
    monkeypatch.setattr(levels, "SLOWNESS", 0.0)  # apart wherever products are saved
    pyramid = draw_pyramid(sizes, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, sum(CHANNELS), kernel, kernel, dtype=torch.float64, requires_grad=True)
    ours = convolve_levels(pyramid, weight)
    truth = F.conv2d(concatenate_levels(pyramid), weight, padding=kernel // 2)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(truth)
    found, expected = (torch.autograd.grad(out, [*pyramid, weight], cotangent) for out in (ours, truth))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def count_products(function):
    """Multiplications of convolutions and matrix products, those in place included."""

    def flops(total, first, second, *_, **__):
        return 2 * math.prod(first) * second[-1]

    in_place = {torch.ops.aten.addmm_: flops, torch.ops.aten.baddbmm_: flops}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        function()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize(("channels", "side", "share"), [(512, 128, 0.37), (256, 128, 0.41)])
def test_the_levels_of_upernet_take_less_than_half_of_the_products(channels, side, share):
    with torch.device("meta"):
        pyramid = [torch.empty(1, channels, side // 2**i, side // 2**i) for i in range(4)]
        weight = torch.empty(channels, 4 * channels, 3, 3)
        apart = count_products(lambda: convolve_levels(pyramid, weight))
        joined = count_products(lambda: F.conv2d(concatenate_levels(pyramid), weight, padding=1))
    assert apart / joined == pytest.approx(share, abs=0.005)


def test_levels_of_few_channels_stay_joined():
    pyramid = [torch.randn(1, 4, 64 // 2**i, 64 // 2**i) for i in range(4)]
    weight = torch.randn(8, 16, 3, 3)
    apart = count_products(lambda: convolve_levels(pyramid, weight))
    assert apart == count_products(lambda: F.conv2d(concatenate_levels(pyramid), weight, padding=1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layer_is_that_of_the_concatenated_levels(layout):
    layer = PyramidConvNormAct(4 * 64, 16, 3)
    pyramid = [torch.randn(2, 64, 32 // 2**i, 32 // 2**i).to(memory_format=layout) for i in range(4)]
    truth = F.relu(layer.norm(layer.conv(concatenate_levels(pyramid))))
    ours = layer(pyramid)
    assert not torch.equal(ours, truth)  # the levels were apart
    torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)


def test_where_no_level_pays_the_layout_stays():
    layer = PyramidConvNormAct(4 * 4, 16, 3).eval()
    pyramid = [torch.randn(2, 4, 64 // 2**i, 64 // 2**i).to(memory_format=torch.channels_last) for i in range(4)]
    assert layer(pyramid).is_contiguous(memory_format=torch.channels_last)


def watch(layer, seen):
    layer.conv.register_forward_hook(lambda *_: seen.append("called"))


def fuse(layer, seen):
    layer.conv, layer.norm = torch.nn.utils.fuse_conv_bn_eval(layer.conv, layer.norm), torch.nn.Identity()


def prune(layer, seen):
    torch.nn.utils.prune.l1_unstructured(layer.conv, "weight", amount=0.5)


def wrap(layer, seen):
    torch.nn.utils.parametrizations.weight_norm(layer.conv)


@pytest.mark.parametrize("change", [watch, fuse, prune, wrap])
def test_a_convolution_that_was_changed_is_called(change):
    torch.manual_seed(0)
    layer, seen = PyramidConvNormAct(4 * 64, 16, 3).eval(), []
    layer.norm.running_mean.normal_()  # which a fused convolution has in its bias
    change(layer, seen)
    pyramid = [torch.randn(2, 64, 32 // 2**i, 32 // 2**i) for i in range(4)]
    assert torch.equal(layer(pyramid), F.relu(layer.norm(layer.conv(concatenate_levels(pyramid)))))
    assert seen == (["called"] * 2 if change is watch else [])


def test_a_traced_layer_has_one_convolution():
    layer = PyramidConvNormAct(4 * 64, 16, 3).eval()
    pyramid = tuple(torch.randn(1, 64, 32 // 2**i, 32 // 2**i) for i in range(4))
    graph = str(torch.jit.trace(layer, (pyramid,)).inlined_graph)
    assert graph.count("aten::_convolution") == 1
    assert "baddbmm" not in graph


def test_under_autocast_it_is_one_convolution():
    layer = PyramidConvNormAct(4 * 64, 16, 3).eval()
    pyramid = [torch.randn(1, 64, 32 // 2**i, 32 // 2**i) for i in range(4)]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(pyramid), F.relu(layer.norm(layer.conv(concatenate_levels(pyramid)))))


@pytest.mark.parametrize("name", ["upernet", "ocrnet"])
def test_a_model_gives_what_it_gives_with_levels_joined(name, monkeypatch):
    torch.manual_seed(0)
    model = create_model(name, 5, backbone="test_resnet", head_channels=64).eval()
    images = torch.randn(2, 3, 97, 130)
    with torch.no_grad():
        ours = model(images)
        monkeypatch.setattr(levels, "SLOWNESS", float("inf"))
        joined = model(images)
    assert not torch.equal(ours, joined)  # they were apart
    torch.testing.assert_close(ours, joined, rtol=1e-4, atol=1e-4)
