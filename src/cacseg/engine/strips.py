"""Pictures for TensorBoard: what the classifiers make of a few fixed images, and how far images' rows move."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from cacseg.data.pictures import draw_strip
from cacseg.engine.features import answer_names, labels_of_features, networks_with_moves
from cacseg.engine.inference import predict_each, scale_images
from cacseg.engine.loaders import Loaders
from cacseg.engine.stream import Picture, ValidationPictures
from cacseg.engine.task import SegmentationTask
from cacseg.metrics import most_likely
from cacseg.runtime.bands import as_picture

MOST = 4  # images
STRIP, MOVES = "validation", "move of the rows"  # tags


class Strips(Callback):
    """After each validation, on rank 0: a strip of each chosen image, and where the model adapts, a histogram.

    A strip is input | truth | plain | context | what context changes. The histogram holds 1 - cosine between the plain
    row and the image's own, of the classes present. Up to MOST images are taken evenly from the validation split.
    No random number is drawn and no state is kept: a resumed run goes on as it would have.
    """

    def __init__(self) -> None:
        self.chosen: dict[str, Picture] = {}  # read once

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the averaged weights, if any, are swapped out again."""
        writers = [one.experiment for one in trainer.loggers if isinstance(one, TensorBoardLogger)]
        if not trainer.is_global_zero or not writers:
            return
        task: Any = pl_module
        loaders: Loaders = trainer.datamodule  # type: ignore[attr-defined]
        if not self.chosen:
            self.chosen = choose_pictures(loaders)
        moves: list[Tensor] = []
        for name, picture in self.chosen.items():
            with torch.no_grad(), trainer.precision_plugin.val_step_context():
                answers, found = look_at(task, Picture(*(one.to(task.device) for one in picture)))
            moves += found
            image = as_picture(picture.images[0].permute(1, 2, 0).numpy())
            labels = picture.labels[0].numpy()
            strip = draw_strip(image, labels, answers, loaders.validation.palette, loaders.validation.ignore_index)
            for writer in writers:
                writer.add_image(f"{STRIP}/{name}", strip, trainer.global_step, dataformats="HWC")
        if any(one.numel() for one in moves):  # none where no feature of the chosen images has a label
            for writer in writers:
                writer.add_histogram(MOVES, torch.cat(moves).cpu().numpy(), trainer.global_step)


def choose_pictures(loaders: Loaders) -> dict[str, Picture]:
    """Validation images by their names, taken evenly."""
    data = loaders.validation
    count = min(MOST, len(data))
    indices = [k * len(data) // count for k in range(count)]
    pictures = ValidationPictures(data, loaders.validation_transform, indices)
    return {data.image_name(index): pictures[place] for place, index in enumerate(indices)}


def look_at(task: SegmentationTask, picture: Picture) -> tuple[dict[str, np.ndarray], list[Tensor]]:
    """The classes that each output gives an image, and how far its rows move, of classes present; from one pass.

    With sliding windows each window has a classifier, and rows, of its own.
    """
    model, moves = task.model, list[Tensor]()

    def told(images: Tensor, features: Tensor, labels: Tensor | None, rows: Tensor) -> None:
        assert labels is not None
        known = labels_of_features(model, labels, images, features, model.ignore_index)
        moves.extend(row[one[one >= 0].unique()] for row, one in zip(rows, known, strict=True))

    images = task.normalised(picture.images)
    shown = [scale_images(images, ratio) for ratio in task.inference.ratios]
    height, width = picture.labels.shape[-2:]
    networks = networks_with_moves(model, told)
    scores = predict_each(networks, shown, (height, width), task.inference, picture.labels.long())
    classes = (most_likely(one[0], 0).to(torch.uint8).cpu().numpy() for one in scores)
    return dict(zip(answer_names(model), classes, strict=True)), moves
