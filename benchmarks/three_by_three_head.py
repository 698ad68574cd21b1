"""What a training step costs where the head is a 3x3 convolution, one thread: python benchmarks/three_by_three_head.py

The default's classifier and losses on 16 channels, 19 classes, two maps of 512x512: as `cacseg.convert` runs them, and
with patches that `F.unfold` makes for a 1x1 classifier. Each step in a process of its own, in turns: medians of its
seconds, and of the memory that the process holds at most beside what it held before, in MB.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import cacseg
from cacseg.bench.data import one_thread
from cacseg.bench.machine import processor_name

CHANNELS, CLASSES, SIZE, ROUNDS = 16, 19, 512, 3
FORMS = {
    "converted": "no patches (`cacseg.convert`)",
    "converted, native": "no patches, without oneDNN",  # whose gradients of convolutions are slow on Arm
    "patches": "patches (`F.unfold`)",
}


def make_step(form: str) -> Callable[[int], None]:
    """A training step of the default on maps of a size; both forms have weights of the same sizes."""
    model = cacseg.convert(nn.Sequential(nn.Identity(), nn.Conv2d(CHANNELS, CLASSES, 3, padding=1)), seam="1")
    classifier, loss = cacseg.ContextAwareClassifier(9 * CHANNELS, CLASSES), cacseg.ContextLoss()

    def step(size: int) -> None:
        features = torch.randn(2, CHANNELS, size, size, requires_grad=True)
        labels = torch.randint(0, CLASSES, (2, size, size))
        if form.startswith("converted"):
            losses = model.loss(features, labels)
        else:
            patches = F.unfold(features, 3, padding=1).unflatten(2, (size, size))
            losses = loss(classifier(patches, labels), labels)
        losses["total"].backward()

    return step


def measure(form: str) -> None:
    torch.manual_seed(0)
    torch.backends.mkldnn.set_flags(_enabled=not form.endswith("native"))
    step = make_step(form)
    with one_thread():
        step(SIZE // 16)  # what is imported or set up once
        before, start = peak(), time.perf_counter()
        step(SIZE)
        print(time.perf_counter() - start, peak() - before)


def peak() -> float:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    found: dict[str, list[tuple[float, ...]]] = {form: [] for form in FORMS}
    for _ in range(ROUNDS):
        for form in FORMS:
            done = subprocess.run([sys.executable, __file__, form], capture_output=True, text=True, check=True)
            found[form].append(tuple(map(float, done.stdout.split())))
    print(f"torch {torch.__version__}, {processor_name()}\n\n| | seconds | MB |\n|---|---|---|")
    for form, title in FORMS.items():
        seconds, memory = (statistics.median(values) for values in zip(*found[form], strict=True))
        print(f"| {title} | {seconds:.1f} | {memory:.0f} |")


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else measure(sys.argv[1])
