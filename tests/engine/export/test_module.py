"""The module that is exported computes what the model computes, and its traced program does at any size."""

import pytest
import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from torch import nn
from torch.nn import functional as F

import cacseg
from architectures import Refuses, build, small_swin
from cacseg.engine.export.module import (
    Description,
    InferenceModule,
    Traceable,
    draw_images,
    finish,
    inference_copy,
    narrow,
    trace,
)

CPU = torch.device("cpu")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
PLAIN = Description(5, None, None, MEAN, STD, None, True, "logits", "input", "plain", None, None, None, "fp32")


def describe(**changes):
    return PLAIN._replace(**changes)


def small(**arguments):
    torch.manual_seed(0)
    return cacseg.create_model("upernet", 5, backbone="test_resnet", head_channels=8, mean=MEAN, std=STD, **arguments)


def test_a_copy_has_nothing_that_only_training_reads_and_leaves_the_model_alone():
    model = small().train()
    names = set(model.state_dict())
    copied = inference_copy(model)
    left = {name for name in names - set(copied.state_dict()) if "num_batches" not in name}
    assert left
    assert all(name.startswith("auxiliary.") or "oracle" in name for name in left)
    assert not any("projector" in name for name in inference_copy(model, plain=True).state_dict())
    assert model.training
    assert set(model.state_dict()) == names


@torch.no_grad()
@pytest.mark.parametrize("size", ["input", "features"])
@pytest.mark.parametrize("classifier", ["context", "plain"])
def test_pixels_become_the_logits_of_the_model(size, classifier):
    model = small().eval()
    module = InferenceModule(inference_copy(model), describe(size=size, classifier=classifier))
    images = draw_images(module, (2, 40, 56))
    shape = (1, 3, 1, 1)
    normal = (images / 255.0 - torch.tensor(MEAN).view(shape)) / torch.tensor(STD).view(shape)
    logits = model(normal) if classifier == "context" else model.plain(normal)
    if size == "features":
        logits = model.all_logits(normal)[classifier]
    torch.testing.assert_close(module(images), logits, atol=1e-4, rtol=1e-4)
    given = InferenceModule(inference_copy(model), describe(size=size, classifier=classifier, normalises=False))
    torch.testing.assert_close(given(normal), logits, atol=1e-5, rtol=1e-5)


def test_probabilities_and_classes():
    logits = torch.tensor([[2.0, -1.0, 0.5]])[..., None, None]
    three = describe(num_classes=3)
    torch.testing.assert_close(finish(logits, three._replace(output="probabilities")), logits.softmax(1))
    classes = finish(logits, three._replace(output="classes"))
    assert (classes.dtype, classes.tolist()) == (torch.uint8, [[[0]]])
    many = finish(torch.eye(300)[None, :, :1, None], describe(num_classes=300, output="classes"))
    assert (many.dtype, many.shape) == (torch.int32, (1, 1, 1))
    one = describe(num_classes=1)
    sigmoid = torch.tensor([[[[-0.1, 3.0]]]])
    torch.testing.assert_close(finish(sigmoid, one._replace(output="probabilities")), sigmoid.sigmoid())
    assert finish(sigmoid, one._replace(output="classes")).tolist() == [[[0, 1]]]


class Pools(nn.Module):
    """What ResNet-D and others do, whose size torch.export decides by a comparison; and pooling of other libraries."""

    def __init__(self):
        super().__init__()
        self.halve, self.third = nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False), nn.AdaptiveAvgPool2d((3, 2))
        self.conv = nn.Conv2d(3, 5, 1)

    def forward(self, images):
        halved = self.halve(images)
        channels_last = halved.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        return self.conv(channels_last) + F.interpolate(self.conv(self.third(halved)), halved.shape[2:])


@torch.no_grad()
@pytest.mark.parametrize(
    "layer",
    [
        Conv2dSame(3, 4, 3, 2),
        Conv2dSame(3, 4, 3, 4),
        Conv2dSame(3, 4, 1, 2),
        Conv2dSame(3, 4, (3, 5), dilation=2),
        MaxPool2dSame(3, 2),
        AvgPool2dSame(2, 2),
    ],
)
def test_the_padding_of_tensorflow_in_whole_numbers(layer):
    copied = inference_copy(layer)
    for size in ((7, 8), (9, 6), (12, 5)):
        maps = torch.randn(2, 3, *size)
        torch.testing.assert_close(copied(maps), layer(maps))


def padded():
    """As the recipes of this package have it: TensorFlow's padding, on images that are padded to the stride."""
    torch.manual_seed(0)
    arguments = {"backbone": "test_efficientnet", "padding": "same", "output_stride": 8, "head_channels": 8}
    return cacseg.create_model("deeplabv3plus", 5, auxiliary=False, mean=MEAN, std=STD, **arguments)


