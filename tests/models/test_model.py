import copy

import pytest
import torch
from torch.nn import functional as F

from cacseg.engine.inference import Inference, networks_of, predict_each
from cacseg.models import create_model
from cacseg.models.layers import crop
from cacseg.models.model import SegmentationModel


def draw(size, n=6, b=2):
    labels = torch.randint(0, n, (b, *size))
    labels[:, :5] = 255
    return torch.randn(b, 3, *size), labels


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return create_model("fcn_mobilenetv2", num_classes=6)


@pytest.mark.parametrize("name", ["fcn_mobilenetv2", "deeplabv3plus_mobilenetv2", "ocrnet_hrnet_w18"])
@pytest.mark.parametrize("classifier", ["context", "plain"])
def test_every_parameter_gets_a_gradient(name, classifier):
    torch.manual_seed(0)
    model = create_model(name, num_classes=6, classifier=classifier)
    images, labels = draw((64, 64))
    losses = model.loss(images, labels)
    others = {"context": 1.0, "oracle": 1.0, "distillation": 1.0, "overlap": 3.0} if classifier == "context" else {}
    weights = {"plain": 1.0, **others, "auxiliary": 0.4}
    assert list(losses) == [*weights, "total"]
    torch.testing.assert_close(losses["total"], sum(weight * losses[term] for term, weight in weights.items()))
    losses["total"].backward()
    assert not [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert not [key for key, parameter in model.named_parameters() if not parameter.grad.isfinite().all()]


@pytest.mark.parametrize("name", ["deeplabv3plus", "upernet"])
@pytest.mark.parametrize(
    "backbone",
    [
        "test_convnext",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("resnet18", "swin_tiny_patch4_window7_224")),
    ],
)
def test_other_backbones_train_too(name, backbone):
    model = create_model(name, num_classes=6, backbone=backbone)
    images, labels = draw((64, 70))
    model.loss(images, labels)["total"].backward()
    assert not [key for key, parameter in model.named_parameters() if parameter.grad is None]


@pytest.mark.parametrize(
    "name",
    [
        "fcn_mobilenetv2",
        "deeplabv3plus_mobilenetv2",
        "ocrnet_hrnet_w18",
        pytest.param("upernet_resnet50", marks=pytest.mark.slow),
        "upernet_swin_tiny",
    ],
)
@torch.no_grad()
def test_images_of_any_size(name):
    """Those smaller than a stride or a window included."""
    model = create_model(name, num_classes=6).eval()
    for size in ((33, 47), (64, 32)):
        images, labels = draw(size, b=1)
        assert model.features(images).shape[1] == 512
        assert model(images).shape == (1, 6, *size)
        assert all(value.isfinite() for value in model.loss(images, labels).values())
    for size in ((1, 1), (3, 40)):
        assert model(torch.randn(1, 3, *size)).shape == (1, 6, *size)


@torch.no_grad()
def test_the_three_kinds_of_logits_share_the_features(small):
    model = small.eval()
    images, labels = draw((40, 56))
    features = model.features(images)

    def upsample(logits):
        return F.interpolate(logits, size=(40, 56), mode="bilinear", align_corners=False)

    torch.testing.assert_close(model(images), upsample(model.classifier(features)))
    plain = F.conv2d(features, model.classifier.weight, model.classifier.bias)
    torch.testing.assert_close(model.plain(images), upsample(plain))
    torch.testing.assert_close(model.oracle(images, labels), upsample(model.classifier.oracle_logits(features, labels)))


SHIFTING = {"backbone": "mobilenetv2_035", "padding": "same"}


@pytest.fixture(scope="module", params=["fcn", "deeplabv3plus", "upernet"])
def shifting(request):
    """Models whose images are padded: to 8 pixels, and to 32."""
    torch.manual_seed(0)
    stride = 32 if request.param == "upernet" else 8
    model = create_model(request.param, num_classes=6, output_stride=stride, **SHIFTING).eval()
    assert model.backbone.multiple == stride
    assert model.stride == (8 if request.param == "fcn" else 4)
    return model


