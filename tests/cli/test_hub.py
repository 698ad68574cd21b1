"""`cacseg hub`: folders, cards and uploads, to a Hub on this machine."""

import json
import shutil

import cv2
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, constants

import cacseg
from cacseg.recipes.protocol import data_of_run
from command_line import run as run_command
from hub_server import serve
from test_cli_train import settings

SMALL = {"schedule.steps": 2, "data.size": [64, 64], "data.length": 8, "training.scored_train_images": 0}
SMALL |= {"training.validate_every": 1, "model.head_channels": 16}


class Silent:
    """In the place of capsys, which lives as long as one test."""

    def readouterr(self):
        return "", ""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with next to no training, validated at each of its two steps."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    with pytest.MonkeyPatch.context() as patch:
        words = ("train", "synthetic", "-o", folder, "--no-report", *settings(**SMALL))
        assert run_command(*words, capsys=Silent(), monkeypatch=patch).code == 0
    return folder


@pytest.fixture
def run(capsys, monkeypatch):
    return lambda *arguments: run_command("hub", *arguments, capsys=capsys, monkeypatch=monkeypatch)


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    with serve(tmp_path / "hub", monkeypatch) as one:
        yield one


def values(card):
    return {one.metric_name.split()[1]: one.metric_value for one in card.data.eval_results}


def best_at(run, tmp_path, step):
    """A copy of a run whose best validation was at that step."""
    folder = shutil.copytree(run, tmp_path / f"best{step}")
    scores = json.loads((folder / "scores.json").read_text())
    scores["best"]["step"] = step
    (folder / "scores.json").write_text(json.dumps(scores))
    return folder, scores["splits"]["val"]["outputs"]


