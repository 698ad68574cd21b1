"""Labels of labelling tools: read in place to the pixel, by the stated rules; what is damaged is named."""

import json
import zipfile
from functools import partial

import numpy as np
import pytest
from pycocotools import mask as coco_mask

import data_trees as trees
import label_trees
from cacseg.cli import main
from cacseg.data import open_data
from cacseg.data.check import check_data, guess_name
from cacseg.data.layout import Rules, name_splits

FORMATS = {
    "coco polygons": ("coco", partial(label_trees.coco, kind="polygon")),
    "coco runs": ("coco", partial(label_trees.coco, kind="compressed", style="roboflow")),
    "coco uncompressed": ("coco", partial(label_trees.coco, kind="uncompressed")),
    "labelme polygons": ("labelme", label_trees.labelme),
    "labelme masks": ("labelme", partial(label_trees.labelme, kind="mask")),
    "yolo roboflow": ("yolo", label_trees.yolo),
    "yolo": ("yolo", partial(label_trees.yolo, style="ultralytics")),
    "voc": ("voc", label_trees.voc),
    "voc palette": ("voc", partial(label_trees.voc, palette=True)),
    "roboflow masks": ("roboflow_masks", label_trees.roboflow_masks),
}
SHAPES = ("coco", "labelme", "yolo")


def _rules(name):
    return {"uncovered": "ignore"} if name in SHAPES else {}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_labels_come_back_to_the_pixel(kind, packed, tmp_path):
    name, make = FORMATS[kind]
    made = label_trees.scenes()
    root = tmp_path / "data"
    make(root, made)
    if packed:
        root = trees.zipped(root, tmp_path / "data.zip", top="export")
    assert guess_name(root) == name
    for split in ("train", "val"):
        data = open_data("folder", root, split, **_rules(name))
        expected = {one[1]: one for one in made if one[0] == split}
        assert data.name == name
        assert sorted(data.class_names) == sorted(label_trees.NAMES)
        assert {data.image_name(k) for k in range(len(data))} == set(expected)
        place = np.full(256, 255, np.uint8)
        place[:3] = [data.class_names.index(one) for one in label_trees.NAMES]
        for k in range(len(data)):
            sample, (_, _, image, labels) = data.read(k), expected[data.image_name(k)]
            np.testing.assert_array_equal(sample.labels, place[labels])
            assert sample.image.shape == image.shape
    report = check_data("folder", root, rules=Rules(**_rules(name)), workers=0, sheet_rows=1)
    assert report.problems == []
    assert [split.images for split in report.splits] == [2, 2]


def test_names_of_splits():
    assert name_splits(["valid", "train", "test"]) == {"test": "test", "train": "train", "val": "valid"}
    assert name_splits(["train2017", "val2017"]) == {"train": "train2017", "val": "val2017"}
    assert name_splits(["default"]) == {"all": "default"}
    assert name_splits(["dev", "training", "night"]) == {"night": "night", "train": "training", "val": "dev"}
    assert name_splits(["val", "validation"]) == {"val": "val", "validation": "validation"}


@pytest.mark.parametrize("make", ["coco", "labelme", "voc"])
def test_nothing_is_split(make, tmp_path):
    made = label_trees.scenes(("train",), count=3)
    if make == "coco":
        label_trees.coco(tmp_path, made, style="label_studio")
    elif make == "labelme":
        label_trees.labelme(tmp_path, made, folders=False)
    else:
        label_trees.voc(tmp_path, made, lists=False)
    report = check_data("folder", tmp_path, workers=0, sheet_rows=0)
    assert [(one.split, one.images) for one in report.splits] == [("all", 3)]
    assert report.problems == []
    assert "data.val_share" in report.verdict


def test_brush_masks_of_label_studio(tmp_path):
    made = label_trees.scenes(("all",), count=3)
    label_trees.label_studio(tmp_path / "data", made)
    root = trees.zipped(tmp_path / "data", tmp_path / "data.zip")
    for place in (tmp_path / "data", root):
        assert guess_name(place) == "label_studio"
        data = open_data("folder", place, "all", uncovered="ignore")
        assert data.class_names == ("car", "road", "sky")
        for k, (_, name, _, labels) in enumerate(made):
            assert data.image_name(k) == name
            table = np.array([1, 0, 2, *[255] * 253], np.uint8)
            np.testing.assert_array_equal(data.read(k).labels, table[labels])
    (tmp_path / "data/images/all_1.png").unlink()
    with pytest.raises(ValueError, match=r"image of task 6 is not there: .*all_1\.png"):
        open_data("folder", tmp_path / "data", "all")
    next((tmp_path / "data").glob("*.json")).unlink()
    with pytest.raises(ValueError, match="Export the project as JSON too"):
        open_data("folder", tmp_path / "data", "all")


