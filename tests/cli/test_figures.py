"""`cacseg figures` as a user runs it, in this process."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from cacseg.models import create_model
from command_line import run

CLASSES = ("grass", "sky", "stone")


def model(**arguments):
    torch.manual_seed(4)
    made = create_model("fcn", 3, backbone="test_resnet", head_channels=16, **arguments)
    made.class_names, made.palette = list(CLASSES), [[0, 160, 0], [0, 90, 250], [120, 120, 120]]
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Five images with two classes each, a plain and a context-aware model."""
    root = tmp_path_factory.mktemp("figures")
    numbers = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (root / "data" / kind / "val").mkdir(parents=True)
    for k in range(5):
        labels = np.zeros((96, 128), np.uint8)
        labels[40:] = 1
        labels[:4] = 255
        image = labels[..., None] * 90 + numbers.integers(0, 60, (96, 128, 3))
        Image.fromarray(image.astype(np.uint8)).save(root / f"data/images/val/{k}.png")
        Image.fromarray(labels).save(root / f"data/labels/val/{k}.png")
    (root / "data" / "classes.txt").write_text("\n".join(CLASSES))
    model(preset="paper", output_stride=8).save(root / "context.safetensors")
    model(classifier="plain", output_stride=8).save(root / "plain.safetensors")
    return root


def names(folder):
    return sorted(path.name for path in folder.iterdir())


BOTH = ["entropy.png", "entropy.svg", "predictions.png", "predictions.svg"]
ALL = sorted([*BOTH, "moves.csv", *(f"{name}.{kind}" for name in ("moves", "tsne") for kind in ("png", "svg"))])


def test_all_four_of_two_models(place, tmp_path, capsys, monkeypatch):
    arguments = ("figures", place / "plain.safetensors", place / "context.safetensors", "--root", place / "data")
    done = run(*arguments, "-o", tmp_path / "out", "--images", 4, "--rows", 2, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert names(tmp_path / "out") == ALL
    rows = list(csv.DictReader((tmp_path / "out/moves.csv").read_text().splitlines()))
    assert {(row["image"], row["class"]) for row in rows} == {(str(k), c) for k in (0, 1, 2, 3) for c in CLASSES[:2]}
    assert all(0.0 < float(row["move"]) < 2.0 for row in rows)
    assert str(place / "context.safetensors") in done.out
    line = next(line for line in done.out.splitlines() if "tsne.png" in line)
    assert any(name in line for name in CLASSES)
    assert "0, 1, 2, 3" in line
    assert "context.safetensors" in line
    text = (tmp_path / "out/predictions.svg").read_text()
    assert "plain.safetensors" in text
    assert "context.safetensors" in text
    with Image.open(tmp_path / "out/tsne.png") as picture:
        assert round(picture.info["dpi"][0]) == 150

    again = run(*arguments, "-o", tmp_path / "out", capsys=capsys, monkeypatch=monkeypatch)
    assert again.code == 2
    assert "--overwrite" in again.err


def test_a_plain_model_has_two(place, tmp_path, capsys, monkeypatch):
    arguments = ("figures", place / "plain.safetensors", "--root", place / "data", "-o", tmp_path / "out")
    done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert names(tmp_path / "out") == BOTH
    assert "tsne is left out" in done.err
    assert "moves is left out" in done.err
    line = next(line for line in done.out.splitlines() if str(tmp_path / "out/entropy.png") in line)
    assert "0, 1, 2, 3" in line
    assert "plain.safetensors" in line
    refused = run(*arguments, "--overwrite", "--class", "sky", capsys=capsys, monkeypatch=monkeypatch)
    assert refused.code == 2


def test_one_image_is_too_few_for_tsne_alone(place, tmp_path, capsys, monkeypatch):
    arguments = ("figures", place / "context.safetensors", "--root", place / "data", "--image", "3")
    done = run(*arguments, "-o", tmp_path / "out", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert names(tmp_path / "out") == [name for name in ALL if not name.startswith("tsne")]
    assert "tsne" in done.err
    assert "--images" in done.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--class", "stone"), "'stone' must be in at least 2 of the 5 looked at; it is in 0"),
        (("--class", "grss"), "Did you mean 'grass'"),
        (("--image", "9"), "--image must name an image of 'val'"),
    ],
)
def test_what_cannot_be_drawn(more, words, place, tmp_path, capsys, monkeypatch):
    arguments = ("figures", place / "context.safetensors", "--root", place / "data", "-o", tmp_path / "out")
    done = run(*arguments, *more, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "out").exists() or names(tmp_path / "out") == []


def test_the_same_run_twice(place, tmp_path, capsys, monkeypatch):
    path = place / "context.safetensors"
    done = run("figures", path, path, "--root", place / "data", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert "the same" in done.err
