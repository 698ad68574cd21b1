"""Converted models in the folders of their own libraries, and back."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

import cacseg
from architectures import N, build, draw, scores_of, smp
from cacseg.presets import PRESETS
from hub_server import serve

FILE = "conversion.safetensors"


def original(name, folder, **arguments):
    """What the library itself makes of a folder."""
    if name.startswith("smp"):
        return smp.from_pretrained(folder, strict=False, **arguments)
    kind = type(build(name))
    return kind.from_pretrained(folder, **arguments)


def same(one, other, name):
    """Every tensor, every output and every loss, bit for bit."""
    images, labels = draw(name)
    one.eval(), other.eval()
    state = other.state_dict()
    assert one.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in one.state_dict().items())
    with torch.no_grad():
        assert torch.equal(scores_of(one(images)), scores_of(other(images)))
        assert torch.equal(scores_of(one.plain(images)), scores_of(other.plain(images)))
        losses, others = one.loss(images, labels), other.loss(images, labels)
    assert losses.keys() == others.keys()
    assert all(torch.equal(losses[term], others[term]) for term in losses)
    return True


NAMES = ["smp Unet", "smp DPT", "transformers Segformer", "transformers UperNet with Swin", "transformers Sapiens2"]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_comes_back_whole(name, tmp_path):
    """Under the library's default names for its weights, older ones included."""
    weights = [1.0, 2.0, 0.5, 1.0, 1.0]
    arguments = {"preset": "released", "scale": 9.0, "loss_arguments": {"kl_weight": 0.3, "class_weights": weights}}
    model = cacseg.convert(build(name), **arguments)
    model.save_pretrained(tmp_path)
    assert same(cacseg.convert(original(name, tmp_path), saved=tmp_path), model, name)
    assert (tmp_path / "config.json").is_file()


@pytest.mark.parametrize("name", ["smp Unet", "transformers Segformer"])
def test_the_library_reads_its_folder_as_before(name, tmp_path):
    model, (images, _) = cacseg.convert(build(name)), draw(name)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        plain = original(name, tmp_path).eval()(images)
        assert torch.equal(scores_of(plain), scores_of(model.plain(images)))
    cacseg.restore(model).save_pretrained(tmp_path / "restored")
    assert not (tmp_path / "restored" / FILE).exists()


def test_what_a_preset_stands_for_is_saved_with_it(tmp_path, monkeypatch):
    model = cacseg.convert(build("smp Unet"))
    model.save_pretrained(tmp_path)
    monkeypatch.setitem(PRESETS, "tuned", PRESETS["paper"]._replace(overlap_weight=1.0))
    assert same(cacseg.convert(original("smp Unet", tmp_path), saved=tmp_path), model, "smp Unet")


def test_a_model_without_its_oracle(tmp_path):
    model, (images, _) = cacseg.convert(build("smp Unet")).drop_oracle(), draw()
    model.save_pretrained(tmp_path)
    again = cacseg.convert(original("smp Unet", tmp_path), saved=tmp_path).eval()
    assert again.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(again(images), model(images))


def test_losses_may_be_changed_and_the_classifier_not(tmp_path):
    cacseg.convert(build("smp Unet"), loss_arguments={"kl_weight": 0.3}).save_pretrained(tmp_path)
    folder = original("smp Unet", tmp_path)
    again = cacseg.convert(folder, saved=tmp_path, loss_arguments={"class_weights": torch.ones(N)})
    criterion = again.get_submodule(again.seam).criterion
    assert criterion.weights["distillation"] == 0.3
    assert criterion.class_weights.tolist() == [1.0] * N
    again.save_pretrained(tmp_path)  # a tensor among the arguments
    with pytest.raises(ValueError, match=r"got seam, preset\. Leave it out"):
        cacseg.convert(cacseg.restore(again), seam="segmentation_head.0", preset="paper", saved=tmp_path)


