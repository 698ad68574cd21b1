"""`cacseg data convert`: any layout as a folder of index PNGs or as COCO, resumed, checked."""

import json

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

import data_trees as trees
import label_trees
from cacseg._files import LOCK
from cacseg.cli import main
from cacseg.data import convert as module
from cacseg.data import open_data
from cacseg.data.check import check_data
from cacseg.data.convert import convert
from cacseg.data.layout import Rules
from command_line import run

SOURCES = {
    "folder": lambda root, made: trees.folder(root),
    "coco": label_trees.coco,
    "labelme": label_trees.labelme,
    "yolo": label_trees.yolo,
    "voc": label_trees.voc,
    "roboflow_masks": label_trees.roboflow_masks,
    "label_studio": label_trees.label_studio,
}


@pytest.mark.parametrize("target", ["folder", "coco"])
@pytest.mark.parametrize("name", SOURCES)
def test_the_same_labels(name, target, tmp_path):
    SOURCES[name](tmp_path / "source", label_trees.scenes())
    rules = Rules(uncovered="ignore") if name in ("coco", "labelme", "yolo") else Rules()
    counts = convert(name, tmp_path / "source", tmp_path / "out", target=target, rules=rules)
    assert set(counts) == ({"all"} if name == "label_studio" else {"train", "val"})
    assert not (tmp_path / "out.part").exists()
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


@pytest.mark.parametrize("target", ["folder", "coco"])
def test_what_was_stopped_by_a_damaged_file_goes_on(target, tmp_path):
    """The rest is converted, and does not look finished; images that are done are not done again."""
    source, out = tmp_path / "source", tmp_path / "out"
    label_trees.labelme(source, label_trees.scenes())
    whole = (source / "val/val_1.png").read_bytes()
    (source / "val/val_1.png").write_bytes(whole[:-30])
    with pytest.raises(OSError, match=r"val_1\.png"):
        convert("labelme", source, out, target=target, rules=Rules())
    assert not out.exists()
    part = "labels/train/train_0.png" if target == "folder" else "parts/val/val_0.json"
    kept = (tmp_path / "out.part" / part).stat().st_mtime_ns
    image = (tmp_path / "out.part/images/train/train_0.png").stat().st_mtime_ns
    with pytest.raises(FileExistsError, match=r"out\.part holds .*Choose another folder"):
        convert("labelme", source, out, target=target, rules=Rules(overlap="smaller"))
    (source / "val/val_1.png").write_bytes(whole)
    write, written = module.write_file, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "write_file", lambda path, content: (written.append(path.name), write(path, content)))
        assert convert("labelme", source, out, target=target, rules=Rules()) == {"train": 2, "val": 2}
    assert "val_1.png" in written
    assert not {"val_0.json", "val_0.png", "train_0.png", "train_1.png"} & set(written)
    assert (out / "images/train/train_0.png").stat().st_mtime_ns == image
    if target == "folder":
        assert (out / part).stat().st_mtime_ns == kept
        with Image.open(out / part) as picture:
            assert picture.mode == "P"
    left = {"folder": {"classes.txt", "labels"}, "coco": {"annotations"}}[target]
    assert {path.name for path in out.iterdir()} == {"convert.json", "images", *left}
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


@pytest.mark.parametrize("target", ["folder", "coco"])
def test_each_image_that_cannot_be_read_is_named_and_the_rest_is_whole(target, tmp_path, monkeypatch, capsys):
    """One of the training images, and all of the validation."""
    source, out, part = tmp_path / "source", tmp_path / "out", tmp_path / "out.part"
    trees.folder(source, count=3)
    wrong = [*sorted(source.glob("images/val/*/*.*")), sorted(source.glob("images/train/*/*.*"))[1]]
    content = {path: path.read_bytes() for path in wrong}
    for path in wrong:
        path.write_bytes(content[path][:30])
    command = ["cacseg", "data", "convert", str(source), "-o", str(out), "--format", target, "--name", "folder"]
    monkeypatch.setattr("sys.argv", command)

    def convert_all():
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, [line for line in capsys.readouterr().err.splitlines() if line]

    for _ in range(2):
        code, said = convert_all()
        assert code == 1
        assert len(said) == len(wrong) + 1
        for path in wrong:
            assert sum(str(path) in line for line in said) == 1
        assert f"{len(wrong)} of" in said[-1]
        assert str(part) in said[-1]
    assert not out.exists()
    assert not (part / LOCK).exists()
    read_by = {"uncovered": "ignore"} if target == "coco" else {}
    before, after = open_data("folder", source, "train"), open_data("folder", part, "train", **read_by)
    assert len(after) == len(before) - 1
    for k, name in enumerate(map(after.image_name, range(len(after)))):
        place = [before.image_name(one) for one in range(len(before))].index(name)
        np.testing.assert_array_equal(before.read(place).labels, after.read(k).labels)
    for path in wrong:
        path.write_bytes(content[path])
    assert convert_all()[0] == 0
    assert not part.exists()
    assert len(open_data("folder", out, "train", **read_by)) == len(before)


def test_what_is_finished_is_compared_and_left_alone(tmp_path):
    label_trees.labelme(tmp_path / "source", label_trees.scenes())
    convert("labelme", tmp_path / "source", tmp_path / "out", rules=Rules())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    convert("labelme", tmp_path / "source", tmp_path / "out", rules=Rules())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    trees.write(tmp_path / "out/labels/train/train_1.png", np.zeros(trees.SIZE, np.uint8))
    with pytest.raises(ValueError, match="train_1 among them"):
        convert("labelme", tmp_path / "source", tmp_path / "out", rules=Rules())
    with pytest.raises(FileExistsError, match=r"out holds .*Choose another folder"):
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


@pytest.mark.parametrize("name", [" road ", "#1", "ro\nad", "[ignore]", "\ufeffroad", ""])
def test_names_that_a_class_list_cannot_hold(name, tmp_path):
    label_trees.coco(tmp_path / "source", label_trees.scenes(), names=(name, "car", "sky"))
    with pytest.raises(ValueError, match=r"classes\.txt cannot hold the name .* Rename it") as error:
        convert("coco", tmp_path / "source", tmp_path / "out", rules=Rules())
    assert repr(name) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    convert("coco", tmp_path / "source", tmp_path / "out", target="coco", rules=Rules())
    assert open_data("coco", tmp_path / "out", "train", uncovered="ignore").class_names[1] == name


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


def test_an_image_without_labels_stops_with_the_command_that_lists_all(tmp_path, monkeypatch, capsys):
    trees.folder(tmp_path / "data")
    for label in sorted((tmp_path / "data/labels/train").rglob("*.png"))[:2]:
        label.unlink()
    arguments = ("data", "convert", tmp_path / "data", "-o", tmp_path / "out", "--ignore-index", 7)
    done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert not (tmp_path / "out").exists()
    said = " ".join(done.err.split())
    assert f"`cacseg data check {tmp_path / 'data'} --ignore-index 7` lists all" in said
