"""Data loaders of one process of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from cacseg.data import Sample, SegmentationData
from cacseg.data.transforms import Crop, start_worker
from cacseg.engine._lightning import LightningDataModule
from cacseg.engine.stream import Batch, MicroBatches, Picture, TrainStream, ValidationPictures, collate, collate_one


class Loaders(LightningDataModule):
    """Training crops, from the trainer's current step on, and validation images.

    Args:
        train, validation: two splits of a data set.
        train_transform, validation_transform: what makes a crop of a sample, and a network's input of an image.
        batch: images a step, over all devices.
        accumulate: parts that a step's batch is split into, one after the other.
        seed: of order and transforms.
        workers: reading processes of this process; 0 reads in the process itself.
    """

    def __init__(
        self,
        train: SegmentationData,
        validation: SegmentationData,
        train_transform: Callable[[Sample, np.random.Generator], Crop],
        validation_transform: Callable[[npt.NDArray[np.uint8]], Tensor],
        *,
        batch: int,
        accumulate: int = 1,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # fewer validation images than processes
        self.train = train
        self.stream = TrainStream(train, train_transform, seed)
        self.validation, self.validation_transform = validation, validation_transform
        self.batch, self.accumulate, self.workers = batch, accumulate, workers

    def state_dict(self) -> dict[str, Any]:
        """What the positions of the stream depend on besides the seed."""
        return {"images": len(self.train), "classes": list(self.train.class_names)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The data of a resumed run must be those it was started with: the order is a permutation of their number."""
        images, classes = state_dict["images"], state_dict["classes"]
        if images != len(self.train):
            raise ValueError(
                f"a run is resumed on the images it was started with; there were {images} in {self.train.split!r} of "
                f"{self.train.name} and there are {len(self.train)}. Bring them back, or start a new run with "
                "model.weights."
            )
        if classes != list(self.train.class_names):
            wrong = [
                f"class {index} was {before!r} and is {now!r}"
                for index, (before, now) in enumerate(zip(classes, self.train.class_names, strict=True))
                if before != now
            ]
            raise ValueError(f"a run is resumed with the classes it was started with; {'; '.join(wrong[:3])}.")

    def train_dataloader(self) -> DataLoader[Crop]:
        batches = self.micro_batches(start_step=self._trainer().global_step)
        return DataLoader(self.stream, batch_sampler=batches, collate_fn=collate, **self._options())

    def val_dataloader(self) -> DataLoader[Picture]:
        return DataLoader(self.pictures(), batch_size=1, collate_fn=collate_one, **self._options())

    def first_batch(self, step: int) -> Batch:
        """The first batch of this process at a step, read here and now."""
        return collate([self.stream[position] for position in next(iter(self.micro_batches(step)))])

    def first_picture(self) -> Picture:
        """A validation image of this process; of the whole split, where there are more processes than images."""
        return ValidationPictures(self.validation, self.validation_transform, [*self._indices(), 0])[0]

    def pictures(self) -> ValidationPictures:
        return ValidationPictures(self.validation, self.validation_transform, self._indices())

    def micro_batches(self, start_step: int) -> MicroBatches:
        trainer = self._trainer()
        return MicroBatches(self.batch, self.accumulate, trainer.global_rank, trainer.world_size, start_step)

    def _indices(self) -> list[int]:
        trainer = self._trainer()
        return list(range(trainer.global_rank, len(self.validation), trainer.world_size))

    def _options(self) -> dict[str, Any]:
        return {
            "num_workers": self.workers,
            "persistent_workers": self.workers > 0,
            "pin_memory": self._trainer().strategy.root_device.type == "cuda",
            "worker_init_fn": start_reader,
            # A loader draws the seeds of its workers when it starts: from a generator of its own, so that the
            # global one, which dropout uses, does not depend on when loaders start.
            "generator": torch.Generator(),
        }

    def _trainer(self) -> Any:
        if self.trainer is None:
            raise RuntimeError("the loaders belong to a trainer: pass them to Trainer.fit(datamodule=...).")
        return self.trainer


def start_reader(worker: int) -> None:
    """Puts a worker into its own process group, so that Ctrl-C and launchers that signal a whole group reach only the
    training process, which ends its workers itself."""
    if sys.platform != "win32":
        os.setpgid(0, 0)
    start_worker(worker)