def _one(root, shapes, size=trees.SIZE, **options):
    label_trees.labelme_file(root / "a.json", shapes, size)
    trees.write(root / "a.png", trees.image(0))
    return open_data("labelme", root, "all", **options)


def _apart(root, photos, labels, stated, made):
    """Photographs in one folder and files of LabelMe in another, as `labelme --output` writes them."""
    (root / photos).mkdir(parents=True, exist_ok=True)
    (root / labels).mkdir(parents=True, exist_ok=True)
    label_trees.labelme(root / "made", made, folders=False)
    for _, name, _, _ in made:
        (root / f"made/{name}.png").rename(root / photos / f"{name}.png")
        path = (root / f"made/{name}.json").rename(root / labels / f"{name}.json")
        _edit(path, lambda content, name=name: content.update(imagePath=f"{stated}{name}.png"))
    (root / "made").rmdir()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("photos", "labels", "stated"),
    [
        ("photos", "labels", "../photos/"),
        ("photos", "labels", "..\\photos\\"),
        ("images", "labels", "../images/"),
        ("photos/a", "out/labelme", "../../photos/a/"),
        ("photos", "", "photos/"),
        ("labels", "labels", "C:\\Users\\me\\photos\\"),
    ],
)
def test_photographs_in_another_folder(photos, labels, stated, packed, tmp_path):
    made = label_trees.scenes(("all",), count=3)
    root = tmp_path / "data"
    _apart(root, photos, labels, stated, made)
    if packed:
        root = trees.zipped(root, tmp_path / "data.zip")
    assert guess_name(root) == "labelme"
    data = open_data("folder", root, "all", uncovered="ignore")
    assert data.class_names == ("car", "road", "sky")
    table = np.array([1, 0, 2, *[255] * 253], np.uint8)
    read = {data.image_name(k).rpartition("/")[2]: data.read(k) for k in range(len(data))}
    assert len(read) == 3
    for _, name, image, labels_of in made:
        np.testing.assert_array_equal(read[name].image, image)
        np.testing.assert_array_equal(read[name].labels, table[labels_of])


def test_images_of_one_name_in_two_folders(tmp_path):
    """The path says which; the name alone would take the one beside."""
    made = label_trees.scenes(("all",), count=1)
    _apart(tmp_path, "photos", "labels", "../photos/", made)
    trees.write(tmp_path / f"labels/{made[0][1]}.png", trees.image(9))
    np.testing.assert_array_equal(open_data("folder", tmp_path, "all").read(0).image, made[0][2])


def test_the_whole_path_of_an_image(tmp_path):
    made = label_trees.scenes(("all",), count=1)
    _apart(tmp_path, "photos", "labels", f"{tmp_path}/photos/", made)
    np.testing.assert_array_equal(open_data("folder", tmp_path, "all").read(0).image, made[0][2])


def test_splits_below_photos_and_labels(tmp_path):
    for split, *rest in label_trees.scenes(count=1):
        _apart(tmp_path, f"photos/{split}", f"labels/{split}", f"../../photos/{split}/", [(split, *rest)])
    trees.write(tmp_path / "photos/val/more.png", trees.image(5))
    report = check_data("folder", tmp_path, workers=0, sheet_rows=0)
    assert (report.name, report.problems) == ("labelme", [])
    assert [(one.split, one.images) for one in report.splits] == [("train", 1), ("val", 1)]
    assert open_data("folder", tmp_path, "val").image_name(0) == "val_0"
    assert any(note.startswith("val: 1 images have no JSON") for note in report.notes)


def test_photographs_outside(tmp_path):
    made = label_trees.scenes(("all",), count=1)
    _apart(tmp_path / "data", "photos", "labels", "../photos/", made)
    with pytest.raises(ValueError, match=rf"outside of .*labels\. Give the folder above both, {tmp_path / 'data'}\."):
        open_data("folder", tmp_path / "data/labels", "all")
    (tmp_path / "data/photos/all_0.png").unlink()
    with pytest.raises(ValueError, match=r"all_0\.json has no image: \.\./photos/all_0\.png is not there"):
        open_data("folder", tmp_path / "data/labels", "all")


