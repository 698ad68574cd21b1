"""A small data set in memory, and small runs on it; a module of its own, so that a fresh process can import it."""

from pathlib import Path

import numpy as np
import torch

from cacseg.data import Sample
from cacseg.data.transforms import Crop
from cacseg.engine.loaders import Loaders
from cacseg.engine.options import OptimiserOptions, ScheduleOptions, TrainingOptions
from cacseg.engine.task import SegmentationTask
from cacseg.models import create_model

CLASSES = ("left", "right", "sky")
STEPS = 12  # of the runs that are killed and resumed
CONSTANT = {"power": 0.0}  # a schedule in which the number of steps does not matter


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


def crop_32(sample, numbers):
    """A random crop of 32x32, which needs nothing but the numbers."""
    top, left = (int(number * (length - 31)) for number, length in zip(numbers, sample.labels.shape, strict=False))
    image = sample.image[top : top + 32, left : left + 32].transpose(2, 0, 1).copy()
    labels = sample.labels[top : top + 32, left : left + 32].copy()
    return Crop(torch.from_numpy(image), torch.from_numpy(labels), (32, 32))


def whole(image):
    return torch.from_numpy(image.transpose(2, 0, 1).copy())


def small_model(preset="released", classifier="context", **arguments):
    """With batch normalisation and, by default, dropout."""
    torch.manual_seed(0)
    return create_model("fcn", 3, classifier, backbone="test_resnet", head_channels=16, preset=preset, **arguments)


def small_task(model=None, steps=8, rate=0.02, inference=None, optimiser=None, schedule=None, **training):
    """A run of `steps` steps by SGD, or as the settings say; `training` are those of `TrainingOptions`."""
    model = small_model() if model is None else model
    own = {"name": "sgd", "rate": rate, "weight_decay": 1e-4, **(optimiser or {})}
    options = {"batch": 4, "validate_every": 3, "save_every": 2, "log_every": 1, "accelerator": "cpu", "devices": 1}
    options |= {"loggers": ("csv",), "graph": False, "scored_train_images": 0, **training}
    return SegmentationTask(
        model,
        OptimiserOptions(**own),
        ScheduleOptions(steps=steps, **(schedule or {})),
        TrainingOptions(**options),
        inference,
    )


def small_loaders(train=None, validation=None, transform=crop_32, *, resident=False, **training):
    train = Stripes() if train is None else train
    validation = Stripes("val", 3) if validation is None else validation
    options = TrainingOptions(**{"batch": 4, "workers": 0, "scored_train_images": 0, **training})
    return Loaders(train, validation, transform, whole, options, resident=resident, report=lambda text: None)


def run(folder, steps=8, *, task=None, loaders=None, resume=False, passed=None, report=None, **training):
    """Trains in `folder`; `training` are settings of the small task, or change those of `task`."""
    from cacseg.engine.train import train

    if task is None:
        task = small_task(steps=steps, **training)
    else:
        task.training_options = task.training_options.model_copy(update=training)
    loaders = small_loaders() if loaders is None else loaders
    said = (lambda text: None) if report is None else report
    return train(task, loaders, Path(folder), resume=resume, passed=passed, report=said, progress=False)


if __name__ == "__main__":  # python tests/engine_runs.py FOLDER WORKERS STEPS [resume]: a run in a process of its own
    import sys

    folder, workers, steps, *resume = sys.argv[1:]
    loaders = small_loaders(workers=int(workers))
    run(folder, steps=int(steps), loaders=loaders, schedule=CONSTANT, resume=resume == ["resume"])
