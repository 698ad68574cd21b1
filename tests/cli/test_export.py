"""`cacseg export` as a user runs it, in this process: files, words, exit codes."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import cacseg
from cacseg.recipes.config import change
from cacseg.recipes.files import write_config
from cacseg.recipes.named import find_recipe
from command_line import run

pytest.importorskip("onnx", reason="needs the extra export")
import onnx

CLASSES = ("grass", "sky", "stone")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set of one's own, and the folder of a run with a model for it."""
    root = tmp_path_factory.mktemp("export")
    numbers = np.random.default_rng(0)
    for split, name in (("train", "a"), ("train", "b"), ("val", "c"), ("val", "d")):
        labels = numbers.integers(0, 3, (6, 7)).repeat(8, 0).repeat(8, 1)
        image = labels[..., None] * 80 + numbers.integers(0, 60, (48, 56, 3))
        for kind, pixels in (("images", image), ("labels", labels)):
            (root / "data" / kind / split).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(root / "data" / kind / split / f"{name}.png")
    (root / "data/classes.txt").write_text("\n".join(CLASSES))
    model = cacseg.create_model("fcn", 3, backbone="test_resnet", head_channels=8, preset="released")
    model.class_names = CLASSES
    (root / "run").mkdir()
    model.save(root / "run/best.safetensors")
    model.save(root / "model.safetensors")
    changes = {"data.root": str(root / "data"), "data.val_scale": (96, 64), "data.crop": (32, 32)}
    write_config(root / "run", "folder", change(find_recipe("folder"), changes), model.arguments)
    return root


def described(path):
    return json.loads({one.key: one.value for one in onnx.load(path).metadata_props}["cacseg"])


def test_a_run_becomes_a_file(place, tmp_path, capsys, monkeypatch):
    path = tmp_path / "new" / "model.onnx"
    arguments = ("export", place / "run", "-o", path, "--output", "classes", "--score", 2)
    done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert described(path)["class_names"] == list(CLASSES)
    assert (described(path)["scale"], described(path)["output"]) == ([96, 64], "classes")
    assert len(re.findall(r"largest difference [\d.e+-]+", done.out)) == 2
    of_file, of_model = re.search(r"mIoU on 2 images of folder val: ([\d.]+) .*?([\d.]+) \(PyTorch", done.out).groups()
    assert abs(float(of_file) - float(of_model)) < 0.5
    again = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert again.code == 2
    assert "exists already" in again.err


@pytest.mark.parametrize(
    ("arguments", "window"),
    [((), (48, 40)), (("--whole",), None), (("--output", "classes"), None), (("--fixed-size", "64x96"), None)],
)
def test_windows_of_the_run_are_in_the_file(arguments, window, place, tmp_path, capsys, monkeypatch):
    changes = {"data.root": str(place / "data"), "data.window": (48, 40), "data.stride": (32, 24)}
    shutil.copytree(place / "run", tmp_path / "run", ignore=shutil.ignore_patterns("*.json"))
    write_config(tmp_path / "run", "folder", change(find_recipe("folder"), changes), {})
    asked = {}

    def stop(model, path, **options):
        asked.update(options)
        raise ValueError("enough is known")

    monkeypatch.setattr("cacseg.engine.export.export", stop)
    done = run("export", tmp_path / "run", "-o", "a.onnx", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert "enough is known" in done.err
    assert (asked["window"], asked["stride"]) == (window, window and (32, 24))
    assert asked["fixed_size"] == ((64, 96) if "--fixed-size" in arguments else None)
    assert ("windows of 40x48" in done.err) == ("classes" in arguments)


@pytest.mark.parametrize(
    ("file", "kind", "place_of_model"),
    [("a.onnx", "onnx", "cpu"), ("a.pt2", "torch-export", "cpu"), ("a.pt2", "aotinductor", "meta")],
)
def test_the_device_is_that_of_aotinductor_alone(file, kind, place_of_model, place, capsys, monkeypatch):
    devices = []
    monkeypatch.setattr("cacseg.engine.device.choose_device", lambda device: {"cuda": "meta"}[device])
    monkeypatch.setattr("cacseg.load", lambda path, device: devices.append(device))
    monkeypatch.setattr("cacseg.engine.export.export", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(
            "export",
            place / "model.safetensors",
            "-o",
            file,
            "--format",
            kind,
            "--device",
            "cuda",
            capsys=capsys,
            monkeypatch=monkeypatch,
        )
    assert devices == [place_of_model]


@pytest.mark.slow
def test_int8_is_calibrated_and_scored_on_the_data_of_the_run(place, tmp_path, capsys, monkeypatch):
    path = tmp_path / "int8.onnx"
    done = run("export", place / "run", "-o", path, "--precision", "int8", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert described(path)["precision"] == "int8"
    assert re.search(r"2 calibration images: largest difference [\d.e+-]+, [\d.]+ % of the pixels", done.out)
    assert re.search(r"mIoU on 2 images of folder val: [\d.]+ \(int8\), [\d.]+ \(PyTorch, fp32\)", done.out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.safetensors", "-o", "a.onnx"], "there is no model missing.safetensors"),
        (["model.safetensors", "-o", "a.onnx", "--format", "tflite"], "'onnx', 'torch-export', 'aotinductor'"),
        (["model.safetensors", "-o", "a.onnx", "--format", "torch-export"], "ends in .pt2; got a.onnx"),
        (["model.safetensors", "-o", "a.onnx", "--output", "b.onnx"], "'logits', 'probabilities', 'classes'"),
        (["model.safetensors", "-o", "a.onnx", "--precision", "int8"], "--calibrate"),
        (["model.safetensors", "-o", "a.onnx", "--score", "5"], "--data"),
        (["model.safetensors", "-o", "a.onnx", "--scale", "big"], "--scale"),
        (["run", "-o", "run"], "ends in .onnx; got run"),
    ],
)
def test_mistakes_are_one_line(place, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    done = run("export", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert sorted(place.rglob("*")) == before
