"""save_pretrained, from_pretrained, push_to_hub, and cacseg.load of folders and names."""

import copy
import json
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, constants
from PIL import Image
from safetensors.torch import load_file, save_file

import cacseg
from cacseg.models import SegmentationModel, create_model
from cacseg.models.saved import find_weights
from hub_server import COMMIT, serve

NAME = "owner/name"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    arguments = {"head_channels": 16, "preset": "released", "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}
    model = create_model("fcn", 4, backbone="test_resnet", **arguments)
    model.class_names = ["sky", "road", "tree | bush", "car"]
    model.palette = [[0, 0, 255], [128, 128, 128], [0, 255, 0], [255, 0, 0]]
    return model.eval()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve(tmp_path / "hub", monkeypatch) as server:
        yield server


def same(one, other):
    tensors, others = one.state_dict(), other.state_dict()
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    for name in ("arguments", "class_names", "palette", "mean", "std"):
        assert getattr(one, name) == getattr(other, name)
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(one(images), other(images))
    return True


def cache(folder, root, name=NAME, commit="a" * 40):
    """A folder as huggingface_hub lays it out in its cache."""
    repo = root / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)


def test_a_folder_gives_the_same_model_in_every_way(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    for again in (
        SegmentationModel.from_pretrained(tmp_path),
        cacseg.load(str(tmp_path)),
        cacseg.load(tmp_path / "model.safetensors"),
    ):
        assert same(again, model)
        assert not again.training
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["arguments"] == model.arguments
    assert config["class_names"] == model.class_names
    assert config["format"] == "cacseg model 1"


def test_the_example_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    page = (Path(__file__).parents[2] / "docs" / "hub.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert same(names["again"], names["model"].eval())
    assert ModelCard.load(tmp_path / "mine" / "README.md").data.license == "cc-by-4.0"


def test_a_second_model_replaces_the_first_and_keeps_the_card(model, tmp_path):
    model.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    other = create_model("fcn", 3, "plain", backbone="test_resnet", head_channels=8)
    other.save_pretrained(tmp_path)
    assert cacseg.load(tmp_path).num_classes == 3
    assert json.loads((tmp_path / "config.json").read_text())["arguments"]["num_classes"] == 3
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize("content", ['{"format": "cacseg run 1"}', '{"model_type": "segformer"}', "[1]", "junk"])
def test_a_configuration_of_something_else_is_kept(model, tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(FileExistsError, match=r"config.json .* another folder"):
        model.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() == content


def test_copies_and_pickles_of_a_model(model):
    assert same(copy.deepcopy(model), model)
    assert same(pickle.loads(pickle.dumps(model)), model)


def test_the_card_can_be_read_by_the_hub(model, tmp_path):
    scores = {"plain": 51.234, "context": 53.0}
    classes = {"plain": [40.0, 50.0, None, 60.0], "context": [41.0, 51.0, None, 61.0]}
    facts = {"license": "CC-BY-4.0", "data": "camvid val", "scores": scores, "class_scores": classes}
    model.save_pretrained(tmp_path, model_card_kwargs={**facts, "picture": "strip.png", "name": NAME})
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert card.data.library_name == "cacseg"
    assert card.data.pipeline_tag == "image-segmentation"
    assert [one.metric_value for one in card.data.eval_results] == [51.23, 53.0]
    assert {one.dataset_name for one in card.data.eval_results} == {"camvid val"}
    rows = [[cell.strip() for cell in line.split(" | ")] for line in card.text.splitlines() if line.startswith("| ")]
    assert ["| 51.23", "53.00 |"] in rows
    assert ["| 0", "sky", "`#0000ff`", "40.0", "41.0 |"] in rows
    assert ["| 2", r"tree \| bush", "`#00ff00`", "-", "- |"] in rows
    assert f'cacseg.load("{NAME}")' in card.text
    assert "(strip.png)" in card.text


def test_the_code_of_the_card_runs(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (80, 60)).save("photo.jpg")
    model.save_pretrained(tmp_path, model_card_kwargs={"name": str(tmp_path)})
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license is None
    assert card.data.eval_results is None
    names = {}
    exec(card.text.split("```python\n")[1].split("```")[0], names)
    assert names["mask"].shape == (60, 80)
    with Image.open("overlay.jpg") as overlay:
        assert overlay.size == (80, 60)


def test_the_folder_of_a_run(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"without best.safetensors, last.safetensors or model.safetensors"):
        cacseg.load(tmp_path)
    other = copy.deepcopy(model)
    torch.nn.init.ones_(other.classifier.weight)
    other.save(tmp_path / "last.safetensors")
    assert same(cacseg.load(tmp_path), other)
    model.save(tmp_path / "best.safetensors")
    assert same(cacseg.load(tmp_path), model)
    (tmp_path / "last.ckpt").write_bytes(b"state")
    with pytest.raises(ValueError, match=r"last.ckpt is for resuming a run"):
        cacseg.load(tmp_path / "last.ckpt")
    for name in ("a.onnx", "a.pt2"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match=rf"{name} is an exported"):
            cacseg.load(tmp_path / name)


def test_a_name_in_the_cache_needs_no_network(model, tmp_path, monkeypatch):
    model.save_pretrained(tmp_path / "folder")
    cache(tmp_path / "folder", tmp_path / "cache")
    assert same(cacseg.load(NAME, cache_dir=tmp_path / "cache", local_files_only=True), model)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same(SegmentationModel.from_pretrained(NAME, cache_dir=tmp_path / "cache"), model)
    assert same(cacseg.load(NAME, cache_dir=tmp_path / "cache", revision="a" * 40), model)
    with pytest.raises(FileNotFoundError, match=r"owner/other .*config.json .*offline"):
        cacseg.load("owner/other", cache_dir=tmp_path / "cache")
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE"):
        cacseg.load(NAME, cache_dir=tmp_path / "cache", revision="v2")


def test_a_process_that_is_offline(model, tmp_path):
    """By the environment alone, as a user sets it."""
    model.save_pretrained(tmp_path / "folder")
    cache(tmp_path / "folder", tmp_path / "hub")
    code = f"import cacseg; print(cacseg.load({NAME!r}).class_names)"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub"), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == str(model.class_names), done.stderr


def test_a_model_goes_to_the_hub_and_back(model, hub):
    address = model.push_to_hub(NAME, token="hf_token", private=True)
    assert COMMIT in address
    assert hub.created[NAME]["visibility"] == "private"
    assert f'cacseg.load("{NAME}")' in (hub.root / NAME / "README.md").read_text()
    assert same(cacseg.load(NAME), model)
    assert same(SegmentationModel.from_pretrained(NAME, revision=COMMIT), model)


def one_line(error):
    assert error.value.__suppress_context__  # no stack of the way to the Hub
    return len(str(error.value).splitlines()) == 1


def test_what_the_hub_has_not(model, hub, tmp_path):
    model.push_to_hub(NAME, token="hf_token")
    with pytest.raises(FileNotFoundError, match=r"owner/other .*hf auth login") as error:
        cacseg.load("owner/other")
    assert one_line(error)
    with pytest.raises(FileNotFoundError, match="no revision 'v2'") as error:
        cacseg.load(NAME, revision="v2")
    assert one_line(error)
    hub.gated.add("owner/gated")
    with pytest.raises(PermissionError, match="owner/gated is gated") as error:
        cacseg.load("owner/gated")
    assert one_line(error)
    (hub.root / NAME / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors") as error:
        cacseg.load(NAME, cache_dir=tmp_path / "empty")
    assert one_line(error)
    with pytest.raises(PermissionError, match=r"401.*hf auth login") as error:
        model.push_to_hub(NAME, token=False)
    assert one_line(error)


@pytest.mark.parametrize("config", ['{"model_type": "segformer"}', "junk", "[]"])
def test_a_model_of_another_library_is_told_before_its_weights_are_read(hub, config):
    (hub.root / NAME).mkdir(parents=True)
    (hub.root / NAME / "config.json").write_text(config)
    with pytest.raises(ValueError, match=r"format .* must be 'cacseg model 1'; got None"):
        cacseg.load(NAME)


def test_a_file_that_is_not_ours_behind_our_description(model, hub, tmp_path):
    model.save_pretrained(hub.root / NAME)
    save_file(load_file(hub.root / NAME / "model.safetensors"), hub.root / NAME / "model.safetensors")
    with pytest.raises(ValueError, match=r"not a model saved by model.save"):
        cacseg.load(NAME)


def test_no_network(monkeypatch, tmp_path):
    nowhere = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", nowhere + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the Hub's own attempts
    with pytest.raises(FileNotFoundError, match="the Hub was not reached") as error:
        cacseg.load(NAME, cache_dir=tmp_path)
    assert one_line(error)
    model = create_model("fcn", 2, backbone="test_resnet", head_channels=8)
    with pytest.raises(ConnectionError, match="the Hub was not reached for owner/name") as error:
        model.push_to_hub(NAME, token="hf_token")
    assert one_line(error)


@pytest.mark.parametrize("endpoint", ["http://hub.invalid", "http://hub..invalid"])
def test_without_a_network_the_hub_is_not_asked(model, tmp_path, monkeypatch, endpoint):
    """Nor waited for: a cached name loads, another one is an error at once."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "localhost")  # which is no proxy
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(time, "sleep", None)  # between the Hub's own attempts
    model.save_pretrained(tmp_path / "folder")
    cache(tmp_path / "folder", tmp_path / "cache")
    assert same(cacseg.load(NAME, cache_dir=tmp_path / "cache"), model)
    with pytest.raises(FileNotFoundError, match=r"owner/other must be .* was not reached \(.+\)") as error:
        cacseg.load("owner/other", cache_dir=tmp_path / "cache")
    assert one_line(error)


def test_a_path_is_not_taken_for_a_name(tmp_path, monkeypatch):
    """A mistyped run is told at once, without a network."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for wrong in ("runs/mine", "model.safetensors", "some/model.safetensors", "/no/such", "a/b/c", "../x", "nothing"):
        with pytest.raises(FileNotFoundError, match="there is no model"):
            find_weights(wrong)
