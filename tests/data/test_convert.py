"""`cacseg data convert`: any layout as a folder of index PNGs or as COCO, resumed, checked."""

import json

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

import data_trees as trees
import label_trees
from cacseg.cli import main
from cacseg.data import open_data
from cacseg.data.check import check_data
from cacseg.data.convert import convert
from cacseg.data.layout import Rules

SOURCES = {
    "folder": lambda root, made: trees.folder(root),
    "coco": label_trees.coco,
    "labelme": label_trees.labelme,
    "yolo": label_trees.yolo,
    "voc": label_trees.voc,
    "roboflow_masks": label_trees.roboflow_masks,
}


@pytest.mark.parametrize("target", ["folder", "coco"])
@pytest.mark.parametrize("name", SOURCES)
def test_the_same_labels(name, target, tmp_path):
    SOURCES[name](tmp_path / "source", label_trees.scenes())
    rules = Rules(uncovered="ignore") if name in ("coco", "labelme", "yolo") else Rules()
    counts = convert(name, tmp_path / "source", tmp_path / "out", target=target, rules=rules)
    assert set(counts) == {"train", "val"}
    read_by = {"uncovered": "ignore"} if target == "coco" else {}
    for split, count in counts.items():
        source = open_data(name, tmp_path / "source", split, uncovered=rules.uncovered)
        written = open_data("folder", tmp_path / "out", split, **read_by)
        assert written.name == target
        assert len(written) == len(source) == count
        assert tuple(written.class_names) == tuple(source.class_names)
        place = {written.image_name(k): k for k in range(count)}
        for k in range(count):
            before, after = source.read(k), written.read(place[source.image_name(k)])
            np.testing.assert_array_equal(before.labels, after.labels)
            np.testing.assert_array_equal(before.image, after.image)
    assert check_data("folder", tmp_path / "out", rules=Rules(**read_by), workers=0, sheet_rows=0).problems == []


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools, by numpy 2
def test_pycocotools_reads_what_is_written(tmp_path, capsys):
    made = label_trees.scenes()
    label_trees.voc(tmp_path / "source", made)
    convert("voc", tmp_path / "source", tmp_path / "out", target="coco", rules=Rules())
    theirs = COCO(tmp_path / "out/annotations/instances_train.json")
    labels_of = {name: labels for _, name, _, labels in made}
    for image in theirs.loadImgs(theirs.getImgIds()):
        drawn = np.full((image["height"], image["width"]), 255, np.uint8)
        for one in theirs.loadAnns(theirs.getAnnIds(imgIds=image["id"])):
            mask = theirs.annToMask(one)
            drawn[mask == 1] = one["category_id"] - 1
            assert one["area"] == mask.sum()
        np.testing.assert_array_equal(drawn, labels_of[image["file_name"].removesuffix(".jpg")])


def test_what_was_stopped_goes_on(tmp_path):
    label_trees.labelme(tmp_path / "source", label_trees.scenes())
    convert("labelme", tmp_path / "source", tmp_path / "out", rules=Rules())
    kept, lost = (tmp_path / f"out/labels/train/train_{k}.png" for k in (0, 1))
    before, content = kept.stat().st_mtime_ns, lost.read_bytes()
    with Image.open(kept) as picture:
        assert picture.mode == "P"
    lost.unlink()
    convert("labelme", tmp_path / "source", tmp_path / "out", rules=Rules())
    assert kept.stat().st_mtime_ns == before
    assert lost.read_bytes() == content
    trees.write(lost, np.zeros(trees.SIZE, np.uint8))
    with pytest.raises(ValueError, match="train_1 among them"):
        convert("labelme", tmp_path / "source", tmp_path / "out", rules=Rules())
    with pytest.raises(FileExistsError, match="holds files of something else"):
        convert("labelme", tmp_path / "source", tmp_path / "out", rules=Rules(overlap="smaller"))


def test_from_a_zip(tmp_path):
    made = label_trees.scenes()
    label_trees.labelme(tmp_path / "source", made)
    packed = trees.zipped(tmp_path / "source", tmp_path / "source.zip", top="export")
    counts = convert("labelme", packed, tmp_path / "out", rules=Rules(uncovered="ignore"))
    assert counts == {"train": 2, "val": 2}
    for split, name, image, labels in made:
        data = open_data("folder", tmp_path / "out", split)
        sample = data.read([data.image_name(k) for k in range(len(data))].index(name))
        np.testing.assert_array_equal(sample.image, image)
        place = np.full(256, 255, np.uint8)
        place[:3] = [data.class_names.index(one) for one in label_trees.NAMES]
        np.testing.assert_array_equal(sample.labels, place[labels])


def test_nothing_is_written_of_what_is_damaged(tmp_path, monkeypatch, capsys):
    label_trees.coco(tmp_path / "source", label_trees.scenes())
    path = tmp_path / "source/annotations/instances_train.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["category_id"] = 999
    path.write_text(json.dumps(content))
    arguments = ["cacseg", "data", "convert", str(tmp_path / "source"), "-o", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "999" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
