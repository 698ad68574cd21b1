"""The measuring scripts of tools/ and benchmarks/ that docs name."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import cacseg
from cacseg.data import open_data

ROOT = Path(__file__).parents[1]


def load(name, folder="tools"):
    """A script as Python runs it, with the folder of the script on the path."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


@pytest.fixture(scope="module")
def measure_theta():
    return load("measure_theta")


def test_lengths(measure_theta):
    weight, prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.full((2, 2, 2), 2.0)
    shared = torch.tensor([[[6.0, 8.0]], [[0.0, 0.0]]]).expand(2, 2, 2)  # of each image, the same for its classes
    expected = [3.0, 8.0**0.5, 5.0, 0.0, 5.0]
    assert measure_theta.lengths(weight, prototypes, shared) == pytest.approx(expected)
    by_class = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]]).expand(2, 2, 2)
    assert measure_theta.lengths(weight, prototypes, by_class)[2:] == pytest.approx([1.0, 1.0, 0.0])


def test_theta_is_measured_while_a_job_trains(measure_theta, capsys, monkeypatch):
    """It starts at 0 and grows; arms without a projector are named."""
    asked = ["studies/scenes.toml", "--only", "optimisers=adamw", "--only", "arms=plain,tuned", "--steps", "3"]
    smaller = ["--set", "data.length=8", "--set", "data.val_length=2", "--set", "training.batch=2"]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["measure_theta.py", *asked, *smaller, "--every", "1"])
    measure_theta.main()
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["plain has no theta and is left out."]
    _, _, *rows = printed.out.splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[:2] for row in cells] == [["`tuned`", "1"], ["`tuned`", "2"], ["`tuned`", "3"]]
    theta = [float(row[4]) for row in cells]
    assert theta[0] == 0.0 < theta[2]


def test_a_wrong_command_line_is_an_error(measure_theta, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    for given, words in (
        (["none.toml"], "there is no study none.toml"),
        (["studies/scenes.toml", "--every", "0"], "--every must be at least 1; got 0."),
        (["studies/scenes.toml", "--only", "arms"], "--only must be NAME=VALUE; got 'arms'."),
        (["studies/scenes.toml", "--only", "arms=best"], "there is no value of arms 'best'"),
    ):
        monkeypatch.setattr(sys, "argv", ["measure_theta.py", *given, "--steps", "3"])
        with pytest.raises(SystemExit):
            measure_theta.main()
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("form", ["converted", "converted, native", "patches"])
def test_a_head_of_3x3_is_measured(form, capsys, monkeypatch):
    script = load("three_by_three_head", "benchmarks")
    assert form in script.FORMS
    monkeypatch.setattr(script, "SIZE", 64)
    try:
        script.measure(form)
        assert torch.backends.mkldnn.enabled is not form.endswith("native")
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True)
    seconds, memory = map(float, capsys.readouterr().out.split())
    assert seconds > 0.0
    assert memory >= 0.0


def test_what_dilation_leaves_of_weights(tmp_path):
    """The script runs on a folder of pictures; features are those at a stride of 32 where every block dilates."""
    script = load("dilated_blocks", "benchmarks")
    for split in ("train", "val"):
        for index, shade in enumerate((40, 200)):
            picture, labels = Image.new("RGB", (60, 50), (shade, 90, 255 - shade)), Image.new("L", (60, 50), index)
            for folder, image in (("images", picture), ("labels", labels)):
                (tmp_path / folder / split).mkdir(parents=True, exist_ok=True)
                image.save(tmp_path / folder / split / f"{index}.png")
    (tmp_path / "classes.txt").write_text("dark\nlight\n")
    splits = [open_data("folder", tmp_path, split) for split in ("train", "val")]
    torch.manual_seed(0)
    weights = cacseg.create_model("fcn", 2, "plain", backbone="mobilenetv2_035").backbone.net.state_dict()
    save_file(weights, tmp_path / "weights.safetensors")
    told = {
        "backbone_weights": tmp_path / "weights.safetensors",
        "padding": "same",
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
    }
    rows = {(row.stride, row.blocks): row for row in script.measure(splits, "mobilenetv2_035", **told)}
    assert set(rows) == set(script.FORMS)
    for (_, blocks), row in rows.items():
        assert (row.correlation > 0.9999) == (blocks == "all")
        assert row.miou > 90.0  # two plain colours
