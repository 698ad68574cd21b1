import pytest
import torch
from safetensors.torch import save_file

import shared_files
from cacseg.models import create_model
from cacseg.models.backbones import load_backbone_weights, make_backbone
from cacseg.models.files import TensorFile


def draw(backbone, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(value.shape, generator=generator).to(value.dtype)
        for name, value in backbone.net.state_dict().items()
    }


def test_a_files_weights_reach_the_model_with_what_belongs_to_them(tmp_path):
    path = tmp_path / "backbone.safetensors"
    weights = draw(make_backbone("mobilenetv2_100", output_stride=8))
    save_file(weights, path, metadata={"padding": "same", "mean": "[0.5, 0.5, 0.5]", "std": "[0.4, 0.5, 0.5]"})
    model = create_model("fcn_mobilenetv2", num_classes=3, backbone_weights=path)
    assert all(torch.equal(value, weights[name]) for name, value in model.backbone.net.state_dict().items())
    assert model.mean == (0.5, 0.5, 0.5)
    assert model.std == (0.4, 0.5, 0.5)
    assert model.arguments["padding"] == "same"
    other = create_model("fcn_mobilenetv2", num_classes=3, backbone_weights=path, padding="", mean=[0, 0, 0])
    assert other.mean == (0.0, 0.0, 0.0)
    assert other.arguments["padding"] == ""
    again = create_model(**model.arguments)  # no weights, the same description
    assert (again.mean, again.std, again.arguments) == (model.mean, model.std, model.arguments)


def test_timms_flattened_names_are_one_with_its_plain_ones():
    """A file of the whole image classifier, as timm saves it: stages.0, and a head that has no place here."""
    import timm

    classifier = timm.create_model("convnext_atto", num_classes=7)
    backbone = make_backbone("convnext_atto")
    with pytest.warns(UserWarning, match=r"4 tensors have no place in convnext_atto.*head.norm.weight"):
        load_backbone_weights(backbone, TensorFile(classifier.state_dict(), {}), "atto.pth")
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(backbone.eval()(images)[-1], classifier.eval().forward_features(images))


def test_swin_keeps_its_output_normalisations():
    import timm

    with torch.device("meta"):  # a fast beginning: what is loaded is set below
        classifier = timm.create_model("swin_tiny_patch4_window7_224", num_classes=7)
        backbone = make_backbone("swin_tiny_patch4_window7_224")
    backbone.to_empty(device="cpu")
    for norm in backbone.net.norms.values():
        torch.nn.init.constant_(norm.weight, 7.0)
    weights = {name: torch.zeros(value.shape) for name, value in classifier.state_dict().items()}
    name = "layers.2.blocks.1.attn.relative_position_bias_table"
    weights[name].normal_()
    with pytest.warns(UserWarning, match=r"no place in swin_tiny.*norm.weight, norm.bias, head.fc"):
        load_backbone_weights(backbone, TensorFile(weights, {}))
    assert len(backbone.net.norms) == 4
    assert all((norm.weight == 7.0).all() for norm in backbone.net.norms.values())
    assert torch.equal(backbone.net.layers[2].blocks[1].attn.relative_position_bias_table, weights[name])


def test_what_does_not_fit_is_refused_and_nothing_is_loaded():
    backbone = make_backbone("resnet18")
    before = {name: value.clone() for name, value in backbone.net.state_dict().items()}
    weights = draw(backbone)
    del weights["conv1.weight"]
    weights["layer1.0.conv1.weight"] = torch.zeros(64, 64, 1, 1)
    message = (
        r"w.pth does not fit resnet18; nothing was loaded. 1 of \d+ tensors are not in the file: conv1.weight. 1 have "
        r"another shape: layer1.0.conv1.weight \(64, 64, 1, 1\) for \(64, 64, 3, 3\)"
    )
    with pytest.raises(ValueError, match=message):
        load_backbone_weights(backbone, TensorFile(weights, {}), "w.pth")
    assert all(torch.equal(value, before[name]) for name, value in backbone.net.state_dict().items())


@pytest.mark.skipif(not shared_files.MOBILENETV2.is_file(), reason=shared_files.MISSING)
def test_the_given_mobilenetv2_weights():
    """ImageNet weights with TensorFlow's padding: every key is used, and the features are those of timm's own model."""
    import timm
    from safetensors.torch import load_file

    weights = shared_files.MOBILENETV2
    with pytest.warns(UserWarning, match=r"does not state how its weights were trained.*Pass mean, std and padding"):
        create_model("fcn_mobilenetv2", 21, backbone_weights=weights)
    half = [0.5, 0.5, 0.5]
    model = create_model("fcn_mobilenetv2", 21, backbone_weights=weights, padding="same", mean=half, std=half)
    reference = timm.create_model("mobilenetv2_100", features_only=True, pad_type="same")
    reference.load_state_dict(load_file(weights), strict=True)
    images = torch.rand(1, 3, 96, 128)
    with torch.no_grad():
        ours, theirs = model.eval().backbone(images), reference.eval()(images)[1:]
        torch.testing.assert_close(ours[0], theirs[0])
        torch.testing.assert_close(ours[1], theirs[1])
        assert model.eval()(images).shape == (1, 21, 96, 128)


def test_the_backbone_of_a_saved_model_is_read_too(tmp_path):
    model = create_model("fcn", 3, backbone="test_resnet", head_channels=16)
    model.save(tmp_path / "m.safetensors")
    other = create_model(
        "upernet", 5, backbone="test_resnet", head_channels=16, backbone_weights=tmp_path / "m.safetensors"
    )
    assert torch.equal(other.backbone.net.conv1[0].weight, model.backbone.net.conv1[0].weight)


def test_a_statement_that_is_no_list_is_refused(tmp_path):
    for mean, words in (("abc", "which is no JSON"), ("0.5", "must state its mean as a list")):
        save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", metadata={"mean": mean})
        with pytest.raises(ValueError, match=rf"a.safetensors.*{words}"):
            create_model("fcn_mobilenetv2", 3, backbone_weights=tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="exclude each other"):
        create_model("fcn_mobilenetv2", 3, backbone_weights="a.pth", pretrained=True)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path):
    weights = draw(make_backbone("test_resnet"))
    weights["layer1.0.conv1.weight"][0, 0, 0, 0] = float("nan")
    torch.save(weights, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=r"a\.pth holds NaN or infinity in layer1\.0\.conv1\.weight\."):
        create_model("fcn", 4, backbone="test_resnet", head_channels=16, backbone_weights=tmp_path / "a.pth")