def test_a_state_dict_that_is_given_is_the_one_that_is_written(tmp_path):
    """As the Trainer does it, whose model may hold a part of the weights alone."""
    model = cacseg.convert(build("transformers Segformer"))
    state = {key: torch.full_like(value, 0.25) for key, value in model.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=dict(state))
    assert all(value.unique().tolist() == [0.25] for value in load_file(tmp_path / FILE).values())
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other" / FILE).exists()


def test_a_folder_of_the_trainer(tmp_path):
    name = "transformers Segformer"
    model = cacseg.convert(build(name), scale=9.0)
    options = transformers.TrainingArguments(str(tmp_path / "runs"), use_cpu=True, report_to=[])
    transformers.Trainer(model, options).save_model(str(tmp_path / "folder"))
    assert same(cacseg.convert(original(name, tmp_path / "folder"), saved=tmp_path / "folder"), model, name)


@pytest.mark.parametrize("name", ["smp Unet", "transformers Segformer"])
@pytest.mark.parametrize("by", ["push_to_hub", "save_pretrained"])
def test_to_the_hub_and_back(name, by, tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)  # it keeps the first server's address
    model = cacseg.convert(build(name), scale=9.0)
    with serve(tmp_path / "hub", monkeypatch) as server:
        if by == "push_to_hub":
            model.push_to_hub("me/mine", token="hf_token")
        else:
            model.save_pretrained(tmp_path / "folder", push_to_hub=True, repo_id="me/mine", token="hf_token")
            assert (tmp_path / "folder" / FILE).is_file()
        assert {"config.json", "model.safetensors", FILE} <= {path.name for path in (server.root / "me/mine").iterdir()}
        again = cacseg.convert(original(name, server.root / "me/mine"), saved="me/mine")
    assert same(again, model, name)


def test_folders_and_files_that_are_none(tmp_path):
    model = build("smp Unet")
    with pytest.raises(FileNotFoundError, match=FILE):
        cacseg.convert(model, saved=tmp_path)
    (tmp_path / FILE).write_bytes(b"junk" * 9)
    with pytest.raises(ValueError, match=rf"{FILE} is damaged"):
        cacseg.convert(model, saved=tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / FILE, {"format": "pt"})
    with pytest.raises(ValueError, match="format must be 'cacseg conversion 1'; got 'pt'"):
        cacseg.convert(model, saved=tmp_path)
    save_file(
        {"x": torch.zeros(1)},
        tmp_path / FILE,
        {"format": "cacseg conversion 1", "arguments": json.dumps({"seam": 1, "more": 2})},
    )
    with pytest.raises(ValueError, match="more"):
        cacseg.convert(model, saved=tmp_path)
    cacseg.convert(build("smp DPT")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"segmentation_head\.head\.4"):  # of another model
        cacseg.convert(model, saved=tmp_path)
    assert type(model) is smp.Unet
    other = cacseg.convert(smp.Unet("resnet18", encoder_weights=None, classes=N, decoder_channels=(64, 32, 16, 8, 8)))
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"context_projector.*must be.*got"):
        cacseg.convert(model, saved=tmp_path)
    assert type(model) is smp.Unet


@pytest.mark.parametrize("place", range(3))
def test_the_examples_of_the_page(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "convert.md").read_text().split("## Save and load")[1]
    names = {}
    exec(page.split("```python\n")[place + 1].split("```")[0], names)
    state = names["model"].state_dict()
    assert all(torch.equal(value, state[key]) for key, value in names["again"].state_dict().items())
    assert names["again"].get_submodule(names["again"].seam).preset == "released"


def test_torchvision_by_a_state_dict(tmp_path):
    """It has no folders of its own: built and converted again in the same way, then loaded."""
    name = "torchvision deeplabv3_mobilenet_v3_large"
    model = cacseg.convert(build(name), preset="released")
    torch.save(model.state_dict(), tmp_path / "model.pth")
    other = cacseg.convert(build(name), preset="released")
    other.load_state_dict(torch.load(tmp_path / "model.pth"))
    assert same(other, model, name)
