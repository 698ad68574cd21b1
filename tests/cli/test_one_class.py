"""A folder whose classes.txt has one line, from the check to the prediction, as a user runs it."""

import json

import numpy as np
import pytest
from PIL import Image

import cacseg
from command_line import run

SETTINGS = (
    *(
        "model.name=fcn",
        "model.backbone=test_resnet",
        "model.head_channels=16",
        "data.crop=32",
        "schedule.steps=2",
        "schedule.warmup_steps=0",
    ),
    *("training.batch=2", "training.workers=0", "training.accelerator=cpu", "training.loggers=csv"),
)


def make_folder(root, foreground=1):
    """Dark discs on a light ground; the discs are `foreground` in the labels."""
    numbers = np.random.default_rng(0)
    rows, columns = np.ogrid[:40, :48]
    for split, count in (("train", 3), ("val", 2)):
        for index in range(count):
            disc = (rows - numbers.integers(12, 28)) ** 2 + (columns - numbers.integers(12, 36)) ** 2 < 100
            image = (200 - 150 * disc[..., None] + numbers.integers(0, 50, (40, 48, 3))).astype(np.uint8)
            for kind, array in (("images", image), ("labels", (disc * foreground).astype(np.uint8))):
                (root / kind / split).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(root / kind / split / f"{index}.png")
    (root / "classes.txt").write_text("disc\n")
    return root


def train(root, folder, **options):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return run("train", "folder", "--root", root, "-o", folder, "--no-progress", *settings, **options)


def test_it_is_checked_trained_scored_and_predicted(tmp_path, capsys, monkeypatch):
    options = {"capsys": capsys, "monkeypatch": monkeypatch}
    root, folder, out = make_folder(tmp_path / "data"), tmp_path / "run", tmp_path / "out"
    checked = run("data", "check", root, "--workers", "0", "--json", **options)
    assert checked.code == 0, checked.err
    classes = json.loads(checked.out)["splits"][0]["classes"]
    assert [one["name"] for one in classes] == ["background", "disc"]
    assert all(one["images"] == 3 for one in classes)

    trained = train(root, folder, **options)
    assert trained.code == 0, trained.err
    model = cacseg.load(folder / "last.safetensors")
    assert (model.num_classes, model.class_names) == (2, ["background", "disc"])

    scored = run("eval", folder, "--json", "--workers", "0", "--device", "cpu", **options)
    assert scored.code == 0, scored.err
    assert [one["name"] for one in json.loads(scored.out)["outputs"]["context"]["classes"]] == ["background", "disc"]

    predicted = run("predict", folder, root / "images/val", "-o", out, "--workers", "0", "--device", "cpu", **options)
    assert predicted.code == 0, predicted.err
    for index in range(2):
        with Image.open(out / "masks" / f"{index}.png") as mask:
            assert set(np.unique(np.asarray(mask)).tolist()) <= {0, 1}


@pytest.mark.parametrize("classes", ["disc\n", "background\ndisc\n"])
def test_masks_of_0_and_255_are_refused_with_a_remedy(classes, tmp_path, capsys, monkeypatch):
    options = {"capsys": capsys, "monkeypatch": monkeypatch}
    root = make_folder(tmp_path / "data", foreground=255)
    (root / "classes.txt").write_text(classes)
    checked = run("data", "check", root, "--workers", "0", **options)
    trained = train(root, tmp_path / "run", **options)
    assert (checked.code, trained.code) == (1, 2)
    for text in (checked.out, trained.err):
        assert "'disc' (1)" in text
        assert "write 1 there: 255 is ignored" in text
    assert not (tmp_path / "run").exists()
