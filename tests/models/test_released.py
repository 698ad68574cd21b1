import gzip
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cacseg.models import MODELS, create_model
from cacseg.models.released import convert_state_dict, describe_rounding, import_checkpoint
from cacseg.models.released_names import looks_like, reorder_merged_patches

# For each model the names and shapes in a checkpoint of the authors' code, with 150 classes.
KEYS = json.loads(gzip.decompress(Path(__file__).with_name("released_checkpoint_keys.json.gz").read_bytes()))


def draw_checkpoint(name):
    return {key: torch.empty(shape, device="meta") for key, shape in KEYS[name].items()}


@pytest.mark.parametrize("name", MODELS)
def test_every_name_on_both_sides_has_its_place(name):
    checkpoint = draw_checkpoint(name)
    report = convert_state_dict(checkpoint, name)
    with torch.device("meta"):
        model = create_model(**report.arguments)
    assert report.state.keys() == model.state_dict().keys()
    assert report.misfits == 0
    assert (report.arguments["num_classes"], report.arguments["classifier"]) == (150, "context")
    assert report.used.keys() | report.unused.keys() == checkpoint.keys()
    assert len(set(report.used.values())) == len(report.used)
    assert all(key.endswith("relative_position_index") for key in report.unused)


def test_classifier_and_projectors_find_their_places():
    used = convert_state_dict(draw_checkpoint("ocrnet_hrnet_w18"), "ocrnet_hrnet_w18").used
    assert used["decode_head.1.conv_seg.weight"] == "classifier.weight"
    assert used["decode_head.1.proj.0.weight"] == "classifier.context_projector.0.weight"
    assert used["decode_head.1.apd_proj.2.bias"] == "classifier.oracle_projector.2.bias"
    assert used["decode_head.0.conv_seg.bias"] == "auxiliary.classifier.bias"
    assert used["decode_head.0.convs.0.bn.running_var"] == "auxiliary.head.convs.0.norm.running_var"


def test_a_plain_checkpoint_with_other_classes():
    checkpoint = {key: value for key, value in draw_checkpoint("fcn_mobilenetv2").items() if "proj." not in key}
    for prefix, channels in (("decode_head", 512), ("auxiliary_head", 256)):
        checkpoint[f"{prefix}.conv_seg.weight"] = torch.empty(19, channels, 1, 1, device="meta")
        checkpoint[f"{prefix}.conv_seg.bias"] = torch.empty(19, device="meta")
    report = convert_state_dict(checkpoint, "fcn_mobilenetv2")
    assert (report.misfits, report.unused, report.notes) == (0, {}, [])
    expected = {"name": "fcn_mobilenetv2", "num_classes": 19, "classifier": "plain", "preset": "released"}
    assert report.arguments == {**expected, "dilated_blocks": "first"}


def test_wrappers_are_taken_off():
    checkpoint = draw_checkpoint("fcn_mobilenetv2")
    wrapped = {f"module.{key}": value for key, value in checkpoint.items()}
    assert convert_state_dict(wrapped, "fcn_mobilenetv2").used == convert_state_dict(checkpoint, "fcn_mobilenetv2").used


def test_what_does_not_fit_is_reported():
    checkpoint = draw_checkpoint("fcn_mobilenetv2")
    checkpoint["decode_head.extra.weight"] = torch.empty(3)
    checkpoint["decode_head.fuse.conv.weight"] = torch.empty(512, 832, 3, 3)  # our own names are not the reference's
    checkpoint["backbone.blocks.0.0.conv_dw.weight"] = torch.empty(32, 1, 3, 3)
    checkpoint["backbone.conv1.conv.weight"] = torch.empty(32, 4, 3, 3)
    del checkpoint["decode_head.conv_cat.conv.weight"]
    checkpoint = {key: value for key, value in checkpoint.items() if not key.endswith("num_batches_tracked")}
    checkpoint["decode_head.extra.bn.num_batches_tracked"] = torch.empty(())
    report = convert_state_dict(checkpoint, "fcn_mobilenetv2")
    assert report.unused == {"decode_head.extra.bn.num_batches_tracked": "a counter that nothing reads"}
    assert report.unplaced == {
        "decode_head.extra.weight": "no such tensor",
        "decode_head.fuse.conv.weight": "no such tensor",
        "backbone.blocks.0.0.conv_dw.weight": "no such tensor",
        "backbone.conv1.conv.weight": "of shape (32, 4, 3, 3) where backbone.net.conv_stem.weight has (32, 3, 3, 3)",
    }
    assert sorted(report.missing) == ["backbone.net.conv_stem.weight", "head.fuse.conv.weight"]
    assert report.state["backbone.net.bn1.num_batches_tracked"] == 0


def test_a_checkpoint_of_another_model_is_refused():
    with pytest.raises(
        ValueError,
        match=r"must hold decode_head.1.conv_seg.weight.*got 340 other names.*It is a checkpoint of fcn_mobilenetv2",
    ):
        convert_state_dict(draw_checkpoint("fcn_mobilenetv2"), "ocrnet_hrnet_w18")
    with pytest.raises(ValueError, match="Did you mean 'fcn_mobilenetv2'"):
        convert_state_dict({}, "fcn_mobilnetv2")


def save_zeros(path, names_of, **others):
    """A checkpoint of zeros, quickly saved and read in any shape."""
    checkpoint = {key: torch.zeros(()).expand(shape) for key, shape in KEYS[names_of].items()}
    torch.save({**checkpoint, **others}, path)
    return path


