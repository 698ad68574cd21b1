"""Images a second that one core reads and transforms for training."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from cacseg._files import write_file
from cacseg.bench.machine import processor_name
from cacseg.data import SegmentationData, TrainTransform, open_data
from cacseg.data.synthetic import CLASSES
from cacseg.data.transforms import NUMBERS

QUALITY = 90  # of the generated JPEGs


@dataclass(frozen=True)
class Throughput:
    """Medians over rounds, of one process with one thread."""

    images_per_second: float
    read_ms: float
    transform_ms: float
    rounds: tuple[float, ...]  # images a second of each
    images: int  # a round

    def as_json(self) -> dict[str, Any]:
        """With the machine and the versions that the numbers belong to."""
        versions = {"opencv": cv2.__version__, "numpy": np.__version__, "torch": torch.__version__}
        return {**asdict(self), "processor": processor_name(), "python": platform.python_version(), **versions}


def write_generated(root: Path, count: int, size: tuple[int, int] = (512, 683), seed: int = 0) -> None:
    """An ADE20K tree of generated scenes: JPEGs, and PNGs whose labels lie among the 150 classes."""
    scenes = open_data("synthetic", None, "train", size=size, length=count, seed=seed)
    values = np.zeros(256, np.uint8)
    for index in range(count):
        sample = scenes.read(index)
        values[: len(CLASSES)] = np.random.default_rng((seed, index)).permutation(150)[: len(CLASSES)] + 1
        for kind, suffix, array in (
            ("images", ".jpg", cv2.cvtColor(sample.image, cv2.COLOR_RGB2BGR)),
            ("annotations", ".png", values[sample.labels]),
        ):
            path = root / "ADEChallengeData2016" / kind / "training" / f"ADE_train_{index + 1:08d}{suffix}"
            options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY] if suffix == ".jpg" else []
            write_file(path, cv2.imencode(suffix, array, options)[1].tobytes())


def measure(
    data: SegmentationData,
    transform: TrainTransform,
    *,
    images: int = 100,
    rounds: int = 5,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Throughput:
    """Times reading and transforming `images` images a round; a first round, untimed, fills the file cache."""
    if images < 1 or rounds < 1:
        raise ValueError(f"images and rounds must be at least 1; got {images} and {rounds}.")
    seen = []  # of each round: images a second, milliseconds an image to read and to transform
    with one_thread():
        for number in range(rounds + 1):
            read_s = transform_s = 0.0
            for position in range(images):
                start = time.perf_counter()
                sample = data.read(position % len(data))
                middle = time.perf_counter()
                transform(sample, np.random.default_rng((seed, number * images + position)).random(NUMBERS))
                end = time.perf_counter()
                read_s += middle - start
                transform_s += end - middle
            if progress is not None:
                progress(number)
            if number:
                seen.append((images / (read_s + transform_s), 1e3 * read_s / images, 1e3 * transform_s / images))
    speed, read_ms, transform_ms = (statistics.median(column) for column in zip(*seen, strict=True))
    return Throughput(speed, read_ms, transform_ms, rounds=tuple(one for one, _, _ in seen), images=images)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for OpenCV and torch, as in a loader's worker; restored afterwards."""
    before = cv2.getNumThreads(), torch.get_num_threads()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before[0])
        torch.set_num_threads(before[1])
