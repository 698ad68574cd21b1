import json

import numpy as np
import pytest
import torch

from cacseg.models import MODELS, create_model
from cacseg.variants import VARIANTS


def count(module):
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())


def create_on_meta(*arguments, **named):
    with torch.device("meta"):
        return create_model(*arguments, **named)


# Millions of parameters in the paper's main table, plain and context-aware, with 150 classes; then those of the
# reference's backbone, decode head (classifier, and OCRNet's first stage, included) and auxiliary head.
TABLE = {
    "fcn_mobilenetv2": ("9.82", "10.61", 1_811_712, 7_747_734, 260_246),
    "deeplabv3plus_mobilenetv2": ("15.35", "16.13", 1_811_712, 13_273_286, 260_246),
    "ocrnet_hrnet_w18": ("12.18", "12.97", 9_562_260, 2_620_480, 0),
    "upernet_resnet50": ("66.52", "67.30", 23_527_264, 40_590_486, 2_398_358),
    "deeplabv3plus_resnet50": ("43.69", "44.48", 23_527_264, 17_765_126, 2_398_358),
    "ocrnet_hrnet_w48": ("70.53", "71.32", 65_325_120, 5_207_980, 0),
    "upernet_resnet101": ("85.51", "86.30", 42_519_392, 40_590_486, 2_398_358),
    "deeplabv3plus_resnet101": ("62.68", "63.47", 42_519_392, 17_765_126, 2_398_358),
    "upernet_swin_tiny": ("59.94", "60.73", 27_520_698, 31_497_366, 923_798),
    "upernet_swin_base": ("121.42", "122.20", 86_880_376, 33_315_990, 1_218_710),
    "upernet_swin_large": ("233.96", "234.75", 195_201_204, 36_953_238, 1_808_534),
}
PROJECTORS = 2 * (1024 * 256 + 256 * 512 + 512)


def test_the_names_are_those_of_the_papers_main_table():
    assert list(MODELS) == list(TABLE)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("classifier", ["plain", "context"])
def test_parameters_are_those_of_the_papers_table(name, classifier):
    plain, context, backbone, head, auxiliary = TABLE[name]
    model = create_on_meta(name, 150, classifier)
    assert f"{count(model) / 1e6:.2f}" == (context if classifier == "context" else plain)
    assert count(model.backbone) == backbone
    extra = PROJECTORS if classifier == "context" else 0
    first_stage = count(model.auxiliary) if name.startswith("ocrnet") else 0
    assert count(model.head) + count(model.classifier) + first_stage == head + extra
    assert count(model.auxiliary) - first_stage == auxiliary


@pytest.mark.parametrize("name", MODELS)
def test_the_arguments_build_the_same_model_again(name):
    model = create_on_meta(name, num_classes=19, preset="paper", classifier_arguments={"scale": 10.0})
    again = create_on_meta(**json.loads(json.dumps(model.arguments)))
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert shapes == {key: value.shape for key, value in again.state_dict().items()}
    assert (again.arguments, again.mean, again.std) == (model.arguments, model.mean, model.std)
    assert again.classifier.scale == 10.0
    options = again.criterion.options[again.classifier.preset]
    assert again.classifier.oracle_scope == options.distillation_scope == "image"


def test_arguments_are_kept_filled_in():
    arguments = create_on_meta("upernet_swin_tiny", class_weights=torch.ones(150).tolist()).arguments
    assert (arguments["drop_path"], arguments["dropout"], arguments["output_stride"]) == (0.3, 0.1, 32)
    assert arguments["mean"] == [0.485, 0.456, 0.406]
    assert not {"pretrained", "backbone_weights"} & set(arguments)


def test_any_head_stands_on_any_backbone():
    model = create_on_meta("upernet", 7, backbone="convnext_atto", in_channels=4).eval()
    assert model(torch.zeros(1, 4, 64, 64, device="meta")).shape == (1, 7, 64, 64)
    assert model.mean == (pytest.approx(0.449),) * 4
    dilated = create_on_meta("fcn", 7, "plain", backbone="resnet18", output_stride=8, auxiliary=False)
    assert dilated.features(torch.zeros(1, 3, 64, 64, device="meta")).shape == (1, 512, 8, 8)
    assert dilated.auxiliary is None


@pytest.mark.parametrize(("given", "multiple"), [({}, 8), ({"pad_to_stride": True}, 8), ({"pad_to_stride": False}, 1)])
def test_images_are_padded_to_the_stride_unless_told_otherwise(given, multiple):
    model = create_on_meta("fcn_mobilenetv2", padding="same", **given)
    assert model.backbone.multiple == multiple
    assert model.arguments["pad_to_stride"] == (multiple == 8)
    with pytest.raises(TypeError, match="pad_to_stride must be True or False; got 'no'"):
        create_on_meta("fcn_mobilenetv2", pad_to_stride="no")


