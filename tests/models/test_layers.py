import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cacseg.models.heads import FCN, DeepLabV3Plus, OCRNet, UPerNet, attend, gather_regions
from cacseg.models.layers import ConvNormAct, PooledContext, SeparableConv

CHANNELS = (4, 6, 8, 10)


def draw_pyramid(b=2):
    return [torch.randn(b, d, *size) for d, size in zip(CHANNELS, [(13, 9), (7, 5), (4, 3), (2, 2)], strict=True)]


@pytest.mark.parametrize(("kernel_size", "dilation"), [(1, 1), (3, 1), (3, 4)])
def test_convolutions_keep_the_size(kernel_size, dilation):
    layer = ConvNormAct(4, 6, kernel_size, dilation=dilation).eval()
    maps = torch.randn(1, 4, 7, 9)
    out = layer(maps)
    truth = F.conv2d(maps, layer.conv.weight, padding="same", dilation=dilation) / (1 + layer.norm.eps) ** 0.5
    torch.testing.assert_close(out, truth.relu())


def test_a_separable_convolution_is_depthwise_then_pointwise():
    layer = SeparableConv(4, 6, dilation=2)
    assert (layer.depthwise.conv.groups, layer.depthwise.conv.dilation) == (4, (2, 2))
    assert layer.pointwise.conv.kernel_size == (1, 1)
    assert layer(torch.randn(2, 4, 5, 7)).shape == (2, 6, 5, 7)


def test_pooling_one_image_in_training_says_what_to_do():
    layer = PooledContext(4, 6, bins=1)
    with pytest.raises(ValueError, match="at least 2 images a batch"):
        layer(torch.randn(1, 4, 5, 5))
    assert layer.eval()(torch.randn(1, 4, 5, 5)).shape == (1, 6, 5, 5)
    assert PooledContext(4, 6, bins=2)(torch.randn(1, 4, 5, 5)).shape == (1, 6, 5, 5)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: FCN(CHANNELS, 16), (2, 2)),
        (lambda: FCN(CHANNELS, 16, level=None, num_convs=1, kernel_size=1, concat_input=False), (13, 9)),
        (lambda: DeepLabV3Plus(CHANNELS, 16), (13, 9)),
        (lambda: UPerNet(CHANNELS, 16), (13, 9)),
    ],
)
def test_a_head_turns_a_pyramid_into_features(make, size):
    head = make()
    features = head(draw_pyramid())
    assert features.shape == (2, 16, *size)
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert not any(isinstance(layer, nn.Conv2d) and layer.bias is not None for layer in head.modules())


def test_ocrnet_also_reads_region_logits():
    head = OCRNet(CHANNELS, 16)
    regions = torch.randn(2, 5, 13, 9, requires_grad=True)
    features = head(draw_pyramid(), regions)
    assert features.shape == (2, 16, 13, 9)
    features.square().sum().backward()
    assert regions.grad.any()
    assert all(parameter.grad is not None for parameter in head.parameters())


def test_regions_are_means_over_space():
    pixels, logits = torch.randn(2, 4, 3, 5).double(), torch.randn(2, 6, 3, 5).double()
    regions = gather_regions(pixels, logits)
    shares = logits[1, 2].exp() / logits[1, 2].exp().sum()
    torch.testing.assert_close(regions[1, :, 2], (pixels[1] * shares).sum((1, 2)))


def test_attention_is_a_mean_of_the_values():
    query, key, value = (
        torch.randn(2, 4, 3, 5).double(),
        torch.randn(2, 4, 6, 1).double(),
        torch.randn(2, 4, 6, 1).double(),
    )
    out = attend(query, key, value)
    scores = (query[1, :, 2, 3] @ key[1, :, :, 0] / 2.0).softmax(0)
    torch.testing.assert_close(out[1, :, 2, 3], value[1, :, :, 0] @ scores)
