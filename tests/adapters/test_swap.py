"""Finding the seam, and refusing what has none: the words say what must hold, what arrived and what to do."""

import logging

import pytest
import torch
import transformers
from torch import nn

import cacseg
from architectures import N, build, draw, segmentation, smp
from cacseg.adapters.supported import MASK_MODELS, PROMPTED


class Own(nn.Module):
    """A model of no known library: two 1x1 convolutions, the second makes the scores."""

    def __init__(self, head=None, in_channels=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, N, 1), nn.ReLU()
        )
        self.decode_head = nn.Module()
        self.decode_head.conv_seg = head or nn.Conv2d(N, N, 1)

    def forward(self, images):
        return {"logits": [self.decode_head.conv_seg(self.body(images))]}


def test_the_last_1x1_convolution_is_found_and_reported(caplog):
    original = Own()
    original.body[1].train()
    original.decode_head.eval()
    modes = [module.training for module in original.modules()]
    statistics = original.body[1].running_mean.clone()
    torch.manual_seed(5)
    expected_noise = torch.get_rng_state()
    with caplog.at_level(logging.WARNING, "cacseg"):
        torch.manual_seed(5)
        name = cacseg.adapters.search.find_by_running(original, None)
        assert torch.equal(torch.get_rng_state(), expected_noise)
        model = cacseg.convert(original)
    assert name == model.seam == "decode_head.conv_seg"
    (message,) = caplog.messages
    assert all(fact in message for fact in ("Own", "'decode_head.conv_seg'"))
    assert [module.training for module in cacseg.restore(model).modules()] == modes
    assert torch.equal(original.body[1].running_mean, statistics)
    assert not [module for module in original.modules() if module._forward_hooks]


class Small(Own):
    """Takes images of 16x16 alone."""

    def forward(self, images):
        if images.shape[-1] != 16:
            raise RuntimeError("16 pixels")
        return super().forward(images)


def test_an_example_is_run_where_the_default_does_not_fit():
    assert cacseg.convert(Own(in_channels=4)).seam == "decode_head.conv_seg"
    with pytest.raises(ValueError, match=r"does not run on images \(1, 4, 64, 64\).*convert\(model, example=images\)"):
        cacseg.convert(Small(in_channels=4))
    assert cacseg.convert(Small(in_channels=4), example=torch.randn(2, 4, 16, 16)).seam == "decode_head.conv_seg"


ALIGNED, OTHERS = nn.UpsamplingBilinear2d(scale_factor=4), nn.Upsample(scale_factor=4, mode="bilinear")


class Unused(nn.Sequential):
    """Upsamples nothing, whatever its modules are."""

    def forward(self, images):
        return self[1](self[0](images))


def two(*after, kind=nn.Sequential):
    return kind(nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, N, 1), *after)


@pytest.mark.parametrize(
    ("model", "seam", "aligned"),
    [
        (lambda: two(), "1", False),
        (lambda: two(OTHERS), "1", False),
        (lambda: two(ALIGNED), "1", True),
        (lambda: two(nn.Dropout(), nn.Identity(), ALIGNED), "1", True),
        (lambda: two(nn.ReLU(), ALIGNED), "1", False),  # what is done to the scores before is not known
        (lambda: nn.Sequential(two(nn.Identity()), ALIGNED), "0.1", True),
        (lambda: two(ALIGNED, kind=Unused), "1", False),
    ],
)
def test_a_feature_is_where_the_models_own_upsampling_has_it(model, seam, aligned):
    classifier = cacseg.convert(model(), seam=seam).get_submodule(seam)
    options = classifier.criterion.options[classifier.preset]
    assert options.align_corners == options.context_align_corners == aligned
    assert classifier.label_sampling == ("aligned" if aligned else "centred")


@pytest.mark.parametrize(
    ("given", "sampling", "plain", "context"),
    [
        ({"label_sampling": "centred"}, "centred", True, True),
        ({"label_sampling": None, "loss_arguments": {"align_corners": None}}, "aligned", True, True),
        ({"loss_arguments": {"align_corners": False}}, "aligned", False, True),
        ({"preset": "released"}, "nearest", True, False),
        ({"preset": "paper"}, "nearest", False, False),
    ],
)
def test_what_is_given_about_the_place_of_a_feature_stays(given, sampling, plain, context):
    seam = cacseg.convert(two(ALIGNED), seam="1", **given)[1]
    options = seam.criterion.options[seam.preset]
    assert seam.label_sampling == sampling
    assert (options.align_corners, options.context_align_corners) == (plain, context)


def test_a_wrong_name_in_a_sequential_is_said():
    for name in ("7", "nope.conv"):
        with pytest.raises(ValueError, match=f"no module named '{name}'|{name}"):
            cacseg.convert(two(ALIGNED), seam=name)


