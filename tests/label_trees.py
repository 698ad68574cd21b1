"""Labels written as labelling tools write them, from maps of classes; 255 is ignored."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

import data_trees as trees
from cacseg.runtime.outlines import outlines

NAMES = ("road", "car", "sky")
COLOURS = np.array([[128, 64, 128], [0, 0, 142], [70, 130, 180]], np.uint8)
IGNORED = "__ignore__"


def scenes(splits=("train", "val"), count=2, size=trees.SIZE):
    """Split, name, image and labels; blobs with others inside of them, and single pixels."""
    made = []
    for s, split in enumerate(splits):
        for k in range(count):
            rng = np.random.default_rng((s, k))
            coarse = rng.choice(np.array([0, 1, 2, 255], np.uint8), (size[0] // 4 + 1, size[1] // 4 + 1))
            labels = np.kron(coarse, np.ones((4, 4), np.uint8))[: size[0], : size[1]].copy()
            labels[rng.random(size) < 0.1] = rng.integers(0, 3)
            made.append((split, f"{split}_{k}", trees.image(10 * s + k, size), labels))
    return made


def _name(value, names):
    return IGNORED if value == 255 else names[value]


def coco(root, made, kind="polygon", style="cvat", names=NAMES):
    """Category ids have gaps. `style`: cvat, roboflow, or label_studio without splits."""
    split_names = {"train": "train", "val": "valid" if style == "roboflow" else "val"}
    ids = [3 * k + 7 for k in range(len(names) + 1)]
    for split in dict.fromkeys(one[0] for one in made):
        images, annotations = [], []
        for name, image, labels in (one[1:] for one in made if one[0] == split):
            folder = {"cvat": f"images/{split}", "roboflow": split_names[split], "label_studio": "images"}[style]
            trees.write(root / folder / f"{name}.png", image)
            file_name = f"images/{name}.png" if style == "label_studio" else f"{name}.png"
            height, width = labels.shape
            images.append({"id": 100 + len(images), "file_name": file_name, "height": height, "width": width})
            for value, outline in _coco_outlines(labels, kind):
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": images[-1]["id"],
                        "category_id": ids[-1 if value == 255 else value],
                        "segmentation": outline,
                        "iscrowd": int(isinstance(outline, dict)),
                    }
                )
        categories = [{"id": one, "name": name} for one, name in zip(ids, (*names, IGNORED), strict=True)]
        if style == "roboflow":  # a row that groups the others
            categories = [{**one, "supercategory": "things"} for one in categories]
            categories.append({"id": 0, "name": "things", "supercategory": "none"})
        place = {
            "cvat": f"annotations/instances_{split}.json",
            "roboflow": f"{split_names[split]}/_annotations.coco.json",
            "label_studio": "result.json",
        }[style]
        trees.write_text(
            root / place, json.dumps({"images": images, "categories": categories, "annotations": annotations})
        )


def _coco_outlines(labels, kind):
    if kind == "polygon":
        yield from ((value, [points.ravel().tolist()]) for value, points in outlines(labels))
        return
    for value in np.unique(labels).tolist():
        runs = coco_mask.encode(np.asfortranarray(labels == value).astype(np.uint8))
        if kind == "compressed":
            yield value, {"size": list(labels.shape), "counts": runs["counts"].decode()}
        else:
            flat = np.concatenate([[0], (labels == value).T.ravel(), [2]])
            counts = np.diff(np.flatnonzero(flat[1:] != flat[:-1]), prepend=0)
            yield value, {"size": list(labels.shape), "counts": counts.tolist()}


def labelme(root, made, kind="polygon", folders=True, names=NAMES):
    for split, name, image, labels in made:
        place = root / split if folders else root
        trees.write(place / f"{name}.png", image)
        shapes = []
        if kind == "polygon":
            for value, points in outlines(labels):
                shapes.append({"label": _name(value, names), "points": points.tolist(), "shape_type": "polygon"})
        else:
            for value in np.unique(labels).tolist():
                ys, xs = np.nonzero(labels == value)
                y, x = slice(int(ys.min()), int(ys.max()) + 1), slice(int(xs.min()), int(xs.max()) + 1)
                content = io.BytesIO()
                Image.fromarray(labels[y, x] == value).save(content, "PNG")  # as labelme.utils.img_arr_to_b64
                points = [[x.start, y.start], [x.stop - 1, y.stop - 1]]
                text = base64.b64encode(content.getvalue()).decode()
                shapes.append({"label": _name(value, names), "points": points, "shape_type": "mask", "mask": text})
        labelme_file(place / f"{name}.json", shapes, labels.shape)


def labelme_file(path, shapes, size=trees.SIZE):
    content = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": f"{path.stem}.png", "imageData": None}
    trees.write_text(path, json.dumps({**content, "imageHeight": size[0], "imageWidth": size[1]}))


def yolo(root, made, style="roboflow", names=NAMES):
    folders = {"train": "train", "val": "valid" if style == "roboflow" else "val"}
    for split, name, image, labels in made:
        place = ("{}/images", "{}/labels") if style == "roboflow" else ("images/{}", "labels/{}")
        trees.write(root / place[0].format(folders[split]) / f"{name}.png", image)
        height, width = labels.shape
        lines = []
        for value, points in outlines(labels):
            numbers = " ".join(f"{x:.6f}" for x in (points / (width, height)).ravel())
            lines.append(f"{len(names) if value == 255 else value} {numbers}")
        trees.write_text(root / place[1].format(folders[split]) / f"{name}.txt", "\n".join(lines) + "\n")
    if style == "roboflow":
        head = "train: ../train/images\nval: ../valid/images\n"
    else:
        head = "path: .\ntrain: images/train\nval: images/val\n"
    trees.write_text(root / "data.yaml", head + f"nc: {len(names) + 1}\nnames: [{', '.join(names)}, {IGNORED}]\n")


def voc(root, made, palette=False, lists=True, names=NAMES, given=COLOURS):
    colours = np.zeros((256, 3), np.uint8)
    colours[: len(names)], colours[255] = given, (224, 224, 192)
    for split, name, image, labels in made:
        trees.write(root / "JPEGImages" / f"{name}.jpg", image)
        path = root / "SegmentationClass" / f"{name}.png"
        if palette:
            path.parent.mkdir(parents=True, exist_ok=True)
            order = np.random.default_rng(0).permutation(256)  # whatever the program numbered
            picture = Image.fromarray(np.argsort(order).astype(np.uint8)[labels])
            picture.putpalette(colours[order].tobytes())
            picture.save(path)
        else:
            trees.write(path, colours[labels])
        if lists:
            where = root / "ImageSets/Segmentation" / f"{split}.txt"
            trees.write_text(where, (where.read_text() if where.exists() else "") + f"{name}\n")
    lines = [
        f"{name}:{','.join(map(str, colour))}::" for name, colour in zip(names, np.array(given).tolist(), strict=True)
    ]
    trees.write_text(root / "labelmap.txt", "# label:color_rgb:parts:actions\n" + "\n".join(lines) + "\n")


def roboflow_masks(root, made):
    for split, name, image, labels in made:
        place = root / {"val": "valid"}.get(split, split)
        trees.write(place / f"{name}.jpg", image)
        trees.write(place / f"{name}_mask.png", np.where(labels == 255, 255, 2 * labels).astype(np.uint8))
        rows = "\n".join(f" {2 * k}, {one}" for k, one in enumerate(NAMES))
        trees.write_text(place / "_classes.csv", f"Pixel Value, Class\n{rows}\n")


def label_studio(root, made, names=NAMES):
    """'Brush labels to PNG' and the JSON export; uploaded images have a prefix there."""
    tasks = []
    for k, (_, name, image, labels) in enumerate(made):
        trees.write(root / "images" / f"{name}.png", image)
        results = []
        for value in np.unique(labels).tolist():
            label = _name(value, names)
            path = root / "masks" / f"task-{k + 5}-annotation-{k + 9}-by-1-tag-{label}-0.png"
            trees.write(path, np.where(labels == value, 255, 0).astype(np.uint8))
            region = {"format": "rle", "rle": [0], "brushlabels": [label]}
            results.append({"from_name": "tag", "to_name": "image", "type": "brushlabels", "value": region})
        upload = f"1a2b3c4d-{name}.png"
        annotation = {"id": k + 9, "completed_by": 1, "result": results}
        data = {"image": f"/data/upload/1/{upload}"}
        tasks.append({"id": k + 5, "file_upload": upload, "data": data, "annotations": [annotation]})
    trees.write_text(root / "project-1-at-2026-01-01.json", json.dumps(tasks))
