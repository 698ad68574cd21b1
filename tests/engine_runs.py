"""A small data set in memory, and small runs on it; a module of its own, so that a fresh process can import it."""

from pathlib import Path

import numpy as np
import torch
from torch.optim import SGD

from cacseg.data import Sample
from cacseg.data.transforms import Crop
from cacseg.engine.loaders import Loaders
from cacseg.engine.optim import parameter_groups, polynomial
from cacseg.engine.task import SegmentationTask
from cacseg.models import create_model

CLASSES = ("left", "right", "sky")
STEPS = 12  # of the runs in a process of their own: the schedule is theirs, however many steps are asked for


class Stripes:
    """Images of noise whose labels follow their brightness; every pixel is labelled."""

    name, class_names, ignore_index = "stripes", CLASSES, 255
    palette = ((255, 0, 0), (0, 255, 0), (0, 0, 255))

    def __init__(self, split="train", length=10, size=(40, 56), block=8):
        self.split, self.length, self.size, self.block = split, length, size, block

    def __len__(self):
        return self.length

    def image_name(self, index):
        return f"image_{index:03d}"

    def read(self, index):
        generator = np.random.default_rng([index, len(self.split)])
        rows, columns = (length // self.block for length in self.size)
        labels = generator.integers(0, 3, (rows, columns)).repeat(self.block, 0).repeat(self.block, 1)
        image = labels[..., None] * 80 + generator.integers(0, 60, (*self.size, 3))
        return Sample(image.astype(np.uint8), labels.astype(np.uint8))


def crop_32(sample, generator):
    """A random crop of 32x32, which needs nothing but the generator."""
    top, left = (int(generator.integers(0, length - 31)) for length in sample.labels.shape)
    image = sample.image[top : top + 32, left : left + 32].transpose(2, 0, 1).copy()
    labels = sample.labels[top : top + 32, left : left + 32].copy()
    return Crop(torch.from_numpy(image), torch.from_numpy(labels), (32, 32))


def whole(image):
    return torch.from_numpy(image.transpose(2, 0, 1).copy())


def small_model(preset="released", classifier="context", **arguments):
    """With batch normalisation and, by default, dropout."""
    torch.manual_seed(0)
    return create_model("fcn", 3, classifier, backbone="test_resnet", preset=preset, **arguments)


def small_task(model=None, steps=8, rate=0.02, **arguments):
    model = small_model() if model is None else model
    return SegmentationTask(
        model,
        lambda network: SGD(parameter_groups(network, rate, 1e-4), momentum=0.9),
        lambda step: polynomial(step, steps, 0.9),
        **arguments,
    )


def small_loaders(train=None, validation=None, batch=4, **arguments):
    train = Stripes() if train is None else train
    validation = Stripes("val", 3) if validation is None else validation
    return Loaders(train, validation, crop_32, whole, batch=batch, **arguments)


def run(folder, steps=8, *, task=None, loaders=None, **arguments):
    from cacseg.engine.train import train

    options = dict(steps=steps, validate_every=3, save_every=2, log_every=1, accelerator="cpu", devices=1)
    options |= dict(loggers=("csv",), progress=False, report=lambda text: None)
    task = small_task(steps=steps) if task is None else task
    loaders = small_loaders() if loaders is None else loaders
    return train(task, loaders, Path(folder), **options | arguments)


if __name__ == "__main__":  # python tests/engine_runs.py FOLDER WORKERS STEPS [resume]: a run in a process of its own
    import sys

    folder, workers, steps, *resume = sys.argv[1:]
    loaders = small_loaders(workers=int(workers))
    run(folder, steps=int(steps), loaders=loaders, task=small_task(steps=STEPS), resume=resume == ["resume"])