def test_a_model_of_ones_own_trains():
    model, (images, labels) = cacseg.convert(Own(), seam="decode_head.conv_seg"), draw()
    assert model(images)["logits"][0].shape == (2, N, 64, 64)
    losses = model(images, labels)
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def two_heads():
    class Sum(Own):
        def forward(self, images):
            features = self.body(images)
            return self.decode_head.conv_seg(features) + self.body[3](self.body[:3](images))

    return Sum()


class Named(Own):
    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()


class Custom(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


REFUSED = {
    "lraspp": (
        lambda: segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=N),
        ValueError,
        "LRASPP cannot be converted: its scores are the sum of two classifiers",
    ),
    "labels of images": (
        lambda: smp.Unet("resnet18", encoder_weights=None, classes=N, aux_params={"classes": 2}),
        ValueError,
        "has a classification head.*without aux_params",
    ),
    "data parallel": (lambda: nn.DataParallel(Own()), TypeError, "not a wrapper around it; got DataParallel. Convert"),
    "compiled": (lambda: torch.compile(Own()), TypeError, "got OptimizedModule. Convert first and wrap"),
    "traced": (lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, N, 1))), TypeError, "got GraphModule"),
    "two heads": (two_heads, ValueError, r"comes from 2 modules: 'body.3' \(Conv2d\), 'decode_head.conv_seg'"),
    "3x3": (
        lambda: Own(nn.Conv2d(N, N, 3, padding=1)),
        ValueError,
        r"has kernel_size=\(3, 3\).*convert\(model, seam='decode_head.conv_seg'\)",
    ),
    "after it": (
        lambda: Own(nn.Sequential(nn.Conv2d(N, N, 1), nn.BatchNorm2d(N))),
        ValueError,
        r"must be a 1x1 convolution; it is 'decode_head.conv_seg.1' \(BatchNorm2d\)",
    ),
    "no map": (
        lambda: nn.Sequential(nn.Conv2d(3, N, 1), nn.Flatten()),
        ValueError,
        r"Sequential returned Tensor with tensors of shape \(1, 20480\)",
    ),
    "its own loss": (Named, ValueError, "Named has loss of its own. Rename"),
    "no module": (lambda: 3, TypeError, "needs an nn.Module; got int"),
    "own forward": (
        lambda: Own(Custom(N, N, 1)),
        TypeError,
        "'decode_head.conv_seg' is a Custom with a computation of its own",
    ),
    "converted": (lambda: cacseg.convert(Own()), ValueError, "converted already, at 'decode_head.conv_seg'"),
    "context-aware": (
        lambda: Own(cacseg.ContextAwareClassifier(N, N)),
        ValueError,
        "it has a context-aware one already, at 'decode_head.conv_seg'",
    ),
    "compiled in place": (lambda: compiled_in_place(), TypeError, "compiled in place or its forward was replaced"),
}


def compiled_in_place():
    model = Own()
    model.compile()
    return model


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        cacseg.convert(make())


REASONS = {
    **dict.fromkeys(MASK_MODELS, "it classifies masks, not pixels"),
    **dict.fromkeys(PROMPTED, "it draws the masks that points and boxes ask for"),
    "CLIPSegForImageSegmentation": "it draws one mask for each text",
    "SegGptForImageSegmentation": "it paints masks as an image",
}


@pytest.mark.parametrize("name", REASONS)
def test_what_has_no_classifier_of_pixels_is_refused(name):
    kind = getattr(transformers, name)
    model = kind.__new__(kind)  # the class is enough; some cannot be built without further packages
    nn.Module.__init__(model)
    for seam in (None, "class_predictor"):
        with pytest.raises(ValueError, match=f"{name} cannot be converted: {REASONS[name]}"):
            cacseg.convert(model, seam=seam)


@pytest.mark.parametrize(
    ("head", "error", "words"),
    [
        (nn.Conv2d(N, N, 3, padding=1, padding_mode="reflect"), ValueError, "pads with zeros.*padding_mode='reflect'"),
        (nn.Conv2d(N, N, 1, groups=N), ValueError, "must not have groups; 'decode_head.conv_seg' has groups=5"),
        (nn.Conv2d(N, N, 2, padding="same"), ValueError, "pad both sides alike"),
        (nn.Conv1d(N, N, 3), ValueError, "must be an nn.Conv2d that pads"),
        (nn.ConvTranspose2d(N, N, 1), TypeError, "'decode_head.conv_seg' is a ConvTranspose2d"),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(N, N, 1)), TypeError, "Remove parametrisations"),
        (nn.Sequential(nn.Conv2d(N, N, 1)), TypeError, "Name the layer inside it"),
    ],
)
def test_seams_that_cannot_be_replaced(head, error, words):
    with pytest.raises(error, match=words):
        cacseg.convert(Own(head), seam="decode_head.conv_seg")


