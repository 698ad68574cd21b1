"""The folder in which the printed commands run: small data of every layout they name, runs, photographs, a film."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import rasterio
import torch

import cacseg
import data_trees as trees
import label_trees
from cacseg.data.class_list import builtin_classes
from test_cli import reference_checkpoint

ROOT = Path(__file__).parent.parent
SIZE = (48, 64)
FRAMES = 6
NAMES = {"train": ("a", "b", "c", "d"), "val": ("0016E5_07959", "0016E5_08043")}  # two that a page names


def _blocks(count: int, seed: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, count, (SIZE[0] // 8, SIZE[1] // 8))
    return coarse.repeat(8, 0).repeat(8, 1).astype(np.uint8)


def _image(labels: np.ndarray, count: int) -> np.ndarray:
    noise = np.random.default_rng(int(labels.sum())).integers(0, 40, (*labels.shape, 3))
    return (labels[..., None] * (200 // count) + noise).astype(np.uint8)


def make_data(root: Path, classes: tuple[str, ...] = ("road", "car", "sky"), bands: int | None = None) -> None:
    """The layout `folder`, or of data sets that have it; of `bands`, 16 bits in TIFF."""
    for split, names in NAMES.items():
        for seed, name in enumerate(names):
            labels = _blocks(len(classes), seed)
            trees.write(root / "labels" / split / f"{name}.png", labels)
            image = root / "images" / split / f"{name}.png"
            if bands is None:
                trees.write(image, _image(labels, len(classes)))
            else:
                make_raster(image.with_suffix(".tif"), bands, seed)
    trees.write_text(root / "classes.txt", "\n".join(classes))


def make_raster(path: Path, bands: int, seed: int = 0) -> None:
    kind = np.uint8 if bands == 3 else np.uint16
    values = np.random.default_rng(seed).integers(1, np.iinfo(kind).max, (bands, *SIZE), kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    place = rasterio.Affine(10.0, 0.0, 500_000.0, 0.0, -10.0, 5_000_000.0)
    shape = {"height": SIZE[0], "width": SIZE[1], "count": bands, "dtype": kind}
    with rasterio.open(path, "w", driver="GTiff", crs="EPSG:32632", transform=place, **shape) as file:
        file.write(values)


def make_model(path: Path, classes: int) -> None:
    torch.manual_seed(0)
    cacseg.create_model("fcn", classes, backbone="test_resnet", head_channels=8).save(path, overwrite=True)


def make_files(folder: Path) -> None:
    """All but the runs, which commands make."""
    make_data(folder / "my_data")
    make_data(folder / "data" / "cityscapes_small")
    for name in ("camvid", "msrc21"):
        make_data(folder / "data" / name, builtin_classes(name).names)
    for make in (trees.ade20k, trees.cocostuff, trees.cityscapes, trees.pascal_context):
        make(folder / "data")
    label_trees.coco(folder / "exported", label_trees.scenes())
    trees.zipped(folder / "exported", folder / "exported.zip")
    for place in ("photos", "more", "frames"):
        for number in range(2 if place == "more" else FRAMES):
            trees.write(folder / place / f"{place}{number}.jpg", _image(_blocks(3, number), 3))
    writer = cv2.VideoWriter(str(folder / "drive.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10.0, SIZE[::-1])
    for number in range(FRAMES):
        writer.write(_image(_blocks(3, number), 3))
    writer.release()
    make_raster(folder / "city.tif", 3)
    make_raster(folder / "scene.tif", 4)
    torch.manual_seed(0)
    released = cacseg.create_model("fcn_mobilenetv2", 150, preset="released", dilated_blocks="first")
    torch.save({"state_dict": reference_checkpoint(released)}, folder / "iter_160000.pth")
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
