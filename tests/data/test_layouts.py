"""Each data set in its layout, as a folder and as a .zip, against the raw label values that were written."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import data_trees as trees
from cacseg.data import DATA_SETS, open_data
from cacseg.data.class_list import builtin_classes
from cacseg.data.layouts import COCO_UNUSED, LAYOUTS, OWN


def _minus_one(raw):
    return np.where(raw == 0, 255, raw.astype(int) - 1)


def _coco(raw):
    mapped = np.full(raw.shape, 255)
    label = 0
    for value in range(182):
        if value + 1 not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91):  # category ids without a class
            mapped[raw == value] = label
            label += 1
    assert label == 171
    return mapped


def _cityscapes(raw):
    names = "7 road 8 sidewalk 11 building 12 wall 13 fence 17 pole 19 light 20 sign 21 vegetation 22 terrain 23 sky "
    names += "24 person 25 rider 26 car 27 truck 28 bus 31 train 32 motorcycle 33 bicycle"
    mapped = np.full(raw.shape, 255)
    for label, value in enumerate(names.split()[::2]):
        mapped[raw == int(value)] = label
    return mapped


def _as_is(raw):
    return raw


# name, how the tree is made, raw values -> classes
CASES = {
    "ade20k": ("ade20k", trees.ade20k, _minus_one, "ADE_train_00000001"),
    "cocostuff raw": ("cocostuff164k", trees.cocostuff, _coco, "000000000000"),
    "cocostuff prepared": ("cocostuff164k", lambda root: trees.cocostuff(root, prepared=True), _as_is, "000000000000"),
    "cityscapes ids": ("cityscapes", trees.cityscapes, _cityscapes, "aachen/aachen_000000_000019_leftImg8bit"),
    "cityscapes train ids": (
        "cityscapes",
        lambda root: trees.cityscapes(root, train_ids=True),
        _as_is,
        "aachen/aachen_000000_000019_leftImg8bit",
    ),
    "context 59": ("pascal_context59", trees.pascal_context, _minus_one, "2008_000000"),
    "context 60": ("pascal_context60", trees.pascal_context, _as_is, "2008_000000"),
    "folder": ("folder", trees.folder, _as_is, "day0/0"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", ["root", "above", "inside", "zip", "zip with a top folder", "zip of the inside"])
def test_every_layout_is_read_in_place(case, place, tmp_path):
    name, make, expected, first = CASES[case]
    root = tmp_path / "some" / "data"
    raw = make(root)
    tops = [top for top in LAYOUTS[name].tops if (root / top).is_dir()]
    inside = root / tops[0] if tops else root
    roots = {"root": lambda: root, "above": lambda: root.parent, "inside": lambda: inside}
    roots["zip"] = lambda: trees.zipped(root, tmp_path / "data.zip")
    roots["zip with a top folder"] = lambda: trees.zipped(root, tmp_path / "data.zip", top="top")
    roots["zip of the inside"] = lambda: trees.zipped(inside, tmp_path / "data.zip")

    data = open_data(name, roots[place](), "train")

    assert (data.name, data.split, len(data), data.ignore_index) == (name, "train", len(raw), 255)
    assert len(data.class_names) == len(data.palette)
    assert data.image_name(0) == first
    assert len({data.image_name(k) for k in range(len(data))}) == len(data)
    for k, values in enumerate(raw):
        sample = data.read(k)
        assert sample.image.shape == (*trees.SIZE, 3)
        assert sample.image.dtype == sample.labels.dtype == np.uint8
        np.testing.assert_array_equal(sample.labels, expected(values))
    assert len(open_data(name, roots["root"](), "val")) == len(raw)


@pytest.mark.parametrize("num_classes", [59, 60])
def test_the_original_files_of_pascal_context(num_classes, tmp_path):
    raw = trees.pascal_context(tmp_path, mat=True)
    data = open_data(f"pascal_context{num_classes}", tmp_path, "train")
    # A few of the 459 labels whose numbers are well known: aeroplane, cat, grass, person, sky, wood; then three others.
    known = {2: "aeroplane", 65: "cat", 187: "grass", 284: "person", 360: "sky", 458: "wood"}
    for k, values in enumerate(raw):
        labels = data.read(k).labels
        for value, name in known.items():
            assert set(labels[values == value].tolist()) == {list(data.class_names).index(name)}
        for value in (0, 1, 459):
            assert set(labels[values == value].tolist()) == {255 if num_classes == 59 else 0}
        assert len(np.unique(labels)) == 60


def test_the_numbers_of_classes():
    counts = {"ade20k": 150, "cocostuff164k": 171, "cityscapes": 19, "pascal_context59": 59, "pascal_context60": 60}
    counts |= {"camvid": 11, "msrc21": 21}
    for name, count in counts.items():
        if name != "pascal_context60":
            classes = builtin_classes(name)
            assert len(classes.names) == len(classes.palette) == count
    assert set(DATA_SETS) == {*counts, *OWN, "synthetic"}
    assert len(COCO_UNUSED) == 182 - 171


def test_well_known_names_stand_in_their_places(tmp_path):
    for make in (trees.ade20k, trees.cocostuff, trees.cityscapes, trees.pascal_context):
        make(tmp_path)
    ade, coco = open_data("ade20k", tmp_path, "val"), open_data("cocostuff164k", tmp_path, "val")
    assert [ade.class_names[k] for k in (0, 1, 2, 12, 149)] == ["wall", "building", "sky", "person", "flag"]
    assert ade.palette[:3] == ((120, 120, 120), (180, 120, 120), (6, 230, 230))
    assert [coco.class_names[k] for k in (0, 79, 80, 170)] == ["person", "toothbrush", "banner", "wood"]
    city = open_data("cityscapes", tmp_path, "val")
    assert city.class_names[0] == "road"
    assert city.palette[0] == (128, 64, 128)
    sixty, fifty_nine = (open_data(f"pascal_context{n}", tmp_path, "val") for n in (60, 59))
    assert sixty.class_names == ("background", *fifty_nine.class_names)
    assert sixty.palette[1:] == fifty_nine.palette
    assert list(fifty_nine.class_names) == sorted(fifty_nine.class_names)


@pytest.mark.parametrize("name", ["camvid", "msrc21"])
def test_named_folders_have_names_and_colours_of_their_own(name, tmp_path):
    names = builtin_classes(name).names
    raw = trees.folder(tmp_path, "\n".join(names) + "\n")
    data = open_data(name, tmp_path, "train")
    assert data.class_names == names
    np.testing.assert_array_equal(data.read(0).labels, raw[0])
    trees.write_text(tmp_path / "classes.txt", "cat\ndog\n")
    with pytest.raises(
        ValueError, match=f"names other classes than {name}: 2, the first 'cat', .* Open it as 'folder'"
    ):
        open_data(name, tmp_path, "train")


def test_a_data_set_travels_to_another_process(tmp_path):
    trees.folder(tmp_path / "data")
    for root in (tmp_path / "data", trees.zipped(tmp_path / "data", tmp_path / "data.zip")):
        data = open_data("folder", root, "train")
        sample = data.read(1)
        copy = pickle.loads(pickle.dumps(data)).read(1)
        np.testing.assert_array_equal(copy.image, sample.image)
        np.testing.assert_array_equal(copy.labels, sample.labels)


# What may be wrong with a tree. Each breaks the miniature ADE20K and says what the message must say.


def _image(root: Path) -> Path:
    return root / "ADEChallengeData2016/images/training/ADE_train_00000002.jpg"


def _labels(root: Path) -> Path:
    return root / "ADEChallengeData2016/annotations/training/ADE_train_00000002.png"


BROKEN_AT_OPEN = {
    "no root": (lambda root: shutil.rmtree(root), "there is no data set at .*no such folder or .zip"),
    "another tree": (
        lambda root: shutil.rmtree(root / "ADEChallengeData2016/annotations"),
        "needs ADEChallengeData2016/{images,annotations}.* has the folders ADEChallengeData2016",
    ),
    "no split": (
        lambda root: shutil.rmtree(root / "ADEChallengeData2016/images/training"),
        "no split 'train' in .*There is val",
    ),
    "labels missing": (lambda root: _labels(root).unlink(), "every image needs its labels.*; 1 of .*00000002.jpg"),
    "image missing": (lambda root: _image(root).unlink(), "every label file needs its image.*; 1 of .*00000002.png"),
    "empty": (
        lambda root: [path.unlink() for path in root.rglob("*train_*")],
        "the split 'train' of .* is empty: no image",
    ),
}


@pytest.mark.parametrize("case", BROKEN_AT_OPEN)
def test_what_is_missing_is_said_at_once(case, tmp_path):
    trees.ade20k(tmp_path / "data")
    damage, message = BROKEN_AT_OPEN[case]
    damage(tmp_path / "data")
    with pytest.raises((ValueError, OSError), match=message):
        open_data("ade20k", tmp_path / "data", "train")


BROKEN_AT_READ = {
    "truncated image": (
        lambda root: _image(root).write_bytes(_image(root).read_bytes()[:-200]),
        "00000002.jpg is damaged, truncated or no image",
    ),
    "truncated labels": (
        lambda root: _labels(root).write_bytes(_labels(root).read_bytes()[:-40]),
        "00000002.png is damaged, truncated or no image",
    ),
    "empty image": (lambda root: _image(root).write_bytes(b""), "00000002.jpg is empty"),
    "empty labels": (lambda root: _labels(root).write_bytes(b""), "00000002.png is empty"),
    "no image at all": (lambda root: _image(root).write_text("hello"), "00000002.jpg is damaged"),
    "no labels at all": (
        lambda root: _labels(root).write_text("hello"),
        r"00000002.png is damaged, truncated or no image \(5 bytes\). Copy it again, or remove it and its image",
    ),
    "out of range": (
        lambda root: trees.write(_labels(root), np.full(trees.SIZE, 151, np.uint8)),
        "00000002.png holds the label 151 in 768 of 768 pixels. The 150 classes are 1 to 150; ignored is 0",
    ),
    "another size": (
        lambda root: trees.write(_labels(root), np.ones((20, 30), np.uint8)),
        "one size; .*00000002.jpg is 32x24 and .*00000002.png 30x20",
    ),
}


@pytest.mark.parametrize("case", BROKEN_AT_READ)
@pytest.mark.parametrize("packed", [False, True])
def test_a_broken_file_is_named_when_it_is_read(case, packed, tmp_path, capfd):
    trees.ade20k(tmp_path / "data")
    damage, message = BROKEN_AT_READ[case]
    damage(tmp_path / "data")
    root = trees.zipped(tmp_path / "data", tmp_path / "data.zip") if packed else tmp_path / "data"
    data = open_data("ade20k", root, "train")
    data.read(0)
    with pytest.raises((ValueError, OSError), match=message):
        data.read(1)
    data.read(2)


def test_unused_raw_values_are_errors(tmp_path):
    trees.cocostuff(tmp_path)
    path = tmp_path / "coco_stuff164k/annotations/train2017/000000000001.png"
    trees.write(path, np.full(trees.SIZE, 11, np.uint8))
    with pytest.raises(ValueError, match=r"000000000001.png holds the label 11 .*0 to 181 with gaps; ignored is 255"):
        open_data("cocostuff164k", tmp_path, "train").read(1)
    trees.cityscapes(tmp_path)
    path = next((tmp_path / "gtFine/train/aachen").glob("*labelIds.png"))
    trees.write(path, np.full(trees.SIZE, 34, np.uint8))
    with pytest.raises(ValueError, match=r"labelIds.png holds the label 34"):
        open_data("cityscapes", tmp_path, "train").read(0)


def test_original_files_are_preferred_where_both_are_there(tmp_path):
    raw = trees.cocostuff(tmp_path)
    folder = tmp_path / "coco_stuff164k/annotations/train2017"
    for k, values in enumerate(raw):
        trees.write(folder / f"{k:012d}_labelTrainIds.png", _coco(values).astype(np.uint8))
    data = open_data("cocostuff164k", tmp_path, "train")
    assert len(data) == len(raw)
    np.testing.assert_array_equal(data.read(0).labels, _coco(raw[0]))


def test_a_list_that_names_what_is_not_there(tmp_path):
    trees.pascal_context(tmp_path)
    base = tmp_path / "VOCdevkit/VOC2010"
    (base / "JPEGImages/2008_000001.jpg").unlink()
    with pytest.raises(ValueError, match=r"train.txt names an image that is not there: .*2008_000001.jpg"):
        open_data("pascal_context59", tmp_path, "train")
    (base / "SegmentationClassContext/2008_000004.png").unlink()
    with pytest.raises(ValueError, match=r"every image needs its labels.*2008_000004.jpg"):
        open_data("pascal_context59", tmp_path, "val")
    (base / "ImageSets/SegmentationContext/train.txt").unlink()
    with pytest.raises(ValueError, match=r"no split 'train'"):
        open_data("pascal_context59", tmp_path, "train")


def test_a_damaged_mat_file_is_named(tmp_path):
    trees.pascal_context(tmp_path, mat=True)
    path = tmp_path / "VOCdevkit/VOC2010/trainval/2008_000001.mat"
    data = open_data("pascal_context59", tmp_path, "train")
    for content in (b"MATLAB 5.0 but no more", path.read_bytes()[:-300], b""):
        path.write_bytes(content)
        with pytest.raises(OSError, match=r"2008_000001.mat is damaged"):
            data.read(1)
