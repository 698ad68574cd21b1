"""OpenCV and torchvision's v2 transforms, step by step, one thread: python benchmarks/opencv_or_torchvision.py

Each step of the training transforms on a 683x512 scene of 8 bits, in turns; medians in ms, and the largest difference
of the results where both compute the same thing (distortion: theirs is one hue and one saturation change).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import cv2
import numpy as np
import torch

from cacseg.bench.data import one_thread
from cacseg.bench.machine import processor_name
from cacseg.data import open_data

ROUNDS, REPEATS = 9, 10


def main() -> None:
    import torchvision  # type: ignore[import-untyped]
    from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
    from torchvision.transforms.v2 import functional as V2  # type: ignore[import-untyped]

    image, labels = open_data("synthetic", None, "train", size=(512, 683)).read(0)
    planes, label_plane = torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(labels)[None]
    values = np.arange(256)
    contrast = np.clip(values * 1.3 - 20.0, 0, 255).astype(np.uint8)
    hsv_table = np.stack([(values + 9) % 180, np.clip(values * 1.2, 0, 255), values], -1).astype(np.uint8)[:, None]

    def resize(size: tuple[int, int]) -> tuple[Callable[[], object], Callable[[], object]]:
        return (
            lambda: cv2.resize(image, size[::-1]),
            lambda: V2.resize(planes, list(size), InterpolationMode.BILINEAR, antialias=False),
        )

    def opencv_distort() -> object:
        hsv = cv2.cvtColor(cv2.LUT(image, contrast), cv2.COLOR_RGB2HSV)
        return cv2.cvtColor(cv2.LUT(hsv, hsv_table), cv2.COLOR_HSV2RGB)

    def torchvision_distort() -> object:
        changed = V2.adjust_contrast(V2.adjust_brightness(planes, 0.9), 1.3)
        return V2.adjust_hue(V2.adjust_saturation(changed, 1.2), 0.05)

    steps: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "resize to 1366x1024": resize((1024, 1366)),
        "resize to 512x384": resize((384, 512)),
        "labels to 1366x1024": (
            lambda: cv2.resize(labels, (1366, 1024), interpolation=cv2.INTER_NEAREST),
            lambda: V2.resize(label_plane, [1024, 1366], InterpolationMode.NEAREST),
        ),
        "flip": (lambda: cv2.flip(image, 1), lambda: V2.horizontal_flip(planes)),
        "distort": (opencv_distort, torchvision_distort),
    }
    print(f"opencv {cv2.__version__}, torchvision {torchvision.__version__}, {processor_name()}\n")
    print("| step | OpenCV ms | torchvision ms | largest difference |\n|---|---|---|---|")
    with one_thread():
        for name, pair in steps.items():
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS):
                for which, step in enumerate(pair):
                    start = time.process_time()
                    for _ in range(REPEATS):
                        step()
                    times[which].append(1e3 * (time.process_time() - start) / REPEATS)
            ours, theirs = np.asarray(pair[0]()).astype(int), np.asarray(pair[1]()).astype(int)
            theirs = theirs.transpose(1, 2, 0) if ours.ndim == 3 else theirs[0]
            difference = "-" if name == "distort" else str(abs(ours - theirs).max())
            print(f"| {name} | {statistics.median(times[0]):.2f} | {statistics.median(times[1]):.2f} | {difference} |")


if __name__ == "__main__":
    main()