def test_deeplab_reaches_as_far_as_it_is_told():
    assert create_on_meta("deeplabv3plus_mobilenetv2").arguments["dilations"] == [12, 24, 36]
    assert "dilations" not in create_on_meta("fcn_mobilenetv2").arguments
    model = create_on_meta("deeplabv3plus", 7, backbone="resnet18", output_stride=16, dilations=torch.tensor([3, 6]))
    taps = [one.dilation for one in model.head.modules() if isinstance(one, torch.nn.Conv2d) and max(one.dilation) > 1]
    assert taps == [(3, 3), (6, 6)]
    assert create_on_meta(**model.arguments).arguments == model.arguments


def test_which_blocks_of_mobilenetv2_dilate_is_told_and_kept():
    model = create_on_meta("fcn_mobilenetv2", dilated_blocks="all")
    last = model.backbone.net.blocks[5][2].conv_dw
    assert (last.kernel_size, last.dilation, last.padding) == ((3, 3), (4, 4), (4, 4))
    assert create_on_meta(**model.arguments).arguments == model.arguments
    assert "dilated_blocks" not in create_on_meta("upernet_resnet50").arguments
    with pytest.raises(ValueError, match="dilated_blocks must be one of 'first', 'all', 'auto'; got 'some'"):
        create_on_meta("fcn_mobilenetv2", dilated_blocks="some")
    with pytest.raises(ValueError, match="dilated_blocks is a choice of MobileNetV2 alone; got 'first' with resnet50c"):
        create_on_meta("upernet_resnet50", dilated_blocks="first")


@pytest.mark.parametrize(("stride", "blocks"), [(8, "all"), (16, "first"), (32, "first")])
def test_auto_is_the_better_start_of_a_stride_and_kept_as_what_it_is(stride, blocks):
    names = {"backbone": "mobilenetv2_035", "output_stride": stride}
    arguments = create_on_meta("fcn", 7, dilated_blocks="auto", **names).arguments
    assert arguments == create_on_meta("fcn", 7, dilated_blocks=blocks, **names).arguments
    assert "dilated_blocks" not in create_on_meta("upernet_resnet50", dilated_blocks="auto").arguments


@pytest.mark.parametrize("name", VARIANTS)
def test_every_row_of_the_papers_tables_is_a_model(name):
    torch.manual_seed(0)
    row = VARIANTS[name]
    arguments = {"classifier_arguments": row.classifier, "loss_arguments": row.loss}
    model = create_model("fcn", 5, backbone="test_resnet", head_channels=32, preset="paper", **arguments)
    losses = model.loss(torch.randn(2, 3, 64, 64), torch.randint(0, 5, (2, 64, 64)))
    losses["total"].backward()
    assert losses["total"].isfinite()
    assert not [key for key, one in model.named_parameters() if one.requires_grad and one.grad is None]
    assert create_on_meta(**json.loads(json.dumps(model.arguments))).arguments == model.arguments


def test_weights_of_tensorflow_have_their_padding_and_normalisation():
    model = create_on_meta("fcn_mobilenetv2", padding="same", mean=[0.5] * 3, std=[0.5] * 3)
    assert model.mean == model.std == (0.5, 0.5, 0.5)
    assert model(torch.zeros(1, 3, 33, 47, device="meta")).shape == (1, 150, 33, 47)
    assert type(model.backbone.net.conv_stem).__name__ == "Conv2dSame"


@pytest.mark.parametrize(
    ("name", "dropout"), [("fcn_mobilenetv2", 0.1), ("upernet_resnet50", 0.1), ("ocrnet_hrnet_w18", 0.0)]
)
def test_dropout_is_the_heads_own(name, dropout):
    for classifier in ("context", "plain"):
        model = create_on_meta(name, classifier=classifier)
        assert model.classifier.dropout == model.auxiliary.classifier.dropout == dropout