def test_a_wrong_name_gets_the_near_ones():
    with pytest.raises(ValueError, match=r"got 'decode_head.conv_sec'. Some it has: 'decode_head.conv_seg'"):
        cacseg.convert(Own(), seam="decode_head.conv_sec")


def test_a_wrapper_around_the_seam():
    model = Own()
    model.body = nn.DataParallel(model.body)
    assert cacseg.convert(model).seam == "decode_head.conv_seg"  # beside it is no matter
    model = nn.Sequential(nn.DataParallel(nn.Sequential(nn.Conv2d(3, N, 1))))
    with pytest.raises(TypeError, match=r"'0.module.0' must not be inside a wrapper; '0' is a DataParallel"):
        cacseg.convert(model, seam="0.module.0")


def test_a_refused_model_is_as_it_was():
    model = build("smp Unet")
    kind, names = type(model), [name for name, _ in model.named_modules()]
    with pytest.raises(ValueError, match="scale must be positive"):
        cacseg.convert(model, scale=-1.0)
    with pytest.raises(TypeError, match=r"convert has no argument 'tau'\. There are auxiliaries"):
        cacseg.convert(model, tau=1.0)
    with pytest.raises(ValueError, match="weight of the distillation term"):
        cacseg.convert(model, loss_arguments={"kl_weight": -1.0})
    assert type(model) is kind
    assert [name for name, _ in model.named_modules()] == names


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"presett": "paper"}, TypeError, r"convert has no argument 'presett'\. Did you mean 'preset'\?"),
        ({"auxiliary": ["x"]}, TypeError, r"convert has no argument 'auxiliary'\. Did you mean 'auxiliaries'\?"),
        (
            {"loss_arguments": {"kl_wieght": 1}},
            TypeError,
            r"ContextLoss has no .* 'kl_wieght'\. Did you .* 'kl_weight'",
        ),
        ({"confidence_threshold": 0.5}, TypeError, r"convert has no argument 'confidence_threshold'\."),
        (
            {"preset": "paper", "loss_arguments": {"preset": "released"}},
            ValueError,
            r"one preset; got 'paper' for the classifier and 'released' in loss_arguments.*convert\(model, preset='rel",
        ),
        ({"preset": "centred"}, ValueError, "preset must be one of 'tuned', 'released', 'paper'; got 'centred'"),
    ],
)
def test_arguments_that_there_are_not(arguments, error, words):
    model = Own()
    with pytest.raises(error, match=words):
        cacseg.convert(model, **arguments)
    assert type(model) is Own


def test_the_preset_may_be_said_twice():
    model = cacseg.convert(Own(), preset="paper", loss_arguments={"preset": "paper"})
    assert "overlap" not in model.loss(*draw())


def shuffled(*after):
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 16 * N, 3, padding=1), nn.PixelShuffle(4), *after)


def test_a_pixel_shuffle_after_the_convolution():
    """80 channels would be taken for 80 classes."""
    with pytest.raises(ValueError, match=r"'1' has 80 and the output 5.*Put a 1x1 convolution after that"):
        cacseg.convert(shuffled())
    words = r"'1' makes 80 channels, and PixelShuffle\(upscale_factor=4\) after it makes 5.*Put a 1x1 convolution"
    with pytest.raises(ValueError, match=words):
        cacseg.convert(shuffled(), seam="1")
    with pytest.raises(ValueError, match=words.replace("'1'", "'0.1'")):
        cacseg.convert(nn.Sequential(shuffled()[:2], nn.PixelShuffle(4)), seam="0.1")
    model, (images, labels) = cacseg.convert(shuffled(nn.Conv2d(N, N, 1))), draw()
    assert model.seam == "3"
    assert model.loss(images, labels)["total"].isfinite()


def test_a_pixel_shuffle_that_only_the_forward_knows():
    class Shuffles(nn.Module):
        def __init__(self):
            super().__init__()
            self.shuffle, self.head = nn.PixelShuffle(4), nn.Sequential(*shuffled()[:2])

        def forward(self, images):
            return self.shuffle(self.head(images))

    model, (images, labels) = cacseg.convert(Shuffles(), seam="head.1"), draw()
    for _ in range(2):
        words = r"'head\.1' makes 80 channels, and Shuffles returns \(2, 5,.*1x1 convolution"
        with pytest.raises(ValueError, match=words):
            model.loss(images, labels)


def test_a_convolution_after_the_seam():
    after = nn.Sequential(nn.Conv2d(3, N, 1), nn.ConvTranspose2d(N, 9, 2, 2))
    with pytest.raises(ValueError, match=r"'0' makes 5 channels, and ConvTranspose2d\(.*after it makes 9"):
        cacseg.convert(after, seam="0")
    kept = nn.Sequential(nn.Conv2d(3, N, 1), nn.ConvTranspose2d(N, N, 2, 2, groups=N))  # learned upsampling
    assert cacseg.convert(kept, seam="0").seam == "0"


