"""Memory and open descriptors over thousands of images or steps, in a process of its own and those that it starts.

python tests/long_runs.py predict|train FOLDER COUNT prints rows of: done, MiB, descriptors, processes.
"""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np

ROWS = 40


def family(pid="self"):
    """A process, and all that it started."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from family(child)
    yield pid


def now():
    """MiB in memory, of other processes what they do not share; open descriptors; processes."""
    mib, opened, processes = 0.0, 0, list(family())
    for pid in processes:
        kind = "Rss" if pid == "self" else "Private_Clean|Private_Dirty"
        found = re.findall(rf"^(?:{kind}): +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        mib += sum(map(int, found)) / 2**10
        opened += len(os.listdir(f"/proc/{pid}/fd"))
    return round(mib, 1), opened, len(processes)


def predict(folder, count):
    """As `cacseg predict` does it, with threads that read and write."""
    from PIL import Image

    import cacseg
    from cacseg.runtime.folder import SaveOptions, predict_files
    from cacseg.runtime.inputs import find_images
    from cacseg.runtime.journal import Journal
    from engine_runs import small_model

    images = folder / "images"
    images.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for k in range(count):
        Image.fromarray(rng.integers(0, 256, (32 + 8 * (k % 3), 40, 3), np.uint8)).save(images / f"{k:05d}.png")
    backend, rows = cacseg.Predictor(small_model(), device="cpu").backend, []

    def progress(done, failed):
        if done % (count // ROWS) == 0:
            rows.append((done, *now()))

    output = folder / "out"
    with Journal(output, {}) as journal:
        inputs, save = find_images([images], output), SaveOptions(confidence=True)
        found = predict_files(backend, inputs, journal, save=save, batch=4, workers=2, progress=progress)
    assert (found.written, found.failed) == (count, [])
    return rows


def train(folder, count):
    """With validations, checkpoints and averaged weights, and images read by processes."""
    from engine_runs import crop_32, run, small_loaders, small_task

    rows, batch = [], 2

    def report(text):
        if text.startswith("step "):
            rows.append((int(text.split()[1].partition("/")[0]), *now()))

    every = count // ROWS
    options = {"batch": batch, "validate_every": every, "save_every": every, "ema_decay": 0.99, "log_every": 10}
    task = small_task(steps=count, rate=1e-4, **options)
    loaders = small_loaders(transform=crop_32, batch=batch, workers=2)
    run(folder / "run", count, task=task, loaders=loaders, report=report)
    return rows


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    what, folder, count = sys.argv[1:]
    print(json.dumps({"predict": predict, "train": train}[what](Path(folder), int(count))))