def test_classifiers_start_small():
    torch.manual_seed(0)
    model = create_model("fcn_mobilenetv2", num_classes=50)
    for classifier in (model.classifier, model.auxiliary.classifier):
        assert float(classifier.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
        assert not classifier.bias.any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "upernet_swin_tny"}, "got 'upernet_swin_tny'. Did you mean 'upernet_swin_tiny'"),
        ({"name": "zzz"}, "name must be a model or a head; got 'zzz'. There are fcn_mobilenetv2"),
        ({"name": "upernet"}, "the head 'upernet' needs a backbone; got none"),
        ({"name": "upernet_resnet50", "backbone": "resnet18"}, "Leave the backbone out"),
        ({"name": "upernet", "backbone": "resnt18"}, "Did you mean 'resnet18"),
        ({"name": "ocrnet_hrnet_w18", "auxiliary": False}, "first stage is its auxiliary head"),
        ({"name": "fcn", "backbone": "hrnet_w18"}, "HRNet needs a head that reads its four maps"),
        ({"name": "fcn_mobilenetv2", "classifier": "fixed"}, "classifier must be one of 'context', 'plain'"),
        ({"name": "fcn_mobilenetv2", "classifier": "plain", "loss_arguments": {"kl_weight": 0.1}}, "belong to"),
        ({"name": "fcn_mobilenetv2", "padding": "valid"}, "padding must be one of '', 'same'; got 'valid'"),
        ({"name": "fcn_mobilenetv2", "dilations": [6]}, r"dilations belong to DeepLabV3\+; got \[6\] with fcn"),
        ({"name": "fcn_mobilenetv2", "dilations": 6}, r"dilations belong to DeepLabV3\+; got 6 with fcn"),
        *(
            (
                {"name": "deeplabv3plus_mobilenetv2", "dilations": wrong},
                "of at least 1, one for each branch; got .* Pass",
            )
            for wrong in ([6, 0], [], 6, (True, 6), "6,12", [6.0])
        ),
        ({"name": "fcn_mobilenetv2", "mean": [0.5]}, "mean must have one number for each of the 3 channels"),
        ({"name": "fcn_mobilenetv2", "class_weights": [1.0]}, "each of the 150 classes; got 1"),
        ({"name": "fcn_mobilenetv2", "num_classes": 1}, "num_classes must be at least 2"),
        ({"name": "fcn_mobilenetv2", "auxiliary_average": "some"}, "auxiliary_average must be .* 'all'; got 'some'"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        create_on_meta(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"classifier_arguments": {"plain_similarty": "dot"}}, "'plain_similarty'. Did you mean 'plain_similarity'?"),
        ({"loss_arguments": {"zzz": 1}}, "loss_arguments has no argument 'zzz'. There are align_corners, context_"),
        ({"overlap_weight": 1.0, "loss_arguments": {"overlap_weight": 2.0}}, "has no argument 'overlap_weight'"),
    ],
)
def test_mistyped_arguments_of_classifier_and_loss_are_named(arguments, words):
    with pytest.raises(TypeError, match=words):
        create_on_meta("fcn_mobilenetv2", **arguments)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *(
            (name, value, f"{name} must be an integer; got {value!r}")
            for name in ("num_classes", "in_channels", "ignore_index", "output_stride")
            for value in ("4", 4.5, True)
        ),
        ("dropout", "x", r"dropout must be a number in \[0, 1\); got 'x'"),
        ("drop_path", "x", r"drop_path must be a number in \[0, 1\); got 'x'"),
        ("label_smoothing", "a", r"label_smoothing must be a number in \[0, 1\]; got 'a'"),
        ("auxiliary_weight", "0.4", "auxiliary_weight must be a number; got '0.4'"),
        *((name, "no", f"{name} must be True or False; got 'no'") for name in ("auxiliary", "pretrained")),
        *(
            (name, value, f"{name} must be a list of numbers; got ")
            for name in ("mean", "std", "class_weights")
            for value in ("abc", 0.5, ["a", "b", "c"])
        ),
    ],
)
def test_arguments_of_a_wrong_type_are_named(name, value, words):
    with pytest.raises(TypeError, match=words):
        create_on_meta(**{"name": "fcn", "backbone": "resnet18", name: value})


def test_numbers_of_numpy_and_torch_are_kept_as_pythons():
    sizes = {"num_classes": np.int64(7), "in_channels": torch.tensor(3), "class_weights": torch.ones(7)}
    shares = {"label_smoothing": np.float32(0.5), "dropout": torch.tensor(0.25), "auxiliary_weight": 1}
    arguments = create_on_meta("fcn", backbone="resnet18", **sizes, **shares).arguments
    assert json.loads(json.dumps(arguments)) == arguments
    assert [arguments[name] for name in ("num_classes", "label_smoothing", "dropout")] == [7, 0.5, 0.25]


def test_a_head_of_other_width():
    narrow = create_on_meta("upernet", 7, backbone="resnet18", head_channels=64)
    assert narrow.classifier.weight.shape == (7, 64, 1, 1)
    assert create_on_meta(**narrow.arguments).arguments == narrow.arguments
    assert create_on_meta("upernet_resnet50").classifier.weight.shape[1] == 512
    with pytest.raises(ValueError, match="head_channels must be at least 1; got 0"):
        create_on_meta("upernet_resnet50", head_channels=0)
    with pytest.raises(TypeError, match="head_channels"):
        create_on_meta("upernet_resnet50", head_channels=64.5)
