"""`cacseg data check` on whole and on broken trees: everything wrong is said, nothing stops at the first."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import bad_files as bad
import data_trees as trees
import label_trees
from cacseg.cli import app, main
from cacseg.data import open_data
from cacseg.data.check import _check_pair, check_data, guess_name
from cacseg.data.check_sheet import NO_CLASS, list_faults
from cacseg.data.class_list import builtin_classes, parse_classes
from cacseg.data.layout import Rules
from cacseg.data.open import open_layout, open_split
from cacseg.data.sample import FaultyDataError
from cacseg.recipes.config import DataConfig
from cacseg.recipes.protocol import open_split as open_part
from command_line import run

runner = CliRunner()


def _break(root):
    """One of each, all in the train split of a folder with six images."""
    (root / "labels/train/day0/0.png").unlink()
    (root / "images/train/day1/1.png").unlink()
    trees.write(root / "labels/train/day0/2.png", np.zeros((5, 6), np.uint8))
    trees.write(root / "labels/train/day1/3.png", np.full(trees.SIZE, 77, np.uint8))
    path = root / "images/train/day0/4.tif"
    path.write_bytes(path.read_bytes()[:1000])
    return [
        "0.jpg has no labels",
        "1.png has no image",
        "one size",
        "4.tif is damaged, truncated",
        "holds the label 77",
    ]


@pytest.mark.parametrize(("workers", "packed"), [(0, False), (2, True)])
def test_everything_wrong_is_found(workers, packed, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("cacseg.data.check.PIECE", 2)  # so that there are pieces to share
    trees.folder(tmp_path / "data", count=6)
    expected = _break(tmp_path / "data")
    root = trees.zipped(tmp_path / "data", tmp_path / "data.zip") if packed else tmp_path / "data"
    calls = []
    report = check_data("folder", root, workers=workers, progress=lambda *call: calls.append(call))
    train, val = report.splits
    assert (train.split, train.images, val.split, val.images) == ("train", 4, "val", 6)
    assert len(train.problems) == len(expected)
    for problem, words in zip(train.problems, expected, strict=True):
        assert words in problem
    assert val.problems == []
    assert ("val", 6, 6) in calls
    assert [call[1] for call in calls if call[0] == "train"] == [1, 2, 3, 4]


def test_the_histogram_is_a_plain_count(tmp_path):
    raw = trees.folder(tmp_path, count=5)
    report = check_data("folder", tmp_path, ["train"], workers=0)
    (train,) = report.splits
    assert report.class_names == ("road", "car", "sky")
    for label in range(3):
        assert train.pixels[label] == sum((labels == label).sum() for labels in raw)
        assert train.images_with[label] == sum((labels == label).any() for labels in raw)
    assert train.pixels[255] == sum((labels == 255).sum() for labels in raw)
    assert train.sizes == {trees.SIZE: 5}
    assert report.problems == []
    assert train.sheet is not None


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("ade20k", trees.ade20k),
        ("cocostuff164k", trees.cocostuff),
        ("cityscapes", trees.cityscapes),
        ("pascal_context59", trees.pascal_context),
        ("folder", trees.folder),
        (
            "camvid",
            lambda root: trees.folder(
                root, "sky\nbuilding\npole\nroad\npavement\ntree\nsign\nfence\ncar\npedestrian\nbicyclist\n"
            ),
        ),
    ],
)
def test_layouts_are_guessed_and_fine(name, make, tmp_path):
    make(tmp_path / "data")
    assert guess_name(tmp_path / "data") == name
    report = check_data(name, tmp_path / "data", workers=0, sheet_rows=0)
    assert report.problems == []
    assert [split.images for split in report.splits] == [3, 3]


def test_the_command_says_what_is_wrong(tmp_path, capfd):
    trees.folder(tmp_path / "data", count=6)
    fine = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0", "-o", str(tmp_path / "out")])
    assert fine.exit_code == 0, fine.output
    assert "'folder'" in fine.output
    assert "nothing is wrong." in fine.output
    assert re.search(r"0 road\s+│\s+[\d,]+ │", fine.output)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["ok"] is True
    for split in ("train", "val"):
        with Image.open(tmp_path / f"out/{split}.png") as sheet:
            assert sheet.size[0] > 300

    expected = _break(tmp_path / "data")
    wrong = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0"])
    assert wrong.exit_code == 1
    assert "5 things wrong." in wrong.output
    for words in expected:
        assert words in wrong.output
    machine = runner.invoke(
        app, ["data", "check", str(tmp_path / "data"), "--workers", "0", "--json", "--split", "train"]
    )
    assert machine.exit_code == 1
    answer = json.loads(machine.stdout)
    assert [split["split"] for split in answer["splits"]] == ["train"]
    assert len(answer["splits"][0]["problems"]) == 5
    assert answer["ok"] is False


def test_the_sheet_shows_what_is_wrong_first(tmp_path, capfd):
    trees.folder(tmp_path, count=6)
    whole = check_data("folder", tmp_path, ["train"], workers=0).splits[0].sheet
    _break(tmp_path)
    layout, files, top, classes = open_layout("folder", tmp_path, Rules())
    data, listing = open_split(layout, files, top, classes, "train", Rules())
    broken = {k: found for k in range(len(data)) if isinstance(found := _check_pair(data, k), str)}
    faults = list_faults(data, listing, broken)
    problems = ("one size", "damaged", "label 77", "no labels", "no image")
    for fault, words in zip(faults, problems, strict=True):
        assert words in fault.problem
    assert [(one.image is None, one.labels is None) for one in faults[-2:]] == [(False, True), (True, False)]
    sheet = check_data("folder", tmp_path, ["train"], workers=0).splits[0].sheet
    assert (sheet == NO_CLASS).all(-1).sum() > 1000  # all 77s
    assert not (whole == NO_CLASS).all(-1).any()
    first = np.flatnonzero((sheet == NO_CLASS).all((-1,)).any(1))[0]
    assert first < 5 * 200  # among the first five rows
    for path in (tmp_path / "labels/train").rglob("*.png"):
        trees.write(path, np.full(trees.SIZE, 99, np.uint8))
    only = check_data("folder", tmp_path, ["train"], workers=0, sheet_rows=1).splits[0]
    assert only.sheet is not None  # of faults alone
    assert only.sheet.shape[0] < sheet.shape[0]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_that_training_needs_is_missing(split, tmp_path, capfd):
    trees.folder(tmp_path / "data")
    for kind in ("images", "labels"):
        (tmp_path / "data" / kind / split).rename(tmp_path / "data" / kind / "extra")
    done = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0"])
    assert done.exit_code == 1
    assert f"there is no split '{split}'" in done.output
    assert "nothing is wrong" not in done.output
    machine = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0", "--json"])
    answer = json.loads(machine.stdout)
    assert answer["ok"] is False
    assert len(answer["missing"]) == 1
    alone = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0", "--split", "extra"])
    assert alone.exit_code == 0, alone.output


FLAT = {
    "coco": lambda root, made: label_trees.coco(root, made, style="label_studio"),
    "labelme": lambda root, made: label_trees.labelme(root, made, folders=False),
    "voc": lambda root, made: label_trees.voc(root, made, lists=False),
    "label_studio": label_trees.label_studio,
}


@pytest.mark.parametrize("make", FLAT.values(), ids=FLAT)
def test_check_and_train_agree_on_what_nobody_has_split(make, tmp_path, capfd):
    made = label_trees.scenes(("train",), count=3)
    make(tmp_path / "data", made)
    config = DataConfig(name="folder", root=str(tmp_path / "data"), crop=(8, 8))
    done = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0"])
    assert done.exit_code == 1
    assert "nothing is wrong" not in done.output
    assert "--set data.val_share=0.2" in " ".join(done.output.split())
    with pytest.raises(ValueError, match=r"data\.val_share") as refused:
        open_part(config, "train")
    assert not isinstance(refused.value, FaultyDataError)  # no way back to the check, which can say no more
    held_out = config.model_copy(update={"val_share": 0.2})
    assert sum(len(open_part(held_out, split)) for split in ("train", "val")) == 3
    machine = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0", "--json"])
    answer = json.loads(machine.stdout)
    assert (answer["ok"], answer["unsplit"]) == (False, True)
    asked = runner.invoke(app, ["data", "check", str(tmp_path / "data"), "--workers", "0", "--split", "all", "--json"])
    assert asked.exit_code == 0
    assert json.loads(asked.stdout)["ok"] is True


def test_one_image_cannot_be_split(tmp_path):
    label_trees.labelme(tmp_path, label_trees.scenes(("all",), count=1), folders=False)
    assert len(check_data("folder", tmp_path, workers=0, sheet_rows=0).problems) == 1
    with pytest.raises(ValueError, match="2 images"):
        open_part(DataConfig(name="folder", root=str(tmp_path), crop=(8, 8), val_share=0.2), "train")


@pytest.mark.parametrize(("images", "named"), [(20, True), (12, False)])
def test_classes_that_few_images_have_are_named(images, named, tmp_path):
    """The third class in three images; where all are few, that says nothing."""
    (tmp_path / "classes.txt").write_text("road\nsky\npole\n")
    for index in range(images):
        labels = np.zeros(trees.SIZE, np.uint8)
        labels[:4], labels[8:10] = 1, 2 if index < 3 else 0
        trees.write(tmp_path / f"images/train/{index}.png", trees.image(index))
        trees.write(tmp_path / f"labels/train/{index}.png", labels)
    notes = check_data("folder", tmp_path, workers=0, sheet_rows=0).notes
    found = [note for note in notes if "data.balance" in note]
    assert len(found) == named
    assert not named or ("pole (3)" in found[0] and "sky" not in found[0] and f"{images} images" in found[0])


CAMVID = builtin_classes("camvid")
COLOURED = "".join(f"{name} {k} {2 * k} 9\n" for k, name in enumerate(CAMVID.names))


@pytest.mark.parametrize(
    ("classes", "coloured"),
    [
        ("road\ncar\nsky\n", False),
        ("road 1 2 3\ncar 4 5 6\nsky 7 8 9\n", False),
        ("road 1 2 3\ncar 4 5 6\nsky 7 8 9\n", True),
        ("tumour\n", False),
        ("\n".join(CAMVID.names) + "\n", False),
        (COLOURED, False),
        (COLOURED, True),
    ],
)
def test_check_and_train_read_a_folder_alike(classes, coloured, tmp_path):
    """Under the name that is guessed and as 'folder': the same names, colours and labels."""
    trees.folder(tmp_path, classes)
    if coloured:
        palette = np.array([*parse_classes(classes, "").palette, *[(0, 0, 0)] * 256], np.uint8)
        for path in (tmp_path / "labels").rglob("*.png"):
            values = np.array(Image.open(path))
            Image.fromarray(palette[np.where(values == 255, 0, values)]).save(path)
    report = check_data(guess_name(tmp_path), tmp_path, workers=0, sheet_rows=0)
    data = open_data("folder", tmp_path, "train")
    assert report.class_names == data.class_names
    assert report.palette == data.palette
    if report.problems:  # what the check refuses, training refuses
        assert classes == "tumour\n"
        return
    pixels = sum(np.bincount(data.read(k).labels.ravel(), minlength=256) for k in range(len(data)))
    np.testing.assert_array_equal(report.splits[0].pixels, pixels)
    described = report.as_json()["classes"]
    assert [one["name"] for one in described] == list(data.class_names)
    assert [tuple(one["colour"]) for one in described] == list(data.palette)


def test_without_a_list_of_classes_both_refuse(tmp_path):
    trees.folder(tmp_path)
    (tmp_path / "classes.txt").unlink()
    for attempt in (lambda: check_data(guess_name(tmp_path), tmp_path), lambda: open_data("folder", tmp_path, "train")):
        with pytest.raises(FileNotFoundError, match=r"no .*classes\.txt"):
            attempt()


def test_no_pixel_of_the_second_class(tmp_path):
    """Which training refuses."""
    trees.folder(tmp_path, "healthy\ntumour\n")
    for path in (tmp_path / "labels").rglob("*.png"):
        trees.write(path, np.zeros(trees.SIZE, np.uint8))
    train, val = check_data("folder", tmp_path, workers=0).splits
    assert len(train.problems) == 1
    assert "'tumour' (1)" in train.problems[0]
    assert not val.problems


def test_results_are_not_overwritten(tmp_path, monkeypatch, capsys):
    trees.folder(tmp_path / "data")
    arguments = ["cacseg", "data", "check", str(tmp_path / "data"), "--workers", "0", "-o", str(tmp_path / "out")]
    assert runner.invoke(app, arguments[1:]).exit_code == 0
    before = (tmp_path / "out/report.json").read_bytes()
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "report.json exists already" in capsys.readouterr().err
    assert (tmp_path / "out/report.json").read_bytes() == before
    assert runner.invoke(app, [*arguments[1:], "--overwrite"]).exit_code == 0


def test_lists_and_names_that_contradict_are_problems_too(tmp_path):
    trees.folder(tmp_path / "folder")
    trees.write(tmp_path / "folder/images/train/day0/0.png", trees.image(0))
    trees.write(tmp_path / "folder/labels/train/day1/1.bmp", np.zeros(trees.SIZE, np.uint8))
    train, val = check_data("folder", tmp_path / "folder", workers=0).splits
    labels, images = train.problems
    assert all(name in labels for name in ("labels/train/day1/1.png", "labels/train/day1/1.bmp"))
    assert all(name in images for name in ("images/train/day0/0.jpg", "images/train/day0/0.png"))
    assert not val.problems
    trees.pascal_context(tmp_path)
    (tmp_path / "VOCdevkit/VOC2010/JPEGImages/2008_000001.jpg").unlink()
    train, val = check_data("pascal_context60", tmp_path, workers=0).splits
    assert len(train.problems) == 1
    assert "2008_000001.jpg" in train.problems[0]
    assert train.pixels.sum() == 2 * trees.SIZE[0] * trees.SIZE[1]


def test_an_empty_split_and_nothing_but_ignored(tmp_path):
    trees.folder(tmp_path)
    for path in (tmp_path / "labels/val").rglob("*.png"):
        trees.write(path, np.full(trees.SIZE, 255, np.uint8))
    for path in [*(tmp_path / "images/train").rglob("*.*"), *(tmp_path / "labels/train").rglob("*.*")]:
        path.unlink()
    train, val = check_data("folder", tmp_path, workers=0).splits
    (empty,), (ignored,) = train.problems, val.problems
    assert all(fact in empty for fact in ("'train'", str(tmp_path), "empty"))
    assert all(fact in ignored for fact in ("'val'", "ignored"))


def test_what_cannot_be_checked(tmp_path):
    with pytest.raises(ValueError, match=r"has no known layout.*images,labels.*cacseg data list.*ade20k"):
        guess_name(tmp_path)
    trees.folder(tmp_path)
    with pytest.raises(ValueError, match=r"no split 'test'"):
        check_data("folder", tmp_path, ["test"])
    with pytest.raises(ValueError, match=r"'synthetic' has no files to check"):
        check_data("synthetic", tmp_path)
    with pytest.raises(ValueError, match=r"must be no class number"):
        check_data("folder", tmp_path, rules=Rules(1))
    with pytest.raises(ValueError, match=r"ignore_index belongs to 'folder'; what 'camvid' ignores is known"):
        check_data("camvid", tmp_path, rules=Rules(3))


def test_labels_of_a_split_without_images_are_found(tmp_path):
    trees.folder(tmp_path)
    (tmp_path / "images/val").rename(tmp_path / "images/validation")
    found = {one.split: one.problems for one in check_data("folder", tmp_path, workers=0).splits}
    assert found["train"] == []
    assert any("has no image" in problem for problem in found["val"])
    assert any("has no labels" in problem for problem in found["validation"])


def test_the_list_names_every_data_set():
    rows = json.loads(runner.invoke(app, ["data", "list", "--json"]).stdout)
    assert {row["name"]: row["classes"] for row in rows} == {
        "ade20k": 150, "cocostuff164k": 171, "cityscapes": 19, "pascal_context59": 59, "pascal_context60": 60,
        "camvid": 11, "msrc21": 21, "folder": None, "synthetic": 8,
        "yolo": None, "coco": None, "labelme": None, "voc": None, "roboflow_masks": None, "label_studio": None,
    }  # fmt: skip
    table = runner.invoke(app, ["data", "list"]).output
    assert "yours" in table
    assert "synthetic" in table


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
@pytest.mark.parametrize("kind", ["image", "labels"])
def test_files_that_would_take_it_down_are_named(kind, tmp_path):
    """Claims of any size, pipes and links among images, and among labels; the others are counted."""
    trees.folder(tmp_path, count=2)
    images, labels = tmp_path / "images/train", tmp_path / "labels/train"
    folder, other = (images, labels) if kind == "image" else (labels, images)
    (tmp_path / "traps").mkdir()
    words = bad.make_traps(tmp_path / "traps")
    for name in words:
        (tmp_path / "traps" / name).rename(folder / name)
    for k, (name, content) in enumerate(bad.CLAIMS.items()):
        suffix = Path(name).suffix if kind == "image" or name.endswith(("png", "tif", "bmp")) else ".png"
        (folder / f"{k}{suffix}").write_bytes(content)
        words[f"{k}{suffix}"] = "--max-pixels"
    (folder / "grey.png").write_bytes(bad.png(60_000, 60_000, kind=0))
    words["grey.png"] = "60000x60000"
    for name in words:
        picture = trees.image(0) if kind == "labels" else np.zeros(trees.SIZE, np.uint8)
        trees.write(other / f"{Path(name).stem}.png", picture)
    report = check_data("folder", tmp_path, ["train"], workers=0, sheet_rows=2)
    (split,) = report.splits
    assert len(split.problems) == len(words)
    for name, word in words.items():
        (problem,) = (one for one in split.problems if f"/train/{name}" in one)
        assert word in problem
        assert "\n" not in problem
    assert split.images - len(words) == sum(split.sizes.values()) > 0


def test_the_limit_of_pixels_is_given(tmp_path, monkeypatch, capsys):
    trees.folder(tmp_path)
    pixels = trees.SIZE[0] * trees.SIZE[1]
    found = check_data("folder", tmp_path, ["train"], rules=Rules(max_pixels=pixels - 1), workers=0, sheet_rows=0)
    assert all("--max-pixels" in problem for problem in found.problems)
    assert len(found.problems) == found.splits[0].images
    assert run("data", "check", tmp_path, "--max-pixels", pixels, capsys=capsys, monkeypatch=monkeypatch).code == 0
    refused = run("data", "check", tmp_path, "--max-pixels", pixels - 1, capsys=capsys, monkeypatch=monkeypatch)
    assert refused.code == 1
    assert f"{trees.SIZE[1]}x{trees.SIZE[0]} pixels" in refused.out
    out = run(
        "data", "convert", tmp_path, "-o", tmp_path / "out", "--max-pixels", 10, capsys=capsys, monkeypatch=monkeypatch
    )
    assert out.code == 1
    assert "--max-pixels" in out.err
    again = run("data", "convert", tmp_path, "-o", tmp_path / "out", capsys=capsys, monkeypatch=monkeypatch)
    assert again.code == 0  # what was stopped goes on with another limit
