"""A model trained by cacseg on a torch Dataset and a transform of one's own, on generated scenes.

    python examples/own_dataset.py [--steps 40] [--folder runs/own]

One call trains it as `cacseg train` does: the folder gets the run, which resume=True continues after an interruption.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scenes import draw_scenes
from torch import Tensor
from torch.utils.data import Dataset

import cacseg

CLASSES = ["red", "green", "blue", "yellow"]


class Scenes(Dataset[tuple[Tensor, Tensor]]):
    """Images of 8 bits and the class of each pixel."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = draw_scenes(1, seed=index, classes=len(CLASSES))
        return (images[0].clamp(0, 1) * 255).byte(), labels[0]


def turn_and_crop(image: NDArray[np.uint8], mask: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A quarter turn and a crop of 48x48 at random; the generators are seeded for each image."""
    turns, (top, left) = np.random.randint(4), np.random.randint(0, 17, 2)  # noqa: NPY002
    image, mask = np.rot90(image, turns), np.rot90(mask, turns)
    return image[top : top + 48, left : left + 48], mask[top : top + 48, left : left + 48]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)

    model = cacseg.create_model("fcn", len(CLASSES), backbone="test_resnet", output_stride=8, head_channels=32)
    settings = {
        "data.crop": 48,
        "schedule.steps": options.steps,
        "schedule.warmup_steps": 0,
        "optimiser.rate": 5e-3,
        "training.batch": 4,
        "training.workers": 0,
        "training.scored_train_images": 0,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "run"
        cacseg.train(
            model,
            Scenes(64),
            val_share=0.2,
            folder=folder,
            class_names=CLASSES,
            transform=turn_and_crop,
            settings=settings,
            page=options.folder is not None,
        )

    images, labels = draw_scenes(16, seed=1000)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (model.mean, model.std))
    images = (images.clamp(0, 1) - mean) / std
    with torch.no_grad():
        for name, scores in (("context", model(images)), ("plain", model.plain(images))):
            print(f"{name} classifier: {(scores.argmax(1) == labels).float().mean():.1%} of the pixels are right")


if __name__ == "__main__":
    main()