def test_a_deeper_backbone_is_another_model(tmp_path):
    """All that the shallow one needs is there, and 255 tensors more, counters aside."""
    file = save_zeros(tmp_path / "a.pth", "upernet_resnet101")
    with pytest.raises(ValueError, match="does not fit upernet_resnet50: 255 of its tensors have no place") as caught:
        import_checkpoint(file, "upernet_resnet50")
    for words in (
        "(backbone.layer3.6.conv1.weight (no such tensor), ",
        " and 250 more), and 0 of the model are not in it (none). ",
        "It is a checkpoint of upernet_resnet101.",
    ):
        assert words in str(caught.value)
    wrapped = {f"module.{key}": torch.zeros(()).expand(shape) for key, shape in KEYS["upernet_resnet50"].items()}
    torch.save({**wrapped, "module.ema_weight": torch.zeros(3)}, tmp_path / "b.pth")
    with pytest.raises(
        ValueError, match=r"255 of the model are not in it .*Nearest: upernet_resnet50, with 1 tensors that do not fit"
    ):
        import_checkpoint(tmp_path / "b.pth", "upernet_resnet101")


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_looks_like_models_of_its_kind_alone(name):
    alike = [other for other, (head, backbone, *_) in MODELS.items() if looks_like(KEYS[name], head, backbone)]
    kind = name.rstrip("0123456789").removesuffix("_tiny").removesuffix("_base").removesuffix("_large")
    assert alike == [other for other in MODELS if other.startswith(kind)]


def test_names_that_no_model_reads_are_passed_over(tmp_path):
    more = {"auxiliary_head.extra.num_batches_tracked": torch.zeros(()), "epoch": 3}
    _, report = import_checkpoint(save_zeros(tmp_path / "a.pth", "fcn_mobilenetv2", **more), "fcn_mobilenetv2")
    assert report.unused == {
        "auxiliary_head.extra.num_batches_tracked": "a counter that nothing reads",
        "epoch": "not a tensor",
    }


@pytest.mark.parametrize(
    ("stored", "rounded", "words"),
    [
        (torch.float32, torch.float32, None),
        (torch.float32, torch.float16, "all values are exact in float16"),
        (torch.float32, torch.bfloat16, "all values are exact in bfloat16"),
        (torch.float16, torch.float16, "2 of 2 tensors are stored in float16"),
        (torch.bfloat16, torch.bfloat16, "2 of 2 tensors are stored in bfloat16"),
    ],
)
def test_values_of_16_bits_are_noted(stored, rounded, words):
    torch.manual_seed(0)
    tensors = [torch.randn(50).to(rounded).to(stored), torch.randn(3, 4).to(rounded).to(stored), torch.tensor(7)]
    found = describe_rounding(tensors)
    assert found is None if words is None else found.startswith(words)
    if stored is torch.float32 and words is not None:
        assert describe_rounding([*tensors, torch.tensor([0.1])]) is None


def test_what_only_training_reads_may_be_left_out(tmp_path):
    """An export for inference: no auxiliary head, no oracle projector."""
    checkpoint = {
        key: value
        for key, value in draw_checkpoint("fcn_mobilenetv2").items()
        if not key.startswith(("auxiliary_head.", "decode_head.apd_proj."))
    }
    torch.manual_seed(0)
    checkpoint = {key: torch.rand(value.shape) for key, value in checkpoint.items()}
    torch.save(checkpoint, tmp_path / "slim.pth")
    model, report = import_checkpoint(tmp_path / "slim.pth", "fcn_mobilenetv2")
    assert report.misfits == 0
    assert len(report.notes) == 2
    assert model.auxiliary is None
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 150, 32, 32)
    losses = model.loss(torch.randn(2, 3, 32, 32), torch.randint(0, 150, (2, 32, 32)))
    assert set(losses) == {"plain", "context", "oracle", "distillation", "total"}


def test_classes_that_do_not_fit_are_left_out_with_a_note(tmp_path):
    checkpoint = {key: torch.rand(value.shape) for key, value in draw_checkpoint("fcn_mobilenetv2").items()}
    torch.save({"state_dict": checkpoint, "meta": {"CLASSES": ("sky", "road")}}, tmp_path / "a.pth")
    model, report = import_checkpoint(tmp_path / "a.pth", "fcn_mobilenetv2")
    assert model.class_names is None
    assert "must be 150 strings" in report.notes[0]


def test_windows_with_another_order_of_biases_are_refused(tmp_path):
    name = "backbone.stages.0.blocks.0.attn.w_msa.relative_position_index"
    assert name in KEYS["upernet_swin_tiny"]
    save_zeros(tmp_path / "a.pth", "upernet_swin_tiny", **{name: torch.zeros(49, 49, dtype=torch.long)})
    with pytest.raises(ValueError, match="not the usual order of a window's biases"):
        import_checkpoint(tmp_path / "a.pth", "upernet_swin_tiny")


@torch.no_grad()
def test_merged_patches_are_put_in_timms_order():
    """The reference merges by nn.Unfold; our layer must give the same from the same, reordered, weights."""
    with torch.device("meta"):
        model = create_model("upernet_swin_tiny", num_classes=2)
    merge = model.backbone.net.layers[1].downsample.to_empty(device="cpu").double()
    assert {name for name, _ in merge.named_parameters()} == {"norm.weight", "norm.bias", "reduction.weight"}
    x = torch.randn(2, 6, 8, 96).double()
    scale, shift, reduction = torch.randn(384).double(), torch.randn(384).double(), torch.randn(192, 384).double()
    neighbours = nn.Unfold(2, stride=2)(x.permute(0, 3, 1, 2)).transpose(1, 2)
    truth = F.layer_norm(neighbours, (384,), scale, shift) @ reduction.T
    merge.norm.weight.copy_(reorder_merged_patches(scale))
    merge.norm.bias.copy_(reorder_merged_patches(shift))
    merge.reduction.weight.copy_(reorder_merged_patches(reduction))
    torch.testing.assert_close(merge(x).flatten(1, 2), truth)