def test_only_a_converted_model_is_restored():
    with pytest.raises(TypeError, match=r"a model that cacseg.convert returned; got Own"):
        cacseg.restore(Own())


def test_a_subclass_of_a_known_architecture_is_known():
    class Mine(smp.Unet):
        pass

    model = cacseg.convert(Mine("resnet18", encoder_weights=None, classes=N))
    assert model.seam == "segmentation_head.0"
    assert isinstance(model, Mine)


class InPlace(nn.Module):
    """Layers that change their input in place, as most networks have; the classifier has two names."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.original = nn.Conv2d(8, 8, 1)  # a name that a conversion must not take
        self.head = nn.Conv2d(8, 5, 1)
        self.alias = self.head

    def forward(self, images):
        return self.alias(torch.relu_(self.original(self.stem(images)))).mul_(2.0)


def test_a_seam_is_found_among_operations_in_place_and_replaced_under_all_its_names():
    torch.manual_seed(0)
    model, images = InPlace().eval(), torch.randn(2, 3, 16, 16)
    truth = model(images)
    converted = cacseg.convert(model)
    assert converted.seam == "head"
    assert converted.alias is converted.head
    torch.testing.assert_close(converted.plain(images), truth, rtol=0, atol=0)
    assert not torch.allclose(converted(images), truth)
    assert converted.loss(images, torch.randint(0, 5, (2, 16, 16)))["total"].isfinite()
    restored = cacseg.restore(converted)
    assert restored.alias is restored.head
    assert torch.equal(restored(images), truth)


def test_every_way_to_the_model_passes_its_hooks():
    model, images, labels = cacseg.convert(InPlace()), torch.randn(2, 3, 16, 16), torch.randint(0, 5, (2, 16, 16))
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    model(images)
    model.loss(images, labels)
    model.loss(images=images, labels=labels)
    model.plain(images)
    model(images, labels)
    assert len(calls) == 5


def test_a_layer_with_hooks_is_refused_and_the_model_stays_as_it_was():
    model = InPlace()
    model.head.register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match=r"must be a bare layer; 'head' has hooks or a forward of its own"):
        cacseg.convert(model, seam="head")

    class Strict(InPlace):
        def __init_subclass__(cls, *, name):
            pass

    model = Strict()
    with pytest.raises(TypeError, match="name"):
        cacseg.convert(model, seam="head")
    assert type(model) is Strict
    assert type(model.head) is nn.Conv2d


def test_another_instance_of_the_class_is_the_original():
    converted = cacseg.convert(InPlace())
    other, images = type(converted)().eval(), torch.randn(1, 3, 16, 16)
    assert other(images).shape == (1, 5, 16, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_classes=7), "the convolution at 'head' fixes num_classes"),
        (dict(loss_arguments={"ignore_index": 0}), "must ignore the same label; got 255 and 0"),
        (dict(loss_arguments={"class_weights": [1.0]}), "one number for each of the 5 classes"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        cacseg.convert(InPlace(), seam="head", **arguments)


def test_the_auxiliary_convolution_can_be_the_seam():
    name = "torchvision deeplabv3_mobilenet_v3_large"
    model = cacseg.convert(build(name), seam="aux_classifier.4")
    assert model.conversion.auxiliaries == {}


def test_projectors_that_outgrow_the_model_are_reported(caplog):
    with caplog.at_level(logging.WARNING, logger="cacseg"):
        cacseg.convert(nn.Sequential(nn.Conv2d(3, 256, 1), nn.Conv2d(256, 5, 3, padding=1)), seam="1")
    assert all(fact in caplog.text for fact in ("2304 channels", "16 M parameters"))


def test_hooks_are_not_lost_with_the_layer_they_are_on():
    original = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Dropout2d(), nn.Conv2d(8, N, 1))
    hook = original[1].register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="'1' has hooks or a forward of its own"):
        cacseg.convert(original, seam="2")
    hook.remove()
    model = cacseg.convert(original, seam="2")
    hook = model[2].register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="'2' has hooks or a forward of its own"):
        cacseg.restore(model)
    assert model.seam == "2"
    hook.remove()
    assert type(cacseg.restore(model)[2]) is nn.Conv2d


def test_a_layer_with_two_names_answers_to_both():
    model, images = cacseg.convert(InPlace(), seam="alias"), torch.randn(2, 3, 16, 16)
    assert model.alias is model.head
    assert model.loss(images, torch.randint(0, 5, (2, 16, 16)))["total"].isfinite()
    assert type(cacseg.restore(model).head) is nn.Conv2d
