"""Data loaders of one process of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from cacseg.data import SegmentationData, TrainTransform
from cacseg.data.sample import Pixels, has_annotators
from cacseg.data.transforms import start_worker
from cacseg.engine.device import available_cores
from cacseg.engine.options import TrainingOptions
from cacseg.engine.resident import Draws, DrawStream, ResidentSplit, cut_crops, load_pictures, load_split
from cacseg.engine.stream import Batch, MicroBatches, Picture, TrainStream, Transform, ValidationPictures, collate


class Loaders(LightningDataModule):
    """Training crops, from the trainer's current step on, and the images of a validation.

    A validation scores the validation split ("val") and a fixed sample of the training images ("train").

    Args:
        train, validation: two splits of a data set.
        train_transform, validation_transform: what makes a crop of a sample, and a network's input of an image.
        options: batch, accumulate, seed, workers and scored_train_images are used; the batch must be decided.
        resident: whether all images are kept on the device and cropped there; needs a `TrainTransform`.
        weights: how often each training image is shown relative to others; None shows all alike.
        report: callback for progress messages.
    """

    def __init__(
        self,
        train: SegmentationData,
        validation: SegmentationData,
        train_transform: Transform,
        validation_transform: Callable[[Pixels], Tensor],
        options: TrainingOptions,
        *,
        resident: bool = False,
        weights: npt.NDArray[np.float64] | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # fewer validation images than processes
        self.train, self.validation = train, validation
        self.train_transform, self.validation_transform = train_transform, validation_transform
        assert options.batch != "auto"
        self.batch, self.accumulate, self.seed = options.batch, options.accumulate, options.seed
        self.workers = min(options.workers, available_cores())  # how many there are changes nothing but the time
        self.resident, self.weights, self.report = resident, weights, report
        count = min(options.scored_train_images, len(train))
        self.sample = sorted({round(place) for place in np.linspace(0, len(train) - 1, count).tolist()})
        self.split: ResidentSplit | None = None
        self.pictures_there: dict[str, list[Picture]] = {}

    @property
    def validated(self) -> list[str]:
        """The names of what `val_dataloader` returns."""
        return ["val", "train"] if self.sample else ["val"]

    def setup(self, stage: str) -> None:
        """Brings the images to the device, where that is wanted."""
        if not self.resident or self.split is not None:
            return
        if has_annotators(self.train):
            raise ValueError(
                "images whose labels are of several annotators are read by workers, which draw one of them for each "
                "crop. Set data.resident=false."
            )
        device = self._trainer().strategy.root_device
        self.split = load_split(self.train, device)
        for name in self.validated:
            pictures = self.pictures(name)
            self.pictures_there[name] = load_pictures(pictures, len(pictures), device)
        there = (one.nbytes for pictures in self.pictures_there.values() for picture in pictures for one in picture)
        if self._trainer().is_global_zero:
            count = len(self.train) + len(self.validation)
            self.report(f"{count} images are kept on {device}: {(self.split.nbytes + sum(there)) / 2**20:.0f} MiB")

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

    def train_dataloader(self) -> DataLoader[Any]:
        batches = self.micro_batches(start_step=self._trainer().global_step)
        if self.resident:
            draws = DrawStream(self.stream.order, batches)
            return DataLoader(draws, batch_size=None, **self._options(workers=0))
        return DataLoader(self.stream, batch_sampler=batches, collate_fn=collate, **self._options(self.workers))

    def val_dataloader(self) -> list[DataLoader[Any]]:
        if self.resident:
            there: Any = self.pictures_there.values()
            return [DataLoader(one, batch_size=None, generator=torch.Generator()) for one in there]
        # One at a time: whole images differ in size.
        return [
            DataLoader(self.pictures(name), batch_size=None, **self._options(self.workers)) for name in self.validated
        ]

    def cut(self, draws: Draws) -> Batch:
        """The crops that were drawn, on the device."""
        assert self.split is not None
        assert isinstance(self.train_transform, TrainTransform)
        return cut_crops(self.split, self.train_transform, draws)

    @property
    def stream(self) -> TrainStream:
        return TrainStream(self.train, self.train_transform, self.seed, self.weights)

    def first_batch(self, step: int) -> Batch:
        """The first batch of this process at a step, on its device."""
        device, batches = self._trainer().strategy.root_device, self.micro_batches(step)
        if not self.resident:
            crops = [self.stream[position] for position in next(iter(batches))]
            return Batch(*(one.to(device) for one in collate(crops)))
        draws = next(iter(DrawStream(self.stream.order, batches)))
        return self.cut(Draws(*(one.to(device) for one in draws)))

    def first_picture(self) -> Picture:
        """A validation image of this process, on its device; of all, where there are more processes than images."""
        device, indices = self._trainer().strategy.root_device, [*self._indices("val"), 0]
        picture = ValidationPictures(self.validation, self.validation_transform, indices)[0]
        return Picture(*(one.to(device) for one in picture))

    def pictures(self, name: str) -> ValidationPictures:
        """This process's share of what is validated."""
        data = self.validation if name == "val" else self.train
        return ValidationPictures(data, self.validation_transform, self._indices(name))

    def micro_batches(self, start_step: int) -> MicroBatches:
        trainer = self._trainer()
        return MicroBatches(self.batch, self.accumulate, trainer.global_rank, trainer.world_size, start_step)

    def _indices(self, name: str) -> list[int]:
        """Images are sharded round-robin over ranks."""
        trainer = self._trainer()
        indices = list(range(len(self.validation))) if name == "val" else self.sample
        return indices[trainer.global_rank :: trainer.world_size]

    def _options(self, workers: int) -> dict[str, Any]:
        return {
            "num_workers": workers,
            "persistent_workers": workers > 0,
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
