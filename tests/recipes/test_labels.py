"""CamVid, and a small set like it, in the formats of labelling tools: the same labels, and a run that starts."""

import shutil
from functools import partial

import numpy as np
import pytest

import label_trees
import shared_files
from cacseg.data import open_data
from cacseg.data.class_list import builtin_classes
from cacseg.recipes import change, find_recipe
from cacseg.recipes.build import run
from cacseg.recipes.files import read_config
from cacseg.recipes.protocol import open_split

SMALL = {
    "model.name": "fcn",
    "model.backbone": "test_resnet",
    "model.head_channels": 16,
    "data.crop": [32, 32],
    "schedule.steps": 2,
    "schedule.warmup_steps": 0,
    "training.batch": 2,
    "training.workers": 0,
    "training.validate_every": 1,
    "training.accelerator": "cpu",
    "training.loggers": ["csv"],
}
WRITERS = {
    "coco": partial(label_trees.coco, kind="polygon"),
    "labelme": label_trees.labelme,
    "voc": label_trees.voc,
    "yolo": label_trees.yolo,
}


def _run(root, folder, words, **changes):
    config = change(find_recipe("folder"), {**SMALL, "data.root": str(root), **changes})
    return run(config, folder, recipe="folder", report=words.append, progress=False)


@pytest.mark.skipif(not shared_files.CAMVID.is_dir(), reason=shared_files.MISSING)
@pytest.mark.parametrize("name", WRITERS)
def test_camvid_comes_back_and_trains(name, tmp_path):
    known = builtin_classes("camvid")
    made = []
    for split in ("train", "val"):
        data = open_data("camvid", shared_files.CAMVID, split)
        made += [(split, data.image_name(k), *data.read(k)) for k in (0, len(data) // 2)]
    more = {"given": known.palette} if name == "voc" else {}
    WRITERS[name](tmp_path / "data", made, names=known.names, **more)
    rules = {} if name == "voc" else {"uncovered": "ignore"}
    data = open_data("folder", tmp_path / "data", "train", **rules)
    assert data.name == name
    place = np.full(256, 255, np.uint8)
    there = {one: k for k, one in enumerate(data.class_names)}
    place[: len(known.names)] = [there.get(one, 255) for one in known.names]
    expected = {one[1]: one[3] for one in made}
    for k in range(len(data)):
        np.testing.assert_array_equal(data.read(k).labels, place[expected[data.image_name(k)]])
    settings = {f"data.{key}": value for key, value in rules.items()}
    assert _run(tmp_path / "data", tmp_path / "run", [], **settings).step == 2


def test_a_run_on_images_that_nobody_has_split(tmp_path):
    label_trees.labelme(tmp_path / "data", label_trees.scenes(("all",), count=6, size=(40, 48)), folders=False)
    with pytest.raises(ValueError, match=r"no split 'train'.*data\.val_share"):
        _run(tmp_path / "data", tmp_path / "none", [])
    words = []
    assert _run(tmp_path / "data", tmp_path / "run", words, **{"data.val_share": 0.3}).step == 2
    data = read_config(tmp_path / "run").config.data
    assert data.val_share == 0.3
    train, val = (open_split(data, split) for split in ("train", "val"))
    assert len(train) + len(val) == 6
    assert any(f"{len(val)} of 6 images" in one for one in words)
    assert train.class_names[0] == "background"
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ValueError, match=r"val_group belongs to data\.val_share"):
        _run(tmp_path / "data", tmp_path / "run", [], **{"data.val_group": "(a)"})
