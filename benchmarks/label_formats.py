"""Reading the formats of labelling tools: python benchmarks/label_formats.py CAMVID [--labelme SITE_PACKAGES]

Images a second of the training pipeline (reading and `TrainTransform`, one thread, processor time) with the same labels
in each format, beside index PNGs in the same round. Opening a COCO file of 100,000 annotations in a process of its own:
seconds, and the peak of its memory. Pixels that pycocotools, and LabelMe where `pip install --target SITE_PACKAGES
--no-deps labelme` has put it, draw otherwise.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import io
import json
import logging
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from cacseg._files import write_file
from cacseg.bench.data import one_thread
from cacseg.bench.machine import processor_name
from cacseg.data import SegmentationData, TrainTransform, open_data
from cacseg.data.spans import encode_runs, mask_runs
from cacseg.data.transforms import NUMBERS
from cacseg.runtime.colours import index_png
from cacseg.runtime.outlines import outlines

CROP = (352, 480)  # of the recipe for CamVid
Labels = npt.NDArray[np.uint8]


class Scene:
    """A pair of CamVid, with its polygons, which are `simplify` pixels off its labels."""

    def __init__(self, data: SegmentationData, index: int, content: bytes, simplify: float) -> None:
        self.name, self.image, self.names = data.image_name(index).replace("/", "_"), content, list(data.class_names)
        self.labels, self.palette = data.read(index).labels, data.palette
        found = outlines(self.labels, simplify)
        self.polygons = [(label, points.astype(float)) for label, points in found if label != data.ignore_index]


def write_folder(root: Path, scenes: list[Scene]) -> None:
    write_file(root / "classes.txt", "\n".join(scenes[0].names))
    for one in scenes:
        write_file(root / f"images/train/{one.name}.jpg", one.image)
        write_file(root / f"labels/train/{one.name}.png", index_png(one.labels, one.palette))


def write_voc(root: Path, scenes: list[Scene], palette: bool) -> None:
    colours = np.zeros((256, 3), np.uint8)
    colours[: len(scenes[0].palette)], colours[255] = scenes[0].palette, (224, 224, 192)
    lines = [
        f"{name}:{','.join(map(str, colour))}::"
        for name, colour in zip(scenes[0].names, scenes[0].palette, strict=True)
    ]
    write_file(root / "labelmap.txt", "\n".join(lines))
    write_file(root / "ImageSets/Segmentation/train.txt", "\n".join(one.name for one in scenes))
    for one in scenes:
        picture = Image.fromarray(one.labels if palette else colours[one.labels])
        if palette:
            picture.putpalette(colours.tobytes())
        content = io.BytesIO()
        picture.save(content, "PNG")
        write_file(root / f"SegmentationClass/{one.name}.png", content.getvalue())
        write_file(root / f"JPEGImages/{one.name}.jpg", one.image)


def write_labelme(root: Path, scenes: list[Scene], masks: bool) -> None:
    for one in scenes:
        shapes: list[dict[str, Any]] = []
        if masks:
            for label in np.unique(one.labels[one.labels != 255]).tolist():
                content = io.BytesIO()
                Image.fromarray(one.labels == label).save(content, "PNG")
                corners = [[0, 0], [one.labels.shape[1] - 1, one.labels.shape[0] - 1]]
                text = base64.b64encode(content.getvalue()).decode()
                shapes.append({"label": one.names[label], "shape_type": "mask", "points": corners, "mask": text})
        else:
            shapes = [{"label": one.names[k], "points": points.tolist()} for k, points in one.polygons]
        height, width = one.labels.shape
        stated = {"imagePath": f"{one.name}.jpg", "imageHeight": height, "imageWidth": width, "shapes": shapes}
        write_file(root / f"train/{one.name}.json", json.dumps(stated))
        write_file(root / f"train/{one.name}.jpg", one.image)


def write_yolo(root: Path, scenes: list[Scene]) -> None:
    write_file(root / "data.yaml", f"train: train/images\nnames: {json.dumps(scenes[0].names)}\n")
    for one in scenes:
        size = one.labels.shape[::-1]
        lines = [f"{k} " + " ".join(f"{x:.6f}" for x in (points / size).ravel()) for k, points in one.polygons]
        write_file(root / f"train/labels/{one.name}.txt", "\n".join(lines))
        write_file(root / f"train/images/{one.name}.jpg", one.image)


def write_coco(root: Path, scenes: list[Scene], masks: bool) -> None:
    images, annotations = [], list[dict[str, Any]]()
    for number, one in enumerate(scenes):
        size = list(one.labels.shape)
        images.append({"id": number, "file_name": f"{one.name}.jpg", "height": size[0], "width": size[1]})
        write_file(root / f"images/train/{one.name}.jpg", one.image)
        outlined: Iterable[tuple[int, Any]] = ((label, [points.ravel().tolist()]) for label, points in one.polygons)
        if masks:
            present = np.unique(one.labels[one.labels != 255]).tolist()
            runs = ((label, encode_runs(mask_runs(one.labels == label)).decode()) for label in present)
            outlined = ((label, {"size": size, "counts": text}) for label, text in runs)
        annotations += [{"image_id": number, "category_id": k, "segmentation": outline} for k, outline in outlined]
    categories = [{"id": k, "name": name} for k, name in enumerate(scenes[0].names)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    write_file(root / "annotations/instances_train.json", json.dumps(content))


WRITERS: dict[str, Callable[[Path, list[Scene]], None]] = {
    "index PNGs": write_folder,
    "VOC, colours": lambda root, scenes: write_voc(root, scenes, False),
    "VOC, palettes": lambda root, scenes: write_voc(root, scenes, True),
    "COCO, polygons": lambda root, scenes: write_coco(root, scenes, False),
    "COCO, run lengths": lambda root, scenes: write_coco(root, scenes, True),
    "LabelMe, polygons": lambda root, scenes: write_labelme(root, scenes, False),
    "LabelMe, masks": lambda root, scenes: write_labelme(root, scenes, True),
    "YOLO": write_yolo,
}


def pipelines(root: Path, scenes: list[Scene], rounds: int) -> list[dict[str, Any]]:
    opened, transform = {}, TrainTransform(CROP)
    for name, write in WRITERS.items():
        write(root / name, scenes)
        opened[name] = open_data("folder", root / name, "train")
    names = list(opened)
    rates: dict[str, list[float]] = {name: [] for name in names}
    with one_thread():
        for number in range(rounds + 1):
            seconds = dict.fromkeys(opened, 0.0)
            for index in range(len(scenes)):
                first = (number + index) % len(opened)  # in turns, image by image
                for name in (*names[first:], *names[:first]):
                    start = time.process_time()
                    sample = opened[name].read(index)
                    transform(sample, np.random.default_rng((number, index)).random(NUMBERS))
                    seconds[name] += time.process_time() - start
            if number:  # the first round fills the file cache
                for name, spent in seconds.items():
                    rates[name].append(len(scenes) / spent)
    rows = []
    for name, found in rates.items():
        beside = [one / png for one, png in zip(found, rates["index PNGs"], strict=True)]
        rows.append(
            {
                "labels": name,
                "images_per_second": statistics.median(found),
                "ratio": statistics.median(beside),
                "least_ratio": min(beside),
                "largest_ratio": max(beside),
            }
        )
    return rows


def write_large(root: Path, images: int = 5000, annotations: int = 100_000) -> float:
    """A COCO file of polygons with 8 to 60 points, one in twenty a crowd of run lengths; its MB."""
    rng = np.random.default_rng(0)
    listed, found = [], []
    runs = encode_runs(mask_runs(rng.random((480, 640)) < 0.02)).decode()[:400]
    for k in range(images):
        (root / f"images/train/{k}.jpg").parent.mkdir(parents=True, exist_ok=True)
        (root / f"images/train/{k}.jpg").touch()
        listed.append({"id": k, "file_name": f"{k}.jpg", "height": 480, "width": 640})
    for k in range(annotations):
        points = rng.uniform((0, 0), (640, 480), (rng.integers(8, 60), 2)).round(2)
        crowd = k % 20 == 0
        outline = {"size": [480, 640], "counts": runs} if crowd else [points.ravel().tolist()]
        stated = {"id": k, "image_id": k % images, "category_id": k % 80 + 1, "iscrowd": int(crowd)}
        low, high = points.min(0).tolist(), points.max(0).tolist()
        found.append({**stated, "segmentation": outline, "bbox": [*low, *high], "area": 1.0})
    categories = [{"id": k + 1, "name": f"class {k}", "supercategory": "none"} for k in range(80)]
    text = json.dumps({"images": listed, "annotations": found, "categories": categories})
    write_file(root / "annotations/instances_train.json", text)
    return len(text) / 1e6


def open_alone(root: str) -> None:
    """What a process of its own prints."""
    start = time.process_time()
    data = open_data("coco", root, "train")
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # KiB on Linux
    print(json.dumps({"images": len(data), "annotations": 100_000, "seconds": seconds, "peak_mb": peak}))


def drawn_otherwise(root: Path, scenes: list[Scene], labelme: str | None) -> dict[str, float]:
    """The share of pixels that other programs draw otherwise, of polygons with corners between pixels."""
    from pycocotools import mask as coco_mask  # type: ignore[import-untyped]

    for k, one in enumerate(scenes):  # as people set them
        noise = np.random.default_rng(k)
        one.polygons = [(label, points + noise.uniform(-0.5, 0.5, points.shape)) for label, points in one.polygons]
        size = np.array(one.labels.shape[::-1])
        one.polygons = [(label, points.clip(0, size).round(3)) for label, points in one.polygons]
    write_labelme(root, scenes, False)
    ours = open_data("labelme", root, "train", uncovered="ignore")
    names = list(ours.class_names)
    draw_theirs = None if labelme is None else _labelme_drawing(labelme)
    total, counts = 0, dict.fromkeys(("pycocotools", *(("LabelMe",) if draw_theirs else ())), 0)
    for k, one in enumerate(sorted(scenes, key=lambda scene: scene.name)):
        labels = ours.read(k).labels
        theirs = np.full(labels.shape, 255, np.uint8)
        for label, points in one.polygons:
            runs = coco_mask.frPyObjects([points.ravel().tolist()], *labels.shape)
            theirs[np.asarray(coco_mask.decode(runs))[..., 0] == 1] = names.index(one.names[label])
        total += labels.size
        counts["pycocotools"] += int((labels != theirs).sum())
        if draw_theirs is not None:
            shapes = [{"label": one.names[label], "points": points.tolist()} for label, points in one.polygons]
            drawn, _ = draw_theirs(labels.shape, shapes, {name: names.index(name) + 1 for name in names})
            counts["LabelMe"] += int((labels != (drawn - 1).astype(np.uint8)).sum())
    return {name: count / total for name, count in counts.items()}


def _labelme_drawing(folder: str) -> Callable[..., Any]:
    """`labelme.utils.shapes_to_label`, without the windows that the package imports."""
    for name, path in (("labelme", "labelme"), ("labelme.utils", "labelme/utils")):
        package = types.ModuleType(name)
        package.__path__ = [f"{folder}/{path}"]
        sys.modules[name] = package
    logger = types.ModuleType("labelme.logger")
    logger.logger = logging.getLogger("labelme")  # type: ignore[attr-defined]
    sys.modules["labelme.logger"] = logger
    drawing: Callable[..., Any] = importlib.import_module("labelme.utils.shape").shapes_to_label
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("camvid", nargs="?")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    parser.add_argument("--labelme", help="a folder of installed packages with labelme")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/label_formats.json"))
    options = parser.parse_args()
    if options.open:
        open_alone(options.open)
        return
    data = open_data("camvid", options.camvid, "train")
    indices = np.linspace(0, len(data) - 1, options.images).astype(int).tolist()
    contents = [data.files.read(data.pairs[k].image) for k in indices]  # type: ignore[attr-defined]
    exact, near = (
        [Scene(data, k, content, simplify) for k, content in zip(indices, contents, strict=True)]
        for simplify in (0.0, 1.0)
    )
    result: dict[str, Any] = {"date": options.date, "hardware": processor_name(), "python": platform.python_version()}
    result["command"] = "python benchmarks/label_formats.py CAMVID --labelme SITE_PACKAGES"
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for name, scenes in (("exact", exact), ("simplified", near)):
            corners = sum(len(points) for one in scenes for _, points in one.polygons) / len(scenes)
            rows = pipelines(root / name, scenes, options.rounds)
            result[name] = {"corners_per_image": corners, "rows": rows}
            print(name, corners, *rows, sep="\n")
        megabytes = write_large(root / "large")
        opened = subprocess.run(
            [sys.executable, __file__, "--open", str(root / "large")], check=True, capture_output=True, text=True
        )
        result["opening"] = {"file_mb": megabytes, **json.loads(opened.stdout)}
        result["drawn_otherwise"] = drawn_otherwise(root / "drawn", near, options.labelme)
    print(result["opening"], result["drawn_otherwise"])
    write_file(options.json, json.dumps(result, indent=2) + "\n", overwrite=True)


if __name__ == "__main__":
    main()
