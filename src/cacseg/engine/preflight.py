"""Checks before training: folder, disk space, data, model, crop."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cacseg._files import acquire_lock, is_scratch
from cacseg.data import SegmentationData
from cacseg.data.label_map import MASK_HINT
from cacseg.data.sample import FaultyDataError, read_sample
from cacseg.engine._lightning import is_first_process
from cacseg.models import SegmentationModel

# What a run that was refused before its first step may leave; the event files are empty then, and the log is of a run
# in a process of its own.
BEFORE_A_RUN = frozenset({".lock", "tensorboard", "train.log"})


def check_folder(folder: Path, *, resume: bool) -> None:
    """A new run gets a folder of its own; a resumed one has its folder."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; a run needs a folder. Choose another with -o.")
    if resume:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} does not exist: there is no run to resume. Leave --resume out to start.")
    elif folder.is_dir() and any(not _is_before_a_run(path) for path in folder.iterdir()):
        raise FileExistsError(
            f"{folder} exists and is not empty; a run is never overwritten. Continue it with --resume, or choose "
            "another folder with -o."
        )
    nearest = _nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise PermissionError(
            f"{nearest} cannot be written to ({error.strerror}), and the run would be there. Choose another with -o."
        ) from error


def _is_before_a_run(path: Path) -> bool:
    return path.name in BEFORE_A_RUN or is_scratch(path)


def folder_lock(folder: Path) -> AbstractContextManager[Any]:
    """Keeps other runs out of the folder, by a lock of the operating system that ends with this process."""
    return acquire_lock(folder, "training") if is_first_process() else nullcontext()


def check_space(folder: Path, checkpoint: int, model: int) -> None:
    """Space for the files of a run, each written beside the one that it replaces."""
    needed = 2 * checkpoint + 3 * model
    here = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
    free = shutil.disk_usage(_nearest(folder)).free
    if free + here < needed:
        raise OSError(
            f"the disk of {folder} must have room for the checkpoints, about {needed / 1e9:.2f} GB (each is written "
            f"beside the one it replaces); {free / 1e9:.2f} GB are free. Free some, or choose another with -o."
        )


def check_data(train: SegmentationData, validation: SegmentationData) -> None:
    """Both splits have images, and the same classes and ignore index."""
    for data in (train, validation):
        if len(data) == 0:
            raise ValueError(f"a split must have images; {data.split!r} of {data.name} has none.")
    count, ignored = len(train.class_names), train.ignore_index
    if list(train.class_names) != list(validation.class_names) or ignored != validation.ignore_index:
        raise ValueError(
            f"both splits of {train.name} must have the same classes and ignore index; got {count} classes, "
            f"{ignored} and {len(validation.class_names)}, {validation.ignore_index}."
        )
    if 0 <= ignored < count:
        raise ValueError(
            f"the ignore index must not be a class; got {ignored}, which is {train.class_names[ignored]!r} of the "
            f"{count} classes of {train.name}. Use 255, or a value that no class has."
        )


def check_foreground(data: SegmentationData) -> None:
    """With two classes, some pixel has the second: masks of 0 and 255 read as the first class and ignored pixels.

    Reads images until one has it, usually the first.
    """
    if len(data.class_names) != 2:
        return
    ignored = 0
    for index in range(len(data)):
        labels = read_sample(data, index).labels
        if (labels == 1).any():
            return
        ignored += int((labels == data.ignore_index).sum())
    raise FaultyDataError(
        f"some pixel must have the second of two classes; none of the {len(data)} images of {data.split!r} of "
        f"{data.name} has {data.class_names[1]!r} (1), and {ignored} pixels are ignored. {MASK_HINT}"
    )


def check_model(model: SegmentationModel, data: SegmentationData) -> None:
    """The model has the classes and the ignore index of the data."""
    if model.num_classes != len(data.class_names):
        raise ValueError(
            f"the model must have the classes of the data; got {model.num_classes} for the {len(data.class_names)} of "
            f"{data.name}."
        )
    if model.ignore_index != data.ignore_index:
        raise ValueError(
            f"model and data must ignore the same label; got {model.ignore_index} and {data.ignore_index} of "
            f"{data.name}. Create the model with ignore_index={data.ignore_index}."
        )


def check_channels(model: SegmentationModel, data: SegmentationData) -> None:
    """The first image is of bytes, red, green and blue, or has the bands that the model takes."""
    image = read_sample(data, 0).image
    found = None if image.dtype == "uint8" else image.shape[2]
    if found != model.bands:
        images, takes = (
            "red, green and blue bytes" if one is None else f"{one} band(s)" for one in (found, model.bands)
        )
        raise ValueError(
            f"the model takes images of {takes}; those of {data.name} are {images}. Create the model with "
            f"bands={found}, or open the data with bands={model.bands}."
        )


def check_crop(
    crop: tuple[int, int], scale: tuple[int, int] | None, ratios: tuple[float, float], data: SegmentationData
) -> None:
    """One of the first images, resized, can fill the crop; otherwise every crop would be padded."""
    largest, count = (0, 0), min(3, len(data))
    for index in range(count):
        height, width = read_sample(data, index).labels.shape
        factor = ratios[1]
        if scale is not None:
            factor *= min(max(scale) / max(height, width), min(scale) / min(height, width))
        largest = max(largest[0], round(height * factor)), max(largest[1], round(width * factor))
    if crop[0] > largest[0] or crop[1] > largest[1]:
        raise ValueError(
            f"the crop must fit into an image at its largest; got {crop[0]}x{crop[1]} (height x width), and the first "
            f"{count} images become at most {largest[0]}x{largest[1]}. Lower data.crop, or raise data.scale or "
            "data.ratios."
        )


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