def padded(images, labels, multiple):
    below, right = (-side % multiple for side in images.shape[2:])
    return F.pad(images, (0, right, 0, below)), F.pad(labels, (0, right, 0, below), value=255)


@torch.no_grad()
def test_an_answer_stands_where_its_feature_stands(shifting):
    """An odd image is the upper left part of a padded one, to the last pixel whose neighbours are the same."""
    images, labels = draw((53, 75), b=1)
    whole, _ = padded(images, labels, shifting.backbone.multiple)
    same = slice(None), slice(None), slice(0, 50), slice(0, 72)
    torch.testing.assert_close(shifting.plain(images)[same], shifting.plain(whole)[same])
    found = shifting.all_logits(images, labels)
    context, own = (shifting.upsample_logits(found[name], (53, 75)) for name in ("context", "oracle"))
    torch.testing.assert_close(shifting(images), context)
    torch.testing.assert_close(shifting.oracle(images, labels), own)
    assert shifting(images).shape == context.shape == (1, 6, 53, 75)
    if shifting.stride == shifting.backbone.multiple:  # the padding adds no feature, so prototypes are the same too
        torch.testing.assert_close(shifting(images), shifting(whole)[..., :53, :75])


@pytest.mark.parametrize("classifier", ["context", "plain"])
@torch.no_grad()
def test_losses_of_an_odd_image_are_those_of_the_padded_one(classifier):
    torch.manual_seed(0)
    model = create_model("fcn", 6, classifier, output_stride=8, **SHIFTING).eval()
    images, labels = draw((53, 75))
    whole = padded(images, labels, 8)
    for name, value in model.loss(images, labels).items():
        torch.testing.assert_close(value, model.loss(*whole)[name])
    if classifier == "context":
        small = F.interpolate(labels[:, None].float(), (27, 38))[:, 0].long()  # at another resolution than the image
        large = F.interpolate(small[:, None].float(), (53, 75))[:, 0].long()
        torch.testing.assert_close(model.all_logits(images, small)["oracle"], model.all_logits(images, large)["oracle"])


