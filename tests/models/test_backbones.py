import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cacseg.models.backbones import Backbone, make_backbone, normalisation


def make_on_meta(name, **arguments):
    with torch.device("meta"):
        return make_backbone(name, **arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "channels", "strides"),
    [
        ("resnet18", {}, (64, 128, 256, 512), (4, 8, 16, 32)),
        ("resnet18.a1_in1k", {"output_stride": 16}, (64, 128, 256, 512), (4, 8, 16, 16)),
        ("convnext_atto", {"in_channels": 4}, (40, 80, 160, 320), (4, 8, 16, 32)),
        ("efficientnet_b0", {"output_stride": 8, "padding": "same"}, (24, 40, 112, 320), (4, 8, 8, 8)),
        ("mobilenetv2_100", {"output_stride": 8, "padding": "same"}, (24, 32, 96, 320), (4, 8, 8, 8)),
        ("hrnet_w18_small", {}, (16, 32, 64, 128), (4, 8, 16, 32)),
        ("swin_tiny_patch4_window7_224", {}, (96, 192, 384, 768), (4, 8, 16, 32)),
    ],
)
def test_four_maps_of_the_promised_channels_and_strides(name, arguments, channels, strides):
    backbone = make_on_meta(name, **arguments)
    assert (backbone.channels, backbone.strides) == (channels, strides)
    pyramid = backbone(torch.zeros(2, arguments.get("in_channels", 3), 64, 96, device="meta"))
    shapes = [(2, d, 64 // stride, 96 // stride) for d, stride in zip(channels, strides, strict=True)]
    assert [tuple(level.shape) for level in pyramid] == shapes


def test_maps_with_channels_last_are_turned():
    class Net(nn.Module):
        def forward(self, images):
            return [torch.zeros(1, size, size, d) for size, d in ((8, 2), (4, 3), (2, 4), (1, 5))]

    backbone = Backbone(Net(), "net", (2, 3, 4, 5), channels_last=True)
    assert [tuple(level.shape) for level in backbone(torch.zeros(1, 3, 32, 32))] == [
        (1, 2, 8, 8),
        (1, 3, 4, 4),
        (1, 4, 2, 2),
        (1, 5, 1, 1),
    ]


@pytest.mark.parametrize("padding", ["", "same"])
@pytest.mark.parametrize(
    ("output_stride", "dilations"), [(8, (1, 1, 1, 2, 2, 4, 4)), (16, (1, 1, 1, 1, 1, 2, 2)), (32, (1,) * 7)]
)
def test_mobilenetv2_dilates_the_first_block_of_a_stage(output_stride, dilations, padding):
    net = make_on_meta("mobilenetv2_100", output_stride=output_stride, padding=padding).net
    for stage, dilation in zip(net.blocks, dilations, strict=True):
        first, *others = (block.conv_dw for block in stage)
        assert first.dilation == (dilation, dilation)
        assert all(conv.dilation == (1, 1) for conv in others)


@pytest.mark.parametrize(("padding", "first"), [("", 0), ("same", 3)])
@pytest.mark.parametrize(("blocks", "same"), [("all", True), ("first", False)])
@torch.no_grad()
def test_where_all_blocks_dilate_weights_read_what_they_read_undilated(blocks, same, padding, first):
    """Every fourth feature at a stride of 8 is one at a stride of 32; as TensorFlow pads, the last of four."""
    coarse = make_backbone("mobilenetv2_035", padding=padding).eval()
    fine = make_backbone("mobilenetv2_035", output_stride=8, padding=padding, dilated_blocks=blocks).eval()
    fine.load_state_dict(coarse.state_dict())
    images = torch.randn(1, 3, 128, 160, generator=torch.Generator().manual_seed(0))
    few, many = coarse(images)[3], fine(images)[3]
    picked = many[..., first::4, first::4]
    assert torch.allclose(picked, few, rtol=1e-4, atol=1e-4 * float(few.abs().max())) == same


@torch.no_grad()
def test_padding_same_is_tensorflows():
    """At an even size a stride of 2 pads below and to the right alone, where PyTorch pads on both sides."""
    stem = make_backbone("mobilenetv2_100", padding="same").net.conv_stem
    images = torch.randn(1, 3, 64, 64)
    truth = F.conv2d(F.pad(images, (0, 1, 0, 1)), stem.weight, stride=2)
    torch.testing.assert_close(stem(images), truth)


@pytest.mark.parametrize(
    ("arguments", "stays"),
    [({"padding": "same"}, True), ({"padding": "same", "pad_to_stride": False}, False), ({"padding": ""}, True)],
)
@torch.no_grad()
def test_a_feature_stands_for_one_place_whatever_the_size(arguments, stays):
    """The upper left of an image gives the features that it gives as a part of a larger one, far from what was cut."""
    backbone = make_backbone("mobilenetv2_100", output_stride=8, **arguments).eval()
    whole = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    part, all_of_it = (backbone(images)[0][..., :4, :4] for images in (whole[..., :53, :53], whole))
    assert torch.allclose(part, all_of_it, atol=1e-5) == stays


@pytest.mark.parametrize(
    ("name", "arguments", "multiple"),
    [
        ("mobilenetv2_100", {}, 1),
        ("mobilenetv2_100", {"padding": "same"}, 32),
        ("mobilenetv2_100", {"padding": "same", "pad_to_stride": False}, 1),
        ("tf_efficientnet_b0", {}, 32),  # timm pads it so without being asked
        ("tf_efficientnet_b0", {"output_stride": 16}, 16),
        ("efficientnet_b0", {}, 1),
    ],
)
def test_only_what_moves_with_the_size_is_padded_to_the_stride(name, arguments, multiple):
    assert make_on_meta(name, **arguments).multiple == multiple


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet18x", "must be a name of timm; got 'resnet18x'. Did you mean 'resnet18"),
        ("qqqqqqqq", "got 'qqqqqqqq'. timm.list_models"),
        ("vit_tiny_patch16_224", r"four maps of the strides \(4, 8, 16, 32\); 'vit_tiny_patch16_224' gives"),
        ("coat_lite_tiny", "timm offers none for 'coat_lite_tiny'"),
        ("efficientformer_l1", "must take images of any size; timm's 'efficientformer_l1' takes neither odd sizes"),
        ("resnet18.nope", "timm has no weights 'nope' of 'resnet18'; it has a1_in1k"),
    ],
)
def test_a_backbone_that_cannot_serve_says_why(name, words):
    with pytest.raises(ValueError, match=words):
        make_on_meta(name)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("resnet18", {"padding": "same"}, "timm cannot build 'resnet18' with"),
        ("resnet18", {"output_stride": 4}, "output_stride must be 8, 16 or 32; got 4"),
        ("mobilenetv2_100", {"dilated_blocks": "some"}, "dilated_blocks must be one of 'first', 'all'; got 'some'"),
        ("hrnet_w18_small", {"output_stride": 8}, "HRNet and Swin take neither"),
        ("hrnet_w18_small", {"levels": (2, 3)}, r"reads the maps \(2, 3\)"),
        ("swin_tiny_patch4_window7_224", {"output_stride": 8}, "HRNet and Swin take neither"),
    ],
)
def test_an_option_that_a_backbone_lacks_is_refused(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        make_on_meta(name, **arguments)


def test_normalisation_is_that_of_timms_weights():
    assert normalisation("resnet18")[0] == [0.485, 0.456, 0.406]
    assert normalisation("inception_v3.tf_in1k") == ([0.5] * 3, [0.5] * 3)
    mean, std = normalisation("resnet18", in_channels=1)
    assert (mean, std) == ([pytest.approx(0.449)], [pytest.approx(0.226)])


@pytest.mark.parametrize(("name", "multiple"), [("resnet18", 1), ("dla34", 32), ("swinv2_tiny_window8_256", 32)])
@torch.no_grad()
def test_networks_that_need_certain_sizes_get_them(name, multiple):
    """Padded on the way in, cropped on the way out: maps of the sizes that strides would give."""
    backbone = make_backbone(name).eval()
    assert backbone.multiple == multiple
    pyramid = backbone(torch.randn(1, 3, 65, 97))
    assert [tuple(level.shape[2:]) for level in pyramid] == [(17, 25), (9, 13), (5, 7), (3, 4)]