def _box(label, left, top, right, bottom):
    return {"label": label, "points": [[left, top], [right, bottom]], "shape_type": "rectangle"}


def test_what_shapes_cover(tmp_path):
    shapes = [_box("small", 10, 8, 12, 12), _box("large", 4, 4, 20, 20)]
    later = _one(tmp_path, shapes)
    assert later.class_names == ("background", "large", "small")
    expected = np.zeros(trees.SIZE, np.uint8)
    expected[4:20, 4:20] = 1
    np.testing.assert_array_equal(later.read(0).labels, expected)
    expected[8:12, 10:12] = 2
    smaller = _one(tmp_path, shapes, overlap="smaller")
    np.testing.assert_array_equal(smaller.read(0).labels, expected)
    ignored = _one(tmp_path, shapes, overlap="smaller", uncovered="ignore")
    assert ignored.class_names == ("large", "small")
    np.testing.assert_array_equal(ignored.read(0).labels, np.array([255, 0, 1], np.uint8)[expected])


def test_a_background_of_their_own_is_the_one(tmp_path):
    data = _one(tmp_path, [_box("_background_", 0, 0, 5, 5), _box("car", 5, 5, 9, 9)])
    assert data.class_names == ("_background_", "car")
    assert np.unique(data.read(0).labels, return_counts=True)[1].tolist() == [24 * 32 - 16, 16]


def test_kinds_of_shapes_of_labelme(tmp_path):
    circle = {"label": "disc", "points": [[16.0, 12.0], [16.0, 4.0]], "shape_type": "circle"}
    lines = [
        {"label": "wire", "points": [[1, 1], [9, 9]], "shape_type": "line"},
        {"label": "wire", "points": [[1, 1], [9, 9], [3, 4]], "shape_type": "linestrip"},
        {"label": "dot", "points": [[1, 1]], "shape_type": "point"},
    ]
    data = _one(tmp_path, [circle, *lines])
    assert data.class_names == ("background", "disc")
    y, x = np.mgrid[: trees.SIZE[0], : trees.SIZE[1]] + 0.5
    np.testing.assert_array_equal(data.read(0).labels, (x - 16) ** 2 + (y - 12) ** 2 < 64)
    trees.write(tmp_path / "b.png", trees.image(1))
    notes = " ".join(check_data("labelme", tmp_path, workers=0, sheet_rows=0).notes)
    assert "3 points and lines" in notes
    assert "1 images have no JSON" in notes


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools, by numpy 2
def test_polygons_are_filled_as_coco_fills_them(tmp_path):
    """But for pixels that an edge passes through, of which pycocotools rounds some the other way."""
    rng = np.random.default_rng(0)
    size, differ, edges = (60, 80), 0, 0
    for k in range(50):
        turn = np.sort(rng.random(7)) * 2 * np.pi
        radius = rng.random(7) * 15 + 12
        points = np.stack([40 + radius * np.cos(turn), 30 + radius * np.sin(turn)], 1).round(2)
        root = tmp_path / str(k)
        trees.write(root / "a.png", trees.image(k, size))
        label_trees.labelme_file(root / "a.json", [{"label": "x", "points": points.tolist()}], size)
        ours = open_data("labelme", root, "all").read(0).labels
        theirs = coco_mask.decode(coco_mask.frPyObjects([points.ravel().tolist()], *size))[..., 0]
        wrong = ours != theirs
        around = np.zeros(size, bool)
        for a, b in zip(points, np.roll(points, -1, 0), strict=True):
            steps = a + (b - a) * np.linspace(0, 1, 400)[:, None]
            for dx, dy in ((0, 0), (0.3, 0), (-0.3, 0), (0, 0.3), (0, -0.3)):
                around[(steps[:, 1] + dy).astype(int), (steps[:, 0] + dx).astype(int)] = True
        assert not (wrong & ~around).any()
        differ, edges = differ + int(wrong.sum()), edges + int(around.sum())
    assert differ < 0.25 * edges


