"""One batch of training and one of validation before the first step, leaving no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cacseg.engine._lightning import Callback, LightningModule, Trainer
from cacseg.engine.loaders import Loaders
from cacseg.engine.stream import Batch


class DryRun(Callback):
    """Reads, trains and validates one batch as the run will, with gradients, then restores the model's buffers.

    Errors of data, model or memory show here and not at the first validation, hours later. Weights and optimiser are
    not touched, and `Randomness`, which comes after, sets the random states.

    `passed`: called on rank 0 when nothing was wrong.
    """

    def __init__(self, passed: Callable[[], None] | None = None) -> None:
        self.passed = passed

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task: Any = pl_module
        loaders: Loaders = trainer.datamodule  # type: ignore[attr-defined]
        kept = {name: value.clone() for name, value in task.model.named_buffers()}
        modes = {module: module.training for module in task.model.modules()}
        try:
            batch = loaders.first_batch(trainer.global_step)
            check_batch(batch, task.model.ignore_index)
            with trainer.precision_plugin.train_step_context():
                total = task.losses(batch)["total"]
            # Not backward(): nothing is left in the parameters, and no hook of a distributed wrapper fires.
            torch.autograd.grad(total, [value for value in task.model.parameters() if value.requires_grad])
            task.model.eval()
            with torch.no_grad(), trainer.precision_plugin.val_step_context():
                task.count(loaders.first_picture())
        except torch.cuda.OutOfMemoryError as error:
            share, height, width = batch.labels.shape
            raise ValueError(
                f"{task.device} has too little memory for {share} images of {height}x{width} at a time, or for a "
                "validation image. Raise training.accumulate, lower training.batch or data.crop, or use bf16."
            ) from error
        finally:
            for module, mode in modes.items():
                module.training = mode
            with torch.no_grad():
                for name, value in task.model.named_buffers():
                    value.copy_(kept[name])
        if self.passed is not None and trainer.is_global_zero:
            self.passed()


def check_batch(batch: Batch, ignore_index: int) -> None:
    """At least one pixel of the batch must be labelled."""
    if bool((batch.labels == ignore_index).all()):
        raise ValueError(
            f"the labels of a batch must not all be ignored; every pixel of the first {len(batch.labels)} crops is "
            f"{ignore_index}, the ignore index. Do the label files hold classes, and is the ignore index right?"
        )
