"""What is wrong with a folder ends a run before it starts, and the error names the command that lists it all."""

import numpy as np
import pytest

import data_trees as trees
from cacseg.data.sample import FaultyDataError
from cacseg.recipes.build import run
from cacseg.recipes.config import change
from cacseg.recipes.named import folder

TINY = {
    "model.name": "fcn",
    "model.backbone": "test_resnet",
    "model.head_channels": 16,
    "data.crop": (16, 16),
    "training.batch": 2,
    "training.accelerator": "cpu",
    "training.workers": 0,
    "schedule.steps": 2,
}


def out_of_range(root):
    for path in (root / "labels/train").rglob("*.png"):
        trees.write(path, np.full(trees.SIZE, 77, np.uint8))


def sizes_differ(root):
    trees.write(root / "labels/train/day0/0.png", np.zeros((5, 6), np.uint8))


def unreadable(root):
    path = root / "images/train/day0/0.jpg"
    path.write_bytes(path.read_bytes()[:30])


def unreadable_in_validation(root):
    path = root / "images/val/day0/0.jpg"
    path.write_bytes(path.read_bytes()[:30])


def unpaired(root):
    (root / "labels/val/day0/0.png").unlink()


def no_validation(root):
    for kind in ("images", "labels"):
        (root / kind / "val").rename(root / kind / "test")


@pytest.mark.parametrize(
    "spoil", [out_of_range, sizes_differ, unreadable, unreadable_in_validation, unpaired, no_validation]
)
def test_an_error_names_the_command(spoil, tmp_path, capfd):
    root = tmp_path / "my data"
    trees.folder(root)
    spoil(root)
    config = change(folder(), {**TINY, "data.root": str(root)})
    with pytest.raises(FaultyDataError, match=f"`cacseg data check '{root}'`"):
        run(config, tmp_path / "run", report=lambda text: None, progress=False)
    assert not (tmp_path / "run/config.json").exists()


def test_a_worker_s_error_too(tmp_path, capfd):
    """Found in training, by a process that reads ahead."""
    trees.folder(tmp_path / "data", count=6)
    config = change(folder(), {**TINY, "data.root": str(tmp_path / "data"), "training.workers": 1})
    config = change(config, {"schedule.steps": 6, "training.validate_every": 6})

    def spoil(text):
        if "will take about" in text:
            out_of_range(tmp_path / "data")

    with pytest.raises(FaultyDataError, match=r"holds the label 77 [^\n]*`cacseg data check \S+/data`") as found:
        run(config, tmp_path / "run", report=spoil, progress=False)
    assert "Traceback" not in str(found.value)


def test_a_data_set_with_a_name(tmp_path):
    trees.ade20k(tmp_path / "data")
    sorted((tmp_path / "data").rglob("annotations/training/*.png"))[0].unlink()
    config = change(folder(), {**TINY, "data.name": "ade20k", "data.root": str(tmp_path / "data")})
    with pytest.raises(FaultyDataError, match=r"`cacseg data check \S+/data --name ade20k`"):
        run(config, tmp_path / "run", report=lambda text: None, progress=False)


def test_a_limit_of_pixels(tmp_path):
    trees.folder(tmp_path / "data")
    config = change(folder(), {**TINY, "data.root": str(tmp_path / "data"), "data.max_pixels": 100})
    with pytest.raises(FaultyDataError, match=r"pixels, more than 0\.0001 mega.*data\.max_pixels.*--max-pixels 100`"):
        run(config, tmp_path / "run", report=lambda text: None, progress=False)
