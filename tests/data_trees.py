"""Miniature data sets in their exact layouts, written with Pillow and scipy alone."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat
from torch.utils.data import Dataset

SIZE = (24, 32)  # height, width


def image(seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def raw_labels(values: list[int], seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Every one of the values occurs (while there is room), the rest is random."""
    labels = np.random.default_rng(seed).choice(np.array(values), size)
    labels.reshape(-1)[: len(values)] = values
    return labels.astype(np.uint8 if max(values) < 256 else np.uint16)


def write(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".mat":
        savemat(path, {"LabelMap": array})
    else:
        Image.fromarray(array).save(path)
    return path


def write_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def zipped(folder: Path, target: Path, top: str = "") -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, (Path(top) / path.relative_to(folder)).as_posix())
    return target


def ade20k(root: Path, count: int = 3) -> list[np.ndarray]:
    """Returns the raw labels of the train split; likewise below."""
    base, raw = root / "ADEChallengeData2016", []
    for split, prefix in (("training", "ADE_train"), ("validation", "ADE_val")):
        for k in range(count):
            labels = raw_labels(list(range(151)), k)
            write(base / "images" / split / f"{prefix}_{k + 1:08d}.jpg", image(k))
            write(base / "annotations" / split / f"{prefix}_{k + 1:08d}.png", labels)
            raw += [labels] if split == "training" else []
    return raw


def cocostuff(root: Path, prepared: bool = False, count: int = 3) -> list[np.ndarray]:
    unused = {11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90}
    values = [*range(171), 255] if prepared else [*(v for v in range(182) if v not in unused), 255]
    base, raw = root / "coco_stuff164k", []
    for split in ("train2017", "val2017"):
        for k in range(count):
            labels = raw_labels(values, k)
            write(base / "images" / split / f"{k:012d}.jpg", image(k))
            ending = "_labelTrainIds" if prepared else ""
            write(base / "annotations" / split / f"{k:012d}{ending}.png", labels)
            raw += [labels] if split == "train2017" else []
    return raw


def cityscapes(root: Path, train_ids: bool = False) -> list[np.ndarray]:
    values, raw = ([*range(19), 255] if train_ids else list(range(34))), []
    for split in ("train", "val"):
        for k, city in enumerate(("aachen", "bochum", "bochum")):
            name = f"{city}_{k:06d}_000019"
            labels = raw_labels(values, k)
            write(root / "leftImg8bit" / split / city / f"{name}_leftImg8bit.png", image(k))
            kind = "labelTrainIds" if train_ids else "labelIds"
            write(root / "gtFine" / split / city / f"{name}_gtFine_{kind}.png", labels)
            write(root / "gtFine" / split / city / f"{name}_gtFine_color.png", image(k))
            write(root / "gtFine" / split / city / f"{name}_gtFine_instanceIds.png", labels.astype(np.uint16))
            write_text(root / "gtFine" / split / city / f"{name}_gtFine_polygons.json", "{}")
            raw += [labels] if split == "train" else []
    return raw


def pascal_context(root: Path, mat: bool = False) -> list[np.ndarray]:
    base, raw, names = root / "VOCdevkit" / "VOC2010", [], {"train": [], "val": []}
    for k in range(6):
        name, split = f"2008_{k:06d}", "train" if k < 3 else "val"
        names[split].append(name)
        labels = raw_labels(list(range(460)) if mat else list(range(60)), k)
        write(base / "JPEGImages" / f"{name}.jpg", image(k))
        folder = base / ("trainval" if mat else "SegmentationClassContext")
        write(folder / (name + (".mat" if mat else ".png")), labels)
        raw += [labels] if split == "train" else []
    write(base / "JPEGImages" / "2008_009999.jpg", image(9))  # VOC has images of other tasks
    kind = "Main" if mat else "SegmentationContext"
    for split, lines in names.items():
        write_text(base / "ImageSets" / kind / f"{split}.txt", "\n".join(lines) + "\n")
    return raw


def folder(root: Path, classes: str = "road\ncar\nsky\n", count: int = 3) -> list[np.ndarray]:
    raw = []
    num_classes = len(classes.split("\n")) - 1
    for split in ("train", "val"):
        for k, suffix in zip(range(count), (".jpg", ".png", ".webp", ".bmp", ".tif", ".JPEG"), strict=False):
            labels = raw_labels([*range(num_classes), 255], k)
            write(root / "images" / split / f"day{k % 2}" / f"{k}{suffix}", image(k))
            write(root / "labels" / split / f"day{k % 2}" / f"{k}.png", labels)
            raw += [labels] if split == "train" else []
    write_text(root / "classes.txt", classes)
    order = sorted(range(count), key=lambda k: (k % 2, k))  # the order of paths
    return [raw[k] for k in order]


class Reader(Dataset):
    """One number for each image; a spawned process imports it from here."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return int(self.data.read(index).image.astype("int64").sum())
