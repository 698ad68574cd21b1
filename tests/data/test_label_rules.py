"""The rules by which shapes become labels, each a setting: overlaps, crowds, empty classes, shapes to be ignored."""

import json

import numpy as np
import pytest

import data_trees as trees
import label_trees
from cacseg.cli import main
from cacseg.data import open_data
from cacseg.data.check import check_data
from cacseg.data.layout import Rules
from cacseg.data.open import open_layout
from cacseg.recipes.build import check_hint
from cacseg.recipes.config import DataConfig
from cacseg.recipes.protocol import open_split

IGNORED = ("__ignore__", "_ignore_", "ignore")


def _box(left, top, right, bottom):
    return [left, top, right, top, right, bottom, left, bottom]


def _coco(root, annotations, names=("road", "car")):
    """Annotations: class, outline, crowd. Ids start at 5, with gaps."""
    trees.write(root / "images/train/a.png", trees.image(0))
    height, width = trees.SIZE
    content = {
        "images": [{"id": 3, "file_name": "a.png", "height": height, "width": width}],
        "categories": [{"id": 5 + 4 * k, "name": name} for k, name in enumerate(names)],
        "annotations": [
            {"id": k, "image_id": 3, "category_id": 5 + 4 * label, "segmentation": outline, "iscrowd": crowd}
            for k, (label, outline, crowd) in enumerate(annotations)
        ],
    }
    trees.write_text(root / "annotations/instances_train.json", json.dumps(content))
    return root


def test_the_smaller_annotation_is_on_top_not_the_smaller_part(tmp_path):
    """Two parts of 6x6 are a road of 72 pixels, larger than the car of 7x7 that lies over one of them."""
    parts = [_box(2, 2, 8, 8), _box(20, 10, 26, 16)]
    _coco(tmp_path, [(1, [_box(1, 1, 8, 8)], 0), (0, parts, 0)])
    expected = np.zeros(trees.SIZE, np.uint8)
    expected[2:8, 2:8] = expected[10:16, 20:26] = 1
    expected[1:8, 1:8] = 2
    data = open_data("coco", tmp_path, "train", overlap="smaller")
    assert data.class_names == ("background", "road", "car")
    np.testing.assert_array_equal(data.read(0).labels, expected)
    expected[2:8, 2:8] = 1
    np.testing.assert_array_equal(open_data("coco", tmp_path, "train").read(0).labels, expected)


def test_parts_without_an_area_do_not_join_annotations(tmp_path):
    """The first part of the second annotation is left out; what follows is still its own, not the first one's."""
    _coco(tmp_path, [(0, [_box(0, 0, 9, 9)], 0), (1, [[1, 1, 5, 5], _box(2, 2, 5, 5)], 0)])
    labels = open_data("coco", tmp_path, "train").read(0).labels
    assert np.bincount(labels.ravel(), minlength=3)[1:].tolist() == [81 - 9, 9]


@pytest.mark.parametrize("runs", [False, True])
def test_crowds(runs, tmp_path):
    height, width = trees.SIZE
    outline = {"size": [height, width], "counts": [0, 5 * height, (width - 5) * height]} if runs else None
    _coco(tmp_path, [(1, [_box(8, 2, 12, 6)], 0), (0, outline or [_box(0, 0, 5, height)], 1)])
    usual = open_data("coco", tmp_path, "train")
    assert (usual.read(0).labels[:, :5] == 1).all()
    ignored = open_data("coco", tmp_path, "train", crowd="ignore")
    assert ignored.class_names == usual.class_names == ("background", "road", "car")
    expected = np.where(usual.read(0).labels == 1, 255, usual.read(0).labels)
    np.testing.assert_array_equal(ignored.read(0).labels, expected)
    assert (expected == 255).sum() == 5 * height
    dropped = open_data("coco", tmp_path, "train", crowd="ignore", empty_classes="drop")
    assert dropped.class_names == ("background", "car")
    assert open_data("coco", tmp_path, "train", empty_classes="drop").class_names == usual.class_names


EMPTY = {"coco": label_trees.coco, "labelme": label_trees.labelme, "yolo": label_trees.yolo}


@pytest.mark.parametrize("name", EMPTY)
def test_classes_that_no_image_has(name, tmp_path):
    """'sky' is in the list; the validation split alone has 'car', which both keep."""
    made = label_trees.scenes(count=1)
    for k, (_, _, _, labels) in enumerate(made):
        labels[labels == 2] = 255
        labels[labels == (1 if k == 0 else 0)] = 255
    EMPTY[name](tmp_path, made)
    if name == "labelme":
        trees.write_text(tmp_path / "labels.txt", "__ignore__\nroad\ncar\nsky\n")
    for split, only in (("train", "road"), ("val", "car")):
        kept = open_data("folder", tmp_path, split, uncovered="ignore")
        dropped = open_data("folder", tmp_path, split, uncovered="ignore", empty_classes="drop")
        assert kept.class_names == ("road", "car", "sky")
        assert dropped.class_names == ("road", "car")
        labels = dropped.read(0).labels
        assert np.unique(labels).tolist() == [dropped.class_names.index(only), 255]
        np.testing.assert_array_equal(labels, kept.read(0).labels)


def test_empty_classes_of_brushes_and_a_background(tmp_path):
    made = label_trees.scenes(("all",), count=1)
    label_trees.label_studio(tmp_path / "brushes", made)
    assert open_data("folder", tmp_path / "brushes", "all", uncovered="ignore", empty_classes="drop").class_names == (
        *("car", "road", "sky"),
    )
    _coco(tmp_path / "coco", [(1, [_box(1, 1, 5, 5)], 0)], ("_background_", "car", "bus"))
    assert open_data("coco", tmp_path / "coco", "train", empty_classes="drop").class_names == ("_background_", "car")
    empty = _coco(tmp_path / "none", [])
    with pytest.raises(ValueError, match="names no class"):
        open_data("coco", empty, "train", empty_classes="drop")


