"""Damaged exports of labelling tools: the check names the file in one line and goes on; nothing crashes."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

import data_trees as trees
import label_trees
from cacseg.data import open_data
from cacseg.data.check import check_data
from cacseg.data.layout import Rules

HEIGHT, WIDTH = trees.SIZE
BINARY = b"\xff\xfe\x00\x81names: [road]\n"


def _problems(root, splits=(), **rules):
    """What is wrong, in lines."""
    try:
        report = check_data("folder", root, splits, rules=Rules(**rules), workers=0, sheet_rows=1)
    except (OSError, ValueError) as error:
        return [str(error)]
    return report.problems


def _edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _one(problems, *words):
    assert len(problems) == 1, problems
    assert "\n" not in problems[0]
    for word in words:
        assert word in problems[0]


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e300, 1e20, -1e300])
@pytest.mark.parametrize("name", ["coco", "labelme", "yolo"])
def test_coordinates_that_are_no_places(name, number, tmp_path):
    points = [[4.0, 4.0], [number, 4.0], [9.0, 9.0]]
    if name == "coco":
        label_trees.coco(tmp_path, label_trees.scenes(count=1))
        path = tmp_path / "annotations/instances_train.json"
        _edit(path, lambda content: content["annotations"][0].update(segmentation=[np.ravel(points).tolist()]))
    elif name == "labelme":
        label_trees.labelme(tmp_path, label_trees.scenes(count=1))
        path = tmp_path / "train/train_0.json"
        _edit(path, lambda content: content["shapes"][0].update(points=points))
    else:
        label_trees.yolo(tmp_path, label_trees.scenes(count=1))
        path = tmp_path / "train/labels/train_0.txt"
        path.write_text("0 " + " ".join(map(str, np.ravel(points) / 20)) + "\n")
    _one(_problems(tmp_path, uncovered="ignore"), str(path), "outside")


def _mask(labels, **changes):
    runs = next(label_trees._coco_outlines(labels, "uncompressed"))[1]
    return {**runs, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": [WIDTH, HEIGHT]}, (f"{HEIGHT}x{WIDTH}", f"{WIDTH}x{HEIGHT}")),
        ({"size": [HEIGHT]}, ("size",)),
        ({"counts": [10**30, 1]}, ("cannot be read",)),
        ({"counts": [2**62, 2**62]}, ("runs",)),
        ({"counts": [-5, HEIGHT * WIDTH + 5]}, ("runs",)),
        ({"counts": []}, ("without runs",)),
        ({"counts": [[1], [2]]}, ("runs",)),
        ({"counts": [5, HEIGHT * WIDTH]}, ("damaged mask",)),
        ({"counts": "ooooooooooooooooooooooo"}, ("damaged mask",)),
    ],
)
def test_masks_of_coco(changes, words, tmp_path):
    made = label_trees.scenes(count=1)
    label_trees.coco(tmp_path, made, kind="uncompressed")
    path = tmp_path / "annotations/instances_train.json"
    mask = _mask(made[0][3], **changes)
    _edit(path, lambda content: content["annotations"][0].update(segmentation=mask))
    _one(_problems(tmp_path), str(path), *words)


def test_a_mask_tells_the_size_of_its_image(tmp_path):
    made = label_trees.scenes(count=1)
    label_trees.coco(tmp_path, made, kind="uncompressed")
    path = tmp_path / "annotations/instances_train.json"
    wrong = {"size": [WIDTH, HEIGHT], "counts": [0, HEIGHT * WIDTH]}

    def change(content):
        content["images"] = [{key: one[key] for key in ("id", "file_name")} for one in content["images"]]
        content["annotations"] = [{**content["annotations"][0], "segmentation": wrong}]

    _edit(path, change)
    _one(_problems(tmp_path), str(path), f"{HEIGHT}x{WIDTH}")


@pytest.mark.parametrize("height", [1e12, "24x", float("inf"), -3, [24]])
@pytest.mark.parametrize("name", ["coco", "labelme"])
def test_sizes_that_are_none(name, height, tmp_path):
    made = label_trees.scenes(count=1)
    if name == "coco":
        label_trees.coco(tmp_path, made)
        path = tmp_path / "annotations/instances_train.json"
        _edit(path, lambda content: content["images"][0].update(height=height))
    else:
        label_trees.labelme(tmp_path, made)
        path = tmp_path / "train/train_0.json"
        _edit(path, lambda content: content.update(imageHeight=height))
    problems = [one for one in _problems(tmp_path) if "empty" not in one]  # its only image
    _one(problems, str(path), str(height))


def test_polygons_without_an_area_are_counted(tmp_path):
    """Two points, a line, and a line on the border of the image; what has an area is drawn."""
    flat = [[3, 3, 9, 9], [2, 2, 5, 2, 9, 2], [WIDTH, 1, WIDTH, 5, WIDTH, 9], [1, HEIGHT, 9, HEIGHT, 5, HEIGHT]]
    made = [("train", "a", trees.image(0), np.zeros(trees.SIZE, np.uint8))]
    label_trees.coco(tmp_path / "coco", made)
    path = tmp_path / "coco/annotations/instances_train.json"

    def change(content):
        box = [2, 2, 8, 2, 8, 6, 2, 6]
        content["annotations"][0].update(segmentation=[flat[0], box, *flat[1:]])

    _edit(path, change)
    report = check_data("folder", tmp_path / "coco", ["train"], workers=0, sheet_rows=0)
    assert report.problems == []
    assert any("4 polygons have no area" in note for note in report.notes)
    assert report.splits[0].pixels[1] == 6 * 4
    label_trees.yolo(tmp_path / "yolo", made)
    lines = [" ".join(map(str, ["0", *(np.reshape(one, (-1, 2)) / (WIDTH, HEIGHT)).ravel()])) for one in flat[1:]]
    (tmp_path / "yolo/train/labels/a.txt").write_text("\n".join(lines))
    report = check_data("folder", tmp_path / "yolo", ["train"], workers=0, sheet_rows=0)
    assert any("3 polygons have no area" in note for note in report.notes)
    assert report.problems == []
    shapes = [{"label": "x", "points": np.reshape(one, (-1, 2)).tolist()} for one in flat[1:]]
    trees.write(tmp_path / "labelme/a.png", trees.image(0))
    label_trees.labelme_file(tmp_path / "labelme/a.json", shapes)
    report = check_data("folder", tmp_path / "labelme", ["all"], workers=0, sheet_rows=0)
    assert any("3 polygons have no area" in note for note in report.notes)
    assert report.problems == []


def _png(part, mode="L"):
    content = io.BytesIO()
    Image.fromarray(part).convert(mode).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()


def _labelme(root, shape, size=trees.SIZE):
    trees.write(root / "a.png", trees.image(0))
    label_trees.labelme_file(root / "a.json", [shape], size)
    return [one for one in _problems(root, ["all"]) if "empty" not in one]


def test_masks_of_labelme(tmp_path):
    part = np.full((4, 5), 255, np.uint8)
    good = {"label": "x", "shape_type": "mask", "points": [[3, 2], [7, 5]], "mask": _png(part, "1")}
    assert _labelme(tmp_path, good) == []
    expected = np.zeros(trees.SIZE, np.uint8)
    expected[2:6, 3:8] = 1
    np.testing.assert_array_equal(open_data("labelme", tmp_path, "all").read(0).labels, expected)
    where = str(tmp_path / "a.json")
    _one(_labelme(tmp_path, good, (10**6, 10**6)), where, "1000000x1000000")  # a terabyte, were it drawn
    _one(_labelme(tmp_path, good, (0, 0)), where, "imageHeight")
    _one(_labelme(tmp_path, {**good, "points": []}), where)
    _one(_labelme(tmp_path, {**good, "points": [[float("inf"), 2], [7, 5]]}), where)
    _one(_labelme(tmp_path, {**good, "points": [[WIDTH - 4, 2], [WIDTH, 5]]}), where, "outside")
    _one(_labelme(tmp_path, {**good, "mask": _png(part, "RGB")}), where, "mask")
    _one(_labelme(tmp_path, {**good, "mask": good["mask"][:40]}), where, "damaged mask")


@pytest.mark.parametrize("radius", [1e9, 1e300, float("inf")])
def test_circles_of_any_size(radius, tmp_path):
    circle = {"label": "x", "shape_type": "circle", "points": [[5, 5], [5 + radius, 5]]}
    _one(_labelme(tmp_path, circle), "a.json", "outside")


def test_a_large_circle_is_drawn(tmp_path):
    """Its rim is a straight line, but for less than a pixel: a half-plane."""
    circle = {"label": "x", "shape_type": "circle", "points": [[-99_990, 12], [10, 12]]}
    assert _labelme(tmp_path, circle) == []
    expected = np.broadcast_to(np.arange(WIDTH) < 10, trees.SIZE)
    np.testing.assert_array_equal(open_data("labelme", tmp_path, "all").read(0).labels == 1, expected)


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (label_trees.yolo, "train/labels/train_0.txt"),
        (label_trees.yolo, "data.yaml"),
        (label_trees.labelme, "labels.txt"),
        (label_trees.labelme, "train/train_0.json"),
        (label_trees.voc, "labelmap.txt"),
        (label_trees.voc, "ImageSets/Segmentation/train.txt"),
        (label_trees.roboflow_masks, "train/_classes.csv"),
        (label_trees.coco, "annotations/instances_train.json"),
        (lambda root, made: trees.folder(root), "classes.txt"),
    ],
)
def test_text_that_is_none(make, path, tmp_path):
    make(tmp_path, label_trees.scenes())
    (tmp_path / path).write_bytes(BINARY)
    _one(_problems(tmp_path), str(tmp_path / path))


@pytest.mark.parametrize("palette", [False, True])
def test_a_colour_of_no_class(palette, tmp_path):
    made = label_trees.scenes()
    label_trees.voc(tmp_path, made, palette=palette)
    listed = tmp_path / "labelmap.txt"
    listed.write_text("".join(line for line in listed.read_text().splitlines(True) if not line.startswith("sky")))
    problems = _problems(tmp_path)
    assert len(problems) == 4  # each of the images
    count = int((made[0][3] == 2).sum())
    colour = ", ".join(map(str, label_trees.COLOURS[2].tolist()))
    for word in ("train_0.png", f"({colour})", f"{count} of {HEIGHT * WIDTH} pixels"):
        assert word in problems[0]


@pytest.mark.parametrize("how", ["cut", "size", "value", "image", "colours", "list"])
def test_masks_of_roboflow(how, tmp_path):
    label_trees.roboflow_masks(tmp_path, label_trees.scenes())
    mask = tmp_path / "train/train_0_mask.png"
    named = mask
    if how == "cut":
        mask.write_bytes(mask.read_bytes()[:50])
    elif how == "size":
        trees.write(mask, np.zeros((5, 6), np.uint8))
    elif how == "value":
        trees.write(mask, np.full(trees.SIZE, 7, np.uint8))
    elif how == "image":
        (tmp_path / "train/train_0.jpg").unlink()
    elif how == "colours":
        trees.write(mask, np.full((*trees.SIZE, 3), (9, 8, 7), np.uint8))
    else:
        named = tmp_path / "train/_classes.csv"
        named.write_text("Pixel Value, Class\nroad, 0\n")
    _one(_problems(tmp_path), str(named))


@pytest.mark.parametrize("how", ["cut", "size", "mask", "json", "class"])
def test_masks_of_label_studio(how, tmp_path):
    label_trees.label_studio(tmp_path, label_trees.scenes(("all",)))
    mask, export = tmp_path / "masks/task-5-annotation-9-by-1-tag-car-0.png", next(tmp_path.glob("*.json"))
    words = [str(mask)]
    if how == "cut":
        mask.write_bytes(mask.read_bytes()[:50])
    elif how == "size":
        trees.write(mask, np.zeros((5, 6), np.uint8))
    elif how == "mask":
        mask.unlink()
        words = ["'car'", "task 5", "task-5-annotation-9"]
    elif how == "json":
        export.write_text(export.read_text()[:-9])
        words = [str(export)]
    else:
        mask = mask.rename(mask.with_name("task-5-annotation-9-by-1-tag-bus-0.png"))
        problems = _problems(tmp_path)
        assert len(problems) == 2  # the mask that is none of the file's, and the region without a mask
        assert str(mask) in problems[0]
        return
    _one(_problems(tmp_path), *words)


def test_regions_that_are_no_strokes_are_counted(tmp_path):
    label_trees.label_studio(tmp_path, label_trees.scenes(("all",)))

    def change(tasks):
        box = {"type": "rectanglelabels", "from_name": "box", "value": {"x": 1, "rectanglelabels": ["car"]}}
        tasks[0]["annotations"][0]["result"] += [box, {"type": "relation", "from_id": "a", "to_id": "b"}]
        tasks[1]["annotations"] = []

    _edit(next(tmp_path.glob("*.json")), change)
    for path in (tmp_path / "masks").glob("task-6-*"):
        path.unlink()
    report = check_data("folder", tmp_path, ["all"], workers=0, sheet_rows=0)
    assert report.problems == []
    assert any("1 regions are no brush" in note for note in report.notes)
    assert any("1 images have no brush masks" in note for note in report.notes)


def _laughs(key):
    """Ten names for ten times as much as the one before."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{one}: &{one} [{', '.join([f'*{before}'] * 10)}]" for before, one in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    return "\n".join([*lines, "names: [road, car, sky]", f"{key}: [*i, x]", ""])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_laughs("names"), "'names' must be words"),
        (_laughs("train"), "'train' must be words"),
        (_laughs("path"), "'path' must be words"),
        ("names: " + "[" * 5000 + "]" * 5000, "recursion"),
        ("names: {0: road, 7: car}", "numbered 0, 7, not 0 to 1"),
        ("names: 2020-99-99", "must hold 'names'"),
        ("names: [road, {}]", "has a dict"),
        ("names: " + "9" * 5000, "digits"),
    ],
)
def test_lists_of_classes_that_stand_for_more_than_they_say(text, words, tmp_path):
    label_trees.yolo(tmp_path, label_trees.scenes(count=1))
    (tmp_path / "data.yaml").write_text(text)
    _one(_problems(tmp_path), str(tmp_path / "data.yaml"), words)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"])
@pytest.mark.parametrize("name", ["coco", "labelme", "label_studio"])
def test_json_that_is_nested_without_end(name, text, tmp_path):
    getattr(label_trees, name)(tmp_path, label_trees.scenes(count=1))
    path = next(one for one in sorted(tmp_path.rglob("*.json")) if "val" not in one.name)
    path.write_text(text)
    problems = _problems(tmp_path)
    assert any(str(path) in one for one in problems)
    assert not any("\n" in one or len(one) > 600 for one in problems)