@pytest.mark.parametrize("name", ["ocrnet", "upernet"])
def test_what_comes_from_padding_is_cut_from_the_auxiliary_too(name):
    model = create_model(name, 6, "plain", **SHIFTING)
    images, labels = draw((40, 37))
    features, auxiliary = model._decode(images, with_auxiliary=True)
    assert features.shape[2:] == (10, 10)
    assert auxiliary.shape[2:] == ((10, 10) if name == "ocrnet" else (3, 3))  # strides of 4 and 16
    model.loss(images, labels)["total"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_regions_of_ocrnet_are_gathered_over_the_image_alone():
    model = create_model("ocrnet", 6, "plain", **SHIFTING).eval()
    seen = []
    model.head.register_forward_pre_hook(lambda module, given: seen.append(given))
    assert model(torch.randn(1, 3, 33, 33)).shape == (1, 6, 33, 33)
    ((pyramid, regions),) = seen
    assert [level.shape[2] for level in pyramid] == [9, 5, 3, 2]
    assert regions.shape[2:] == (9, 9)


@pytest.mark.parametrize(("dtype", "ignored"), [(torch.uint8, -1), (torch.int8, 255), (torch.int32, 255)])
@torch.no_grad()
def test_labels_of_any_integers_are_padded(dtype, ignored):
    torch.manual_seed(0)
    model = create_model("fcn", 6, output_stride=8, ignore_index=ignored, **SHIFTING).eval()
    images, labels = torch.randn(1, 3, 33, 41), torch.randint(0, 6, (1, 33, 41))
    torch.testing.assert_close(model.loss(images, labels.to(dtype)), model.loss(images, labels))
    with pytest.raises(ValueError, match="labels must not be empty"):
        model.loss(images, labels[:, :0])


def test_padded_maps_need_a_stride_and_are_never_filled_up():
    model = create_model("fcn", 6, "plain", output_stride=8, **SHIFTING)
    parts = (model.backbone, model.head, model.classifier)
    with pytest.raises(ValueError, match="leaves its maps padded needs stride"):
        SegmentationModel(*parts, mean=model.mean, std=model.std)
    with pytest.raises(ValueError, match="maps must be at least 4x5; got 4x4"):
        crop(torch.zeros(1, 1, 4, 4), (4, 5))


@torch.no_grad()
def test_windows_and_flips_of_a_padded_model_are_those_of_its_calls(shifting):
    """What evaluation and prediction show to a model, at odd sizes, with the answers at full size one by one."""
    images, labels = draw((53, 75), b=2)
    names = ["plain", "context", "oracle"]
    whole = list(predict_each(networks_of(shifting, names), [images], (53, 75), labels=labels))
    expected = [shifting.plain(images), shifting(images), shifting.oracle(images, labels)]
    for found, truth in zip(whole, expected, strict=True):
        torch.testing.assert_close(found, truth)
    way = Inference(window=(45, 61), stride=(40, 40), flip=True)
    (found,) = predict_each(networks_of(shifting, [shifting.default_output]), [images], (53, 75), way)
    (expected,) = predict_each(lambda shown, _: [shifting(shown)], [images], (53, 75), way)
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_a_plain_model_is_the_convolution():
    model = create_model("fcn_mobilenetv2", num_classes=6, classifier="plain").eval()
    images, labels = draw((40, 56))
    torch.testing.assert_close(model(images), model.plain(images))
    truth = F.cross_entropy(model(images), labels, ignore_index=255)
    torch.testing.assert_close(model.loss(images, labels)["plain"], truth)
    with pytest.raises(ValueError, match=r"no oracle logits\. Create the model with classifier='context'"):
        model.oracle(images, labels)


def test_dropout_touches_the_plain_logits_alone():
    model = create_model("fcn_mobilenetv2", num_classes=6, classifier="plain", dropout=0.5)
    features = torch.randn(1, 512, 3, 4)
    torch.manual_seed(0)
    ours = model.classifier(features)
    torch.manual_seed(0)
    dropped = F.dropout2d(features, 0.5)
    torch.testing.assert_close(ours, F.conv2d(dropped, model.classifier.weight, model.classifier.bias))


@torch.no_grad()
def test_class_weights_and_smoothing_reach_every_cross_entropy(small):
    options = {"class_weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "label_smoothing": 0.1}
    model = create_model("fcn_mobilenetv2", num_classes=6, classifier="plain", **options).eval()
    images, labels = draw((40, 56))
    weight = torch.tensor(options["class_weights"])
    truth = F.cross_entropy(model(images), labels, weight, ignore_index=255, label_smoothing=0.1)
    torch.testing.assert_close(model.loss(images, labels)["plain"], truth)
    criterion = create_model("fcn_mobilenetv2", num_classes=6, **options).criterion
    assert (criterion.class_weights.tolist(), criterion.label_smoothing) == tuple(options.values())


@pytest.mark.parametrize("classifier", ["context", "plain"])
def test_a_batch_without_labels_has_a_zero_loss(classifier):
    model = create_model("fcn_mobilenetv2", num_classes=6, classifier=classifier)
    images, labels = draw((32, 32))
    losses = model.loss(images, labels.fill_(255))
    assert all(value == 0.0 for value in losses.values())
    losses["total"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_without_the_auxiliary_head():
    model = create_model("fcn_mobilenetv2", num_classes=6, auxiliary=False)
    losses = model.loss(*draw((64, 64)))
    assert "auxiliary" not in losses
    losses["total"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_auxiliary_head_is_left_out_of_inference(small):
    hook = small.auxiliary.register_forward_hook(lambda *_: pytest.fail("it ran"))
    small.eval()(draw((32, 32))[0])
    hook.remove()


def test_what_a_model_knows_of_its_data(small):
    assert small.class_names is None
    assert small.palette is None
    assert small.num_classes == 6
    assert (small.mean, small.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("images", "error", "words"),
    [
        ([1, 2], TypeError, "images must be a torch.Tensor; got list"),
        (
            torch.zeros(1, 3, 64, 64, dtype=torch.uint8),
            TypeError,
            "normalised with model.mean and model.std; got torch.uint8",
        ),
        (torch.zeros(3, 64, 64), ValueError, r"must be \[b, 3, H, W\]; got shape \(3, 64, 64\). Add the batch dim"),
        (torch.zeros(1, 4, 64, 64), ValueError, r"must be \[b, 3, H, W\]; got shape \(1, 4, 64, 64\)"),
        (torch.zeros(0, 3, 64, 64), ValueError, "at least 1 image"),
        (torch.zeros(1, 3, 64, 0), ValueError, r"at least 1 pixel; got shape \(1, 3, 64, 0\)"),
    ],
)
def test_wrong_images_are_named(small, images, error, words):
    with pytest.raises(error, match=words):
        small(images)


def test_wrong_labels_are_named(small):
    plain = create_model("fcn_mobilenetv2", num_classes=6, classifier="plain")
    images, labels = draw((32, 32))
    for model in (small, plain):
        with pytest.raises(TypeError, match="labels must be integers"):
            model.loss(images, labels.float())
        with pytest.raises(ValueError, match=r"labels must be in \[0, 6\)"):
            model.loss(images, labels.clamp(max=5) + 1)


@pytest.mark.parametrize("classifier", ["context", "plain"])
@pytest.mark.parametrize("padding", ["", "same"])
def test_transposed_labels_are_refused(classifier, padding):
    model = create_model("fcn_mobilenetv2", 6, classifier, padding=padding)
    images, labels = draw((64, 96))
    for call in (model.loss, model.oracle)[: 1 + (classifier == "context")]:
        with pytest.raises(ValueError, match=r"labels 96x64 and images 64x96.*labels\.mT"):
            call(images, labels.mT)


def test_parts_that_do_not_fit_are_refused(small):
    ocrnet = create_model("ocrnet_hrnet_w18", num_classes=6)
    with pytest.raises(ValueError, match="OCRNet's first stage"):
        SegmentationModel(ocrnet.backbone, ocrnet.head, ocrnet.classifier, mean=[0.5], std=[0.5])
    with pytest.raises(ValueError, match="needs a criterion"):
        SegmentationModel(small.backbone, small.head, small.classifier, mean=[0.5], std=[0.5])


@torch.no_grad()
def test_synchronised_batch_normalisation_keeps_fused_activations(small):
    """torch's own conversion drops the ReLU6 that timm fuses into MobileNetV2's normalisations."""
    images = draw((64, 64))[0]
    model = copy.deepcopy(small).eval()
    truth = model(images)
    converted = model.synchronise_batch_norm()
    assert any("SyncBatchNorm" in type(module).__name__ for module in converted.modules())
    torch.testing.assert_close(converted(images), truth)


def test_every_answer_from_one_pass(small):
    """The same as the methods that give one each, at the size of the features; and no answer that is not there."""
    small.eval()
    images, labels = draw((64, 96))
    with torch.no_grad():
        found = small.all_logits(images, labels)
        whole = {"plain": small.plain(images), "context": small(images), "oracle": small.oracle(images, labels)}
        assert list(found) == ["plain", "context", "mean", "oracle"]
        mean = (found["plain"].softmax(1) + found["context"].softmax(1)) / 2
        torch.testing.assert_close(found.pop("mean").softmax(1), mean)
        for name, logits in found.items():
            assert logits.shape == (2, 6, 8, 12)
            upsampled = F.interpolate(logits, (64, 96), mode="bilinear", align_corners=False)
            torch.testing.assert_close(upsampled, whole[name])
        assert list(small.all_logits(images)) == ["plain", "context", "mean"]
        plain = create_model("fcn_mobilenetv2", 6, "plain").eval()
        assert list(plain.all_logits(images, labels)) == ["plain"]
        bare = create_model("fcn_mobilenetv2", 6, classifier_arguments={"context_design": "none"}).eval()
        assert list(bare.all_logits(images)) == ["plain"]
        small.train()
