"""What a run leaves on disk, each file whole or not at all.

last.ckpt           everything that a resumed run needs
last.safetensors    the model of that step, for cacseg.load; averaged weights where they are kept
best.safetensors    the model with the best validation mIoU so far
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cacseg._files import write_file
from cacseg.engine._lightning import Checkpoint, CheckpointIO, LightningModule, Trainer, WeightAveraging
from cacseg.engine.interrupt import Interrupt, Stopped
from cacseg.models import SegmentationModel

LAST, LAST_MODEL, BEST_MODEL = "last.ckpt", "last.safetensors", "best.safetensors"


class AtomicFiles(CheckpointIO):
    """Checkpoints are written beside their place, flushed to the disk and moved there; reading runs no code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        content = io.BytesIO()  # into memory first: torch hides the reason where writing fails
        torch.save(checkpoint, content)
        write_file(path, content.getbuffer(), flush=True)

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class Averaging(WeightAveraging):
    """Lightning's weight averaging, exponential; validation and saved models use the averages."""

    def __init__(self, decay: float) -> None:
        super().__init__(multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Lightning takes the device of the model, which is not on its device yet: each step would bring all weights
        # to the CPU and average them there.
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        """Integer buffers are copied, not averaged."""
        super().on_train_batch_end(trainer, pl_module, *rest)
        for average, current in zip(self.task.buffers(), pl_module.buffers(), strict=True):
            if not average.is_floating_point():
                average.copy_(current)

    @property
    def task(self) -> Any:
        """The averaged copy of the task."""
        assert self._average_model is not None, "the averages exist within a fit"
        return self._average_model.module


class Checkpoints(Checkpoint):
    """Saves every `save_every` steps, after each validation, at the end, and when asked to stop.

    Where a validation is due the checkpoint is written after it: Lightning takes a validation that follows the
    checkpoint for done, and a resumed run would leave it out.

    Args:
        folder: where the files go.
        steps: of the whole run.
        save_every, validate_every: in steps.
        averaging: whose averages are the model to keep, if any.
        interrupt: asked after each step.
        check: called before anything is written, so that a bad state never replaces a good one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        save_every: int,
        validate_every: int,
        averaging: Averaging | None = None,
        interrupt: Interrupt | None = None,
        check: Callable[[Trainer], None] | None = None,
    ) -> None:
        self.folder = folder
        self.steps, self.save_every, self.validate_every = steps, save_every, validate_every
        self.averaging, self.interrupt, self.check = averaging, interrupt, check
        self.best, self.best_step = float("-inf"), 0
        self.seen_step = -1

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint |= {"best": self.best, "best_step": self.best_step}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.best, self.best_step = checkpoint["best"], checkpoint["best_step"]

    def validation_due(self, step: int) -> bool:
        return step % self.validate_every == 0 or step == self.steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self.seen_step:  # within an accumulated batch
            return
        self.seen_step = step
        if step == self.steps:
            trainer.should_stop = True  # Lightning then validates, whatever the interval
        if self.validation_due(step):
            return
        stop = self.interrupt is not None and self.interrupt.wanted(trainer)
        if stop or step % self.save_every == 0:
            self.save(trainer)
        if stop:
            raise Stopped(step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found: float = pl_module.scores.mean_iou  # type: ignore[union-attr, assignment]
        improved = found > self.best
        if improved:
            self.best, self.best_step = found, trainer.global_step
        self.save(trainer, best=improved)
        if trainer.global_step < self.steps and self.interrupt is not None and self.interrupt.wanted(trainer):
            raise Stopped(trainer.global_step)

    def save(self, trainer: Trainer, *, best: bool = False) -> None:
        """The model, then the state to resume from: a kill in between repeats the model's step and its file."""
        if self.check is not None:
            self.check(trainer)
        if trainer.is_global_zero:
            model = self._model(trainer)
            for name in (BEST_MODEL, LAST_MODEL) if best else (LAST_MODEL,):
                model.save(self.folder / name, overwrite=True)
        trainer.save_checkpoint(self.folder / LAST, weights_only=False)

    def _model(self, trainer: Trainer) -> SegmentationModel:
        task: Any = trainer.lightning_module if self.averaging is None else self.averaging.task
        return task.model


def checkpoint_bytes(model: nn.Module, states_per_parameter: int, averaged: bool) -> tuple[int, int]:
    """About how large last.ckpt and a model's file will be."""
    parameters = sum(value.numel() * value.element_size() for value in model.parameters() if value.requires_grad)
    weights = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    return weights * (2 if averaged else 1) + parameters * states_per_parameter, weights


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `AtomicFiles` wrote: tensors, numbers, strings, lists and dictionaries, nothing that could run code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: there is nothing to resume from.") from None
    except (PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # torch has many words for a damaged file
        reason = str(error).partition("\n")[0].partition(". ")[0]
        if not any(map(str.isalpha, reason)):
            reason = type(error).__name__
        raise ValueError(
            f"{path} cannot be read ({reason}). Was it damaged, or written by something else? A new run can start from "
            f"the model beside it: model.weights={path.with_suffix('.safetensors')}"
        ) from error