def test_headings_of_roboflow_and_classes_without_images(tmp_path):
    made = label_trees.scenes(count=1)
    label_trees.coco(tmp_path, made, style="roboflow")
    for path in tmp_path.rglob("*.json"):
        content = json.loads(path.read_text())
        content["categories"].append({"id": 90, "name": "bus", "supercategory": "things"})
        path.write_text(json.dumps(content))
    report = check_data("folder", tmp_path, workers=0, sheet_rows=0)
    assert report.class_names == ("background", "road", "car", "sky", "bus")
    assert report.problems == []
    assert any("'bus'" in note for note in report.notes)


def _edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _break_coco(root, how):
    path = root / "annotations/instances_train.json"
    if how == "missing":
        (root / "images/train/train_1.png").unlink()
        return "train_1.png"
    if how == "json":
        path.write_text(path.read_text()[:-20])
    if how == "class":
        _edit(path, lambda content: content["annotations"][3].update(category_id=999))
        return "999"
    if how == "outside":
        _edit(path, lambda content: content["annotations"][0].update(segmentation=[[90, 90, 95, 90, 95, 99]]))
    if how == "size":
        _edit(path, lambda content: content["images"][0].update(height=99))
        return "32x99"
    return path.name


def _break_labelme(root, how):
    path = root / "train/train_1.json"
    if how == "missing":
        (root / "train/train_1.png").unlink()
    if how == "json":
        path.write_text("{'shapes': []}")
    if how == "class":
        trees.write_text(root / "labels.txt", "__ignore__\nroad\ncar\nsky\n")
        _edit(path, lambda content: content["shapes"][0].update(label="bus"))
        return "'bus'"
    if how == "outside":
        _edit(path, lambda content: content["shapes"][0].update(points=[[-9, 1], [-4, 1], [-4, 5]]))
    if how == "size":
        _edit(path, lambda content: content.update(imageWidth=33))
    return path.name


def _break_yolo(root, how):
    path = root / "train/labels/train_1.txt"
    if how == "missing":
        (root / "train/images/train_1.png").unlink()
    if how == "json":
        path.write_text("0 0.1 0.2 x 0.3 0.4 0.5\n")
    if how == "class":
        path.write_text("7 0.1 0.2 0.3 0.3 0.4 0.5\n")
    if how == "outside":
        path.write_text("0 10 20 30 30 40 50\n")
    if how == "size":
        path.write_text("0 0.5 0.5 0.2 0.2\n")  # a box
    return path.name


def _break_voc(root, how):
    path = root / "SegmentationClass/train_1.png"
    if how == "missing":
        (root / "JPEGImages/train_1.jpg").unlink()
        return "train_1"
    if how == "json":
        path.write_bytes(path.read_bytes()[:60])
    if how in ("class", "outside"):
        trees.write(path, np.full((*trees.SIZE, 3), 9, np.uint8))
    if how == "size":
        trees.write(path, np.full((5, 6, 3), label_trees.COLOURS[0], np.uint8))
    return path.name


@pytest.mark.parametrize("how", ["missing", "json", "class", "outside", "size"])
@pytest.mark.parametrize("name", ["coco", "labelme", "yolo", "voc"])
def test_what_is_damaged_is_named_in_one_line(name, how, tmp_path, monkeypatch, capsys):
    make = {"coco": label_trees.coco, "labelme": label_trees.labelme, "yolo": label_trees.yolo, "voc": label_trees.voc}
    root = tmp_path / "data"
    make[name](root, label_trees.scenes())
    word = globals()[f"_break_{name}"](root, how)
    monkeypatch.setattr(
        "sys.argv", ["cacseg", "data", "check", str(root), "--workers", "0", "-o", str(tmp_path / "out")]
    )
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert stop.value.code in (1, 2)
    wrong = [line for line in (said.out + said.err).splitlines() if word in line]
    assert len(wrong) == 1, said
    assert "Traceback" not in said.err


def test_a_zip_that_leads_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("../../evil.json", "{}")
    with pytest.raises(ValueError, match=r"data\.zip holds '\.\./\.\./evil\.json'"):
        open_data("folder", tmp_path / "data.zip", "train")


def test_rules_belong_to_shapes(tmp_path):
    trees.folder(tmp_path)
    with pytest.raises(ValueError, match=r"overlap, uncovered, crowd and empty_classes.*'folder'"):
        open_data("folder", tmp_path, "train", uncovered="ignore")
    label_trees.coco(tmp_path / "coco", label_trees.scenes())
    with pytest.raises(ValueError, match="ignore_index belongs to 'folder'"):
        open_data("folder", tmp_path / "coco", "train", ignore_index=7)
