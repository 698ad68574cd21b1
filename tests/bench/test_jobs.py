"""`cacseg bench train` and `cacseg bench predict`: every row runs for real, and the loop does the same work."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from cacseg.bench.data import write_generated
from cacseg.bench.jobs import FLOAT_LOOP, LOOP, Rate, _Crops, compare_rates, random_model
from cacseg.bench.mmsegmentation import MmsegCrops
from cacseg.cli import app
from cacseg.recipes import change, find_recipe
from cacseg.recipes.protocol import open_split

SMALL = ["--set", "model.name=fcn", "--set", "model.backbone=mobilenetv2_035", "--set", "model.output_stride=32"]
SMALL += ["--set", "model.head_channels=16"]


def test_rates_are_compared_within_rounds():
    first, second = iter([10.0, 20.0, 30.0]), iter([20.0, 20.0, 90.0])
    rates = compare_rates({"a": lambda: next(first), "b": lambda: next(second)}, 3)
    assert rates == {"a": Rate(20.0, 1.0, 1.0, 1.0), "b": Rate(20.0, 2.0, 1.0, 3.0)}


@pytest.mark.slow
def test_training_is_timed_beside_a_loop(tmp_path):
    command = ["bench", "train", *SMALL, "--set", "data.crop=64,96", "--set", "training.batch=2", "--set"]
    command += ["training.workers=1", "--set", "training.accelerator=cpu", "--steps", "3", "--rounds", "1"]
    command += ["--set", "training.precision=bf16", "--json"]
    result = CliRunner().invoke(app, [*command, str(tmp_path / "train.json")], catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads((tmp_path / "train.json").read_text())
    ours = [f"cacseg train, {kind}, images read by workers" for kind in ("plain", "tuned")]
    assert list(found["rows"]) == [LOOP, FLOAT_LOOP, *ours]
    assert all(row["images_per_second"] > 0.0 for row in found["rows"].values())
    assert found["rows"][LOOP]["ratio"] == 1.0


@pytest.mark.parametrize("transforms", ["torchvision", "mmseg"])
def test_the_loop_s_crops_are_of_the_images(transforms, tmp_path):
    """Labels follow their pixels, and what lies outside of the image is ignored."""
    if transforms == "mmseg":
        pytest.importorskip("mmseg")
    write_generated(tmp_path, 2, size=(64, 96))
    changes = {"data.name": "ade20k", "data.root": str(tmp_path), "data.ratios": (1.0, 1.0), "data.flip": 0.0}
    config = change(find_recipe("folder"), {**changes, "data.crop": (80, 96), "data.distort": False})
    data = open_split(config.data, "train")
    makes = {
        "torchvision": lambda: _Crops(data, config, (0.0,) * 3, (1.0,) * 3),
        "mmseg": lambda: MmsegCrops(data, config),
    }
    image, labels = makes[transforms]()[1]
    assert (image.shape, labels.shape, labels.dtype) == ((3, 80, 96), (80, 96), torch.int64)
    inside = [row for row in range(80) if (labels[row] != data.ignore_index).any()]
    top, bottom = inside[0], inside[-1] + 1
    truth = data.read(1)
    assert bottom - top == 64
    assert np.array_equal(labels[top:bottom].numpy(), truth.labels)
    pixels = image if image.dtype == torch.uint8 else (255 * image).round().byte()
    seen = pixels[:, top:bottom].permute(1, 2, 0).numpy()
    assert np.array_equal(seen, truth.image)


def test_the_model_that_predicts_is_the_recipe_s():
    recipe = find_recipe("folder")
    assert random_model(change(recipe, {"model.head_channels": 16}).model, 7).classifier.weight.shape[:2] == (7, 16)
    assert random_model(recipe.model, 3).classifier.in_channels == recipe.model.head_channels


def test_prediction_is_timed_beside_a_loop(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(2):
        Image.fromarray(rng.integers(0, 255, (48, 64, 3), np.uint8)).save(tmp_path / "images" / f"{number}.jpg")
    command = ["bench", "predict", str(tmp_path / "images"), *SMALL, "--device", "cpu", "--rounds", "1"]
    command += ["--precision", "bf16", "--json"]
    result = CliRunner().invoke(app, [*command, str(tmp_path / "predict.json")], catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads((tmp_path / "predict.json").read_text())
    assert list(found["rows"]) == [LOOP, FLOAT_LOOP, "cacseg predict, masks", "cacseg predict, masks and overlays"]
    assert found["images"] == 2