@torch.no_grad()
@pytest.mark.parametrize(
    "make",
    [Pools, pytest.param(lambda: small_swin(mean=MEAN, std=STD), marks=pytest.mark.slow), padded, lambda: Refuses(32)],
)
def test_a_program_serves_every_size(make):
    pytest.importorskip("torch", minversion="2.13", reason="earlier ones do not trace every model")
    model = inference_copy(make())
    multiple = 32 if isinstance(model, Refuses) else 1
    module = InferenceModule(model, describe(size="input"), multiple)
    program = trace(module, CPU).module()
    for shape in ((1, 33, 47), (3, 48, 96), (2, 57, 150)):
        images = draw_images(module, shape)
        found = program(images)
        assert found.shape == (shape[0], 4 if multiple == 32 else 5, *shape[1:])
        torch.testing.assert_close(found, module(images), atol=1e-4, rtol=1e-4)


class Patches(nn.Module):
    """A map with one place for each whole patch, pooled or not, and spread over the images."""

    def __init__(self, side, pools):
        super().__init__()
        self.pools, self.stem, self.patches = pools, nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, side, side)

    def forward(self, images):
        maps = self.patches(images)
        maps = F.adaptive_avg_pool2d(maps, 2) if self.pools else maps
        return self.stem(images) + F.interpolate(maps, images.shape[2:])


@torch.no_grad()
@pytest.mark.parametrize(
    ("side", "multiple", "shapes"), [(32, 1, [(1, 64, 71), (2, 97, 130)]), (128, 128, [(1, 33, 47), (2, 129, 300)])]
)
def test_maps_with_a_side_of_one(side, multiple, shapes):
    torch.manual_seed(0)
    module = InferenceModule(inference_copy(Patches(side, pools=multiple == 1)), describe(), multiple)
    program = trace(module, CPU).module()
    for shape in shapes:
        images = draw_images(module, shape)
        torch.testing.assert_close(program(images), module(images), atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.slow
def test_the_padding_of_mobilenet_in_transformers():
    model = build("transformers MobileNetV2")
    copied = inference_copy(model)
    assert model.config.tf_padding
    for size in ((33, 64), (47, 90)):
        images = torch.randn(1, 3, *size)
        torch.testing.assert_close(copied(images).logits, model(images).logits)
    program = trace(InferenceModule(copied, describe(), 1), CPU).module()
    images = draw_images(InferenceModule(copied, describe()), (2, 57, 150))
    torch.testing.assert_close(program(images), InferenceModule(copied, describe())(images), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_what_holds_for_one_size_alone_needs_a_fixed_size():
    class OneSize(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.places = nn.Conv2d(3, 5, 1), nn.Parameter(torch.zeros(1, 5, 64, 96))

        def forward(self, images):
            return self.conv(images) + self.places

    with pytest.raises(ValueError, match=r"OneSize cannot be traced.*fixed_size"):
        trace(InferenceModule(OneSize().eval(), describe()), CPU)
    fixed = InferenceModule(OneSize().eval(), describe(fixed_size=(64, 96)))
    images = draw_images(fixed, (1, 64, 96))
    torch.testing.assert_close(trace(fixed, CPU).module()(images), fixed(images))


@torch.no_grad()
def test_float16_keeps_sums_and_the_classifier_in_float32():
    model = small()
    reference = InferenceModule(inference_copy(model), describe(classifier="context"))
    module = narrow(InferenceModule(inference_copy(model), describe(classifier="context", precision="fp16")))
    kinds = {name: one.dtype for name, one in module.model.named_parameters()}
    assert kinds["classifier.weight"] == torch.float32
    assert kinds["head.fuse.norm.weight"] == torch.float32
    assert kinds["head.fuse.conv.weight"] == torch.float16
    images = draw_images(module, (1, 48, 64))
    found = Traceable(module)(images)
    assert found.dtype == torch.float32
    truth = reference(images)
    assert (found - truth).abs().max() < 0.02 * (truth.max() - truth.min())


def test_float16_statistics_may_be_larger_than_float16_holds():
    norm = nn.BatchNorm2d(1).eval()
    norm.running_var.fill_(1e6)
    norm.running_mean.fill_(1e3)

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 1, 1), norm

        def forward(self, images):
            return self.norm(self.conv(images))

    torch.manual_seed(0)
    model = Normalised().eval()
    module = narrow(InferenceModule(inference_copy(model), describe(num_classes=1)))
    images = draw_images(module, (1, 8, 8))
    with torch.no_grad():
        found = Traceable(module)(images)
        truth = InferenceModule(model, describe(num_classes=1))(images)
    torch.testing.assert_close(found, truth, atol=2e-3, rtol=2e-3)