def test_a_run_becomes_a_folder(trained, run, tmp_path):
    source, outputs = best_at(trained, tmp_path, 2)
    done = run(source, "-o", tmp_path / "folder", "--license", "cc-by-4.0")
    assert done.code == 0, done.err
    assert done.out.strip() == str(tmp_path / "folder")
    names = {path.name for path in (tmp_path / "folder").iterdir()}
    assert names == {"model.safetensors", "config.json", "README.md", "picture.png"}
    again, best = cacseg.load(tmp_path / "folder"), cacseg.load(source)
    assert all(torch.equal(one, best.state_dict()[name]) for name, one in again.state_dict().items())
    assert (again.class_names, again.palette) == (best.class_names, best.palette)
    card = ModelCard.load(tmp_path / "folder" / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert values(card) == {name: round(100 * outputs[name]["mean_iou"], 2) for name in ("plain", "context")}
    iou = outputs["context"]["iou"][0]
    row = next(line for line in card.text.splitlines() if line.startswith("| 0 | "))
    assert row.endswith(f" {'-' if iou is None else f'{100 * iou:.1f}'} |")
    assert str(tmp_path) not in card.text
    picture = cv2.imread(str(tmp_path / "folder" / "picture.png"))
    assert picture.shape[1] > 4 * 160  # input, truth, plain, context and the changes
    assert data_of_run(tmp_path / "folder" / "model.safetensors") == data_of_run(source / "best.safetensors")


def test_scores_are_those_of_the_weights(trained, run, tmp_path):
    source, outputs = best_at(trained, tmp_path, 1)
    assert run(source, "-o", tmp_path / "one", "--picture", "none").code == 0
    lines = [line.split(",") for line in (source / "metrics.csv").read_text().splitlines()]
    column = lines[0].index("val/plain_mean_iou")
    first = next(float(line[column]) for line in lines[1:] if line[0] == "1" and line[column])
    assert values(ModelCard.load(tmp_path / "one" / "README.md"))["plain"] == round(100 * first, 2)
    assert run(source / "last.safetensors", "-o", tmp_path / "two", "--picture", "none").code == 0
    card = ModelCard.load(tmp_path / "two" / "README.md")
    assert values(card)["plain"] == round(100 * outputs["plain"]["mean_iou"], 2)
    shutil.copy(source / "last.safetensors", source / "other.safetensors")
    assert run(source / "other.safetensors", "-o", tmp_path / "three", "--picture", "none").code == 0
    assert ModelCard.load(tmp_path / "three" / "README.md").data.eval_results is None


def test_an_evaluation_brings_its_scores(trained, run, tmp_path, capsys, monkeypatch):
    evaluation = tmp_path / "eval"
    words = ("eval", trained, "-o", evaluation, "--no-report", "--device", "cpu")
    assert run_command(*words, capsys=capsys, monkeypatch=monkeypatch).code == 0
    assert run(evaluation, "-o", tmp_path / "folder").code == 0
    found = json.loads((evaluation / "scores.json").read_text())["outputs"]
    card = ModelCard.load(tmp_path / "folder" / "README.md")
    assert values(card)["context"] == round(100 * found["context"]["mean_iou"], 2)
    assert (tmp_path / "folder" / "picture.png").is_file()


def test_a_file_without_a_run(trained, run, tmp_path):
    shutil.copy(trained / "best.safetensors", tmp_path / "model.safetensors")
    done = run(tmp_path / "model.safetensors", "-o", tmp_path / "folder")
    assert done.code == 0, done.err
    assert "no picture" in done.err
    card = ModelCard.load(tmp_path / "folder" / "README.md")
    assert (card.data.license, card.data.eval_results) == (None, None)
    assert data_of_run(tmp_path / "folder" / "model.safetensors") is None


def test_a_picture_of_ones_own(trained, run, tmp_path):
    cv2.imwrite(str(tmp_path / "mine.JPG"), np.zeros((8, 8, 3), np.uint8))
    assert run(trained, "-o", tmp_path / "folder", "--picture", tmp_path / "mine.JPG").code == 0
    assert (tmp_path / "folder" / "picture.jpg").read_bytes() == (tmp_path / "mine.JPG").read_bytes()
    assert "(picture.jpg)" in (tmp_path / "folder" / "README.md").read_text()


def test_a_folder_that_was_looked_at_is_uploaded_as_it_is(trained, run, server, tmp_path):
    assert run(trained, "-o", tmp_path / "folder").code == 0
    with (tmp_path / "folder" / "README.md").open("a") as card:
        card.write("my own words\n")
    done = run(tmp_path / "folder", "--push", "me/mine", "--private")
    assert done.code == 0, done.err
    assert done.out.strip() == f"{server.address}/me/mine"
    assert server.created["me/mine"]["visibility"] == "private"
    assert {path.name for path in (server.root / "me/mine").iterdir()} >= {"model.safetensors", "picture.png"}
    text = (server.root / "me/mine" / "README.md").read_text()
    assert text.endswith("my own words\n")
    assert 'cacseg.load("me/mine")' in text
    assert cacseg.load("me/mine").class_names == cacseg.load(trained).class_names
    done = run(tmp_path / "folder", "--push", "me/mine", "--license", "mit")
    assert done.code == 2
    assert "written already" in done.err


def test_a_run_is_uploaded_without_an_image_of_the_data(trained, run, server, tmp_path):
    done = run(trained, "--push", "me/mine")
    assert done.code == 0, done.err
    assert {path.name for path in (server.root / "me/mine").iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
    }
    assert "visibility" not in server.created["me/mine"]


def test_images_are_predicted_by_name_as_the_run_would(trained, run, server, tmp_path, capsys, monkeypatch):
    assert run(trained, "--push", "me/mine").code == 0
    image = np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / "photo.png"), image)
    for source, output in (("me/mine", "by_name"), (trained, "by_run")):
        words = ("predict", source, tmp_path / "photo.png", "-o", tmp_path / output, "--device", "cpu")
        done = run_command(*words, capsys=capsys, monkeypatch=monkeypatch)
        assert done.code == 0, done.err
    masks = [(tmp_path / output / "masks" / "photo.png").read_bytes() for output in ("by_name", "by_run")]
    assert masks[0] == masks[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "-o FOLDER"),
        (["-o", "folder", "--private"], "--push"),
        (["--push", "mine"], "OWNER/NAME"),
        (["-o", "folder", "--picture", "nothing.png"], "nothing.png"),
        (["-o", "folder", "--data", "nowhere"], "nowhere"),
        (["-o", "full"], "full holds files already"),
    ],
)
def test_mistakes_are_one_line(trained, run, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    if "nowhere" in words:
        config = json.loads((trained / "config.json").read_text())
        config["config"]["data"].update(name="folder", size=None, length=None, val_length=None)
        trained = shutil.copytree(trained, tmp_path / "run")
        (trained / "config.json").write_text(json.dumps(config))
    done = run(trained, *words)
    assert done.code == 2
    assert told in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "folder" / "README.md").exists()


def test_the_hub_does_not_know_the_user(trained, run, server, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    done = run(trained, "--push", "me/mine")
    assert done.code == 2
    assert "hf auth login" in done.err
    assert len(done.err.strip().splitlines()) == 1