@pytest.mark.parametrize("ignored", IGNORED)
def test_shapes_to_be_ignored(ignored, tmp_path):
    _coco(tmp_path / "coco", [(0, [_box(0, 0, 9, 9)], 0), (1, [_box(2, 2, 4, 5)], 0)], ("road", ignored))
    shapes = [("road", _box(0, 0, 9, 9)), (ignored, _box(2, 2, 4, 5))]
    trees.write(tmp_path / "labelme/a.png", trees.image(0))
    label_trees.labelme_file(
        tmp_path / "labelme/a.json",
        [{"label": name, "points": np.reshape(points, (-1, 2)).tolist()} for name, points in shapes],
    )
    trees.write(tmp_path / "yolo/images/train/a.png", trees.image(0))
    height, width = trees.SIZE
    for value, points in enumerate(one for _, one in shapes):
        numbers = " ".join(f"{x:.8f}" for x in (np.reshape(points, (-1, 2)) / (width, height)).ravel())
        with (tmp_path / "yolo/lines").open("a") as lines:
            lines.write(f"{value} {numbers}\n")
    trees.write_text(tmp_path / "yolo/labels/train/a.txt", (tmp_path / "yolo/lines").read_text())
    trees.write_text(tmp_path / "yolo/data.yaml", f"path: .\ntrain: images/train\nnames: [road, {ignored}]\n")
    trees.write(tmp_path / "label_studio/images/a.png", trees.image(0))
    results = []
    for label, box in (("road", (0, 9, 0, 9)), (ignored, (2, 5, 2, 4))):
        mask = np.zeros(trees.SIZE, np.uint8)
        mask[box[0] : box[1], box[2] : box[3]] = 255
        trees.write(tmp_path / f"label_studio/masks/task-1-annotation-2-by-1-tag-{label}-0.png", mask)
        region = {"format": "rle", "rle": [0], "brushlabels": [label]}
        results.append({"from_name": "tag", "to_name": "image", "type": "brushlabels", "value": region})
    task = {"id": 1, "file_upload": "a.png", "data": {"image": "a.png"}, "annotations": [{"id": 2, "result": results}]}
    trees.write_text(tmp_path / "label_studio/project.json", json.dumps([task]))
    for name, split in (("coco", "train"), ("labelme", "all"), ("yolo", "train"), ("label_studio", "all")):
        data = open_data(name, tmp_path / name, split)
        assert data.class_names == ("background", "road")
        labels = data.read(0).labels
        assert (labels[2:5, 2:4] == 255).all()
        assert [(labels == value).sum() for value in (1, 255)] == [81 - 6, 6]


@pytest.mark.parametrize("ignored", IGNORED)
def test_a_colour_to_be_ignored(ignored, tmp_path):
    made = label_trees.scenes()
    label_trees.voc(tmp_path, made)
    listed = tmp_path / "labelmap.txt"
    listed.write_text(listed.read_text().replace("sky:", f"{ignored}:"))
    data = open_data("voc", tmp_path, "train")
    assert data.class_names == ("road", "car")
    expected = np.where(made[0][3] == 2, 255, made[0][3])
    np.testing.assert_array_equal(data.read(0).labels, expected)


@pytest.mark.parametrize("rule", [{"crowd": "ignore"}, {"empty_classes": "drop"}, {"overlap": "smaller"}])
def test_rules_belong_to_shapes(rule, tmp_path):
    trees.folder(tmp_path)
    with pytest.raises(ValueError, match=r"overlap, uncovered, crowd and empty_classes.*'folder'"):
        open_layout("folder", tmp_path, Rules(**rule))


def test_the_commands_take_the_rules(tmp_path, monkeypatch, capsys):
    root = _coco(tmp_path / "data", [(0, [_box(0, 0, 9, 9)], 1), (1, [_box(20, 2, 24, 5)], 0)], ("road", "car", "sky"))
    data = DataConfig(name="folder", root=str(root), crop=(8, 8), crowd="ignore", empty_classes="drop")
    opened = open_split(data, "train")
    assert opened.class_names == ("background", "car")
    assert (opened.read(0).labels == 255).sum() == 81
    hint = check_hint(data)
    assert "--crowd ignore" in hint
    assert "--empty-classes drop" in hint
    assert "--overlap" not in hint
    options = ["--crowd", "ignore", "--empty-classes", "drop"]

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["cacseg", "data", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr()

    code, said = run("check", root, "--split", "train", "--workers", 0, "--json", *options)
    assert code == 0
    split = json.loads(said.out)["splits"][0]
    assert split["ignored_pixels"] == 81
    assert [one["name"] for one in split["classes"]] == ["background", "car"]
    assert run("convert", root, "-o", tmp_path / "out", *options)[0] == 0
    assert open_data("folder", tmp_path / "out", "train").class_names == ("background", "car")
    for option in ("--crowd", "--empty-classes"):
        code, said = run("check", root, option, "both")
        assert code == 2
        assert option in said.err


def test_ids_with_gaps_are_numbered_without(tmp_path):
    _coco(tmp_path, [(1, [_box(0, 0, 9, 9)], 0)])
    report = check_data("coco", tmp_path, ["train"], workers=0, sheet_rows=0)
    assert report.class_names == ("background", "road", "car")
    assert report.splits[0].pixels[2] == 81
