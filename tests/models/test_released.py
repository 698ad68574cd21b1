import gzip
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cacseg.models import MODELS, create_model
from cacseg.models.released import convert_state_dict, import_checkpoint, reorder_merged_patches

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
    assert not report.missing
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
    assert (report.missing, report.unused, report.notes) == ([], {}, [])
    assert report.arguments == {"name": "fcn_mobilenetv2", "num_classes": 19, "classifier": "plain"}


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
    report = convert_state_dict(checkpoint, "fcn_mobilenetv2")
    assert report.unused == {
        "decode_head.extra.weight": "fcn_mobilenetv2 has no such tensor",
        "decode_head.fuse.conv.weight": "fcn_mobilenetv2 has no such tensor",
        "backbone.blocks.0.0.conv_dw.weight": "fcn_mobilenetv2 has no such tensor",
        "backbone.conv1.conv.weight": "of shape (32, 4, 3, 3) where backbone.net.conv_stem.weight has (32, 3, 3, 3)",
    }
    assert sorted(report.missing) == ["backbone.net.conv_stem.weight", "head.fuse.conv.weight"]
    assert report.state["backbone.net.bn1.num_batches_tracked"] == 0


def test_a_checkpoint_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"must hold decode_head.1.conv_seg.weight.*got 340 other names"):
        convert_state_dict(draw_checkpoint("fcn_mobilenetv2"), "ocrnet_hrnet_w18")
    with pytest.raises(ValueError, match="Did you mean 'fcn_mobilenetv2'"):
        convert_state_dict({}, "fcn_mobilnetv2")


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
    assert report.missing == []
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
    nothing = torch.zeros(())  # which is quickly saved and read in any shape
    checkpoint = {key: nothing.expand(value.shape) for key, value in draw_checkpoint("upernet_swin_tiny").items()}
    name = "backbone.stages.0.blocks.0.attn.w_msa.relative_position_index"
    assert name in checkpoint
    checkpoint[name] = torch.zeros(49, 49, dtype=torch.long)
    torch.save(checkpoint, tmp_path / "a.pth")
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
