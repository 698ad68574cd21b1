"""What a run leaves on disk, each file whole or not at all.

last.ckpt           everything that a resumed run needs
last.safetensors    the model of that step, for cacseg.load; averaged weights where they are kept
best.safetensors    the model with the best validation mIoU so far
scores.json         what the last validation found
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, nn

from cacseg._files import check_there, write_file
from cacseg.engine.callbacks import Interrupt, Stopped
from cacseg.engine.device import device_name, peak_mib
from cacseg.engine.options import TrainingOptions
from cacseg.engine.task import SplitScores
from cacseg.metrics import or_none

LAST, LAST_MODEL, BEST_MODEL = "last.ckpt", "last.safetensors", "best.safetensors"
SCORES = "scores.json"


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


class Averaging(Callback):
    """An exponential moving average of the weights. Validation and saved models use it; buffers are the model's own.

    Lightning's WeightAveraging waits for a GPU in each step, and gives weights other memory than a recorded step has.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.averages: list[Tensor] = []
        self.seen_step = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weights = [weight.detach() for weight in pl_module.parameters()]
        known = self.averages or weights  # those of a checkpoint
        self.averages = [one.to(weight.device, copy=True) for one, weight in zip(known, weights, strict=True)]
        self.seen_step = trainer.global_step

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        """The first step's weights are taken as they are."""
        if trainer.global_step != self.seen_step:
            self.seen_step = trainer.global_step
            share = 1.0 if self.seen_step == 1 else 1.0 - self.decay
            torch._foreach_lerp_(self.averages, list(pl_module.parameters()), share)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._swap(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._swap(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["averages"] = self.averages

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.averages = checkpoint["averages"]

    @contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """Within the block the weights are the averages."""
        self._swap(module)
        try:
            yield
        finally:
            self._swap(module)

    @torch.no_grad()
    def _swap(self, module: nn.Module) -> None:
        """Of contents, not of memory."""
        weights: list[Tensor] = list(module.parameters())
        kept = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, self.averages)
        torch._foreach_copy_(self.averages, kept)


class Checkpoints(Checkpoint):
    """Saves every so many steps, after each validation, at the end, and when asked to stop.

    Where a validation is due the checkpoint is written after it: Lightning takes a validation that follows the
    checkpoint for done, and a resumed run would leave it out.

    The averages of `averaging`, if any, are the model to keep. `interrupt` is asked after each step. `check` is called
    before anything is written, so that a bad state never replaces a good one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        options: TrainingOptions,
        averaging: Averaging | None,
        interrupt: Interrupt,
        check: Callable[[Trainer], None],
        report: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.steps, self.options = steps, options
        self.averaging, self.interrupt, self.check = averaging, interrupt, check
        self.report = report
        self.best, self.best_step, self.since_best = float("-inf"), 0, 0
        self.scores = ""  # the last scores.json
        self.seconds, self.started = 0.0, 0.0
        self.seen_step = -1

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint |= {"best": self.best, "best_step": self.best_step, "since_best": self.since_best}
        checkpoint |= {"seconds": self._seconds(), "scores": self.scores}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.best, self.best_step = checkpoint["best"], checkpoint["best_step"]
        self.since_best, self.seconds = checkpoint["since_best"], checkpoint["seconds"]
        self.scores = checkpoint["scores"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen_step = trainer.global_step
        self.started = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self.seen_step:  # within an accumulated batch
            return
        self.seen_step = step
        if step == self.steps:
            trainer.should_stop = True  # Lightning then validates, whatever the interval
        if step == self.steps or step % self.options.validate_every == 0:
            return
        stop = self.interrupt.wanted(trainer)
        if stop or step % self.options.save_every == 0:
            self.save(trainer)
        if stop:
            raise Stopped(step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task: Any = pl_module
        improved = task.mean_iou > self.best
        self.since_best = 0 if improved else self.since_best + 1
        if improved:
            self.best, self.best_step = task.mean_iou, trainer.global_step
        self.scores = self._describe_scores(trainer, task)
        self.save(trainer, best=improved)
        if trainer.is_global_zero:
            write_file(self.folder / SCORES, self.scores, flush=True)
        if trainer.global_step < self.steps and self._finished(trainer):
            trainer.should_stop = True
            if trainer.is_global_zero:
                self.report(
                    f"no better mIoU in {self.since_best} validations (training.patience): stopping at step "
                    f"{trainer.global_step}; the best was {100 * self.best:.2f} at step {self.best_step}"
                )
        elif trainer.global_step < self.steps and self.interrupt.wanted(trainer):
            raise Stopped(trainer.global_step)

    def _finished(self, trainer: Trainer) -> bool:
        patience = self.options.patience
        out_of_patience = patience is not None and self.since_best >= patience
        return trainer.global_step >= self.steps or out_of_patience

    def _seconds(self) -> float:
        """Of the whole run, interruptions left out."""
        return self.seconds + time.monotonic() - self.started

    def _describe_scores(self, trainer: Trainer, task: Any) -> str:
        device, loaders = trainer.strategy.root_device, trainer.datamodule  # type: ignore[attr-defined]
        content = {
            "format": "cacseg scores 1",
            "step": trainer.global_step,
            "steps": self.steps,
            "finished": self._finished(trainer),
            "output": task.model.default_output,
            "class_names": task.model.class_names,
            "splits": {name: _as_json(found, name == "val") for name, found in task.scores.items()},
            "best": {"step": self.best_step, "mean_iou": self.best if self.best_step else None},
            "seconds": round(self._seconds(), 2),
            "peak_mib": peak_mib(device),
            "device": device_name(device),
            "parameters": sum(one.numel() for one in task.model.parameters()),
            "train_images": len(loaders.train),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        return json.dumps(content) + "\n"

    def save(self, trainer: Trainer, *, best: bool = False) -> None:
        """The model, then the state to resume from: a kill in between repeats the model's step and its file."""
        self.check(trainer)
        task: Any = trainer.lightning_module
        if trainer.is_global_zero:
            check_there(self.folder)
            with nullcontext() if self.averaging is None else self.averaging.applied(task):
                for name in (BEST_MODEL, LAST_MODEL) if best else (LAST_MODEL,):
                    task.model.save(self.folder / name, overwrite=True)
        trainer.save_checkpoint(self.folder / LAST, weights_only=False)


def _as_json(found: SplitScores, with_confusion: bool) -> dict[str, Any]:
    """Undefined scores are None."""

    def numbers(values: Any) -> dict[str, Any]:
        means = ("mean_iou", "mean_accuracy", "pixel_accuracy")
        return {**{name: or_none(getattr(values, name)) for name in means}, "iou": [*map(or_none, values.iou.tolist())]}

    outputs = {name: numbers(values) for name, values in found.outputs.items()}
    if with_confusion:
        for name in outputs.keys() - {"oracle"}:
            outputs[name]["confusion"] = found.counts[name].tolist()
    return {"images": found.images, "labelled_pixels": found.labelled, "outputs": outputs}


def checkpoint_bytes(model: nn.Module, optimiser: str, averaged: bool) -> tuple[int, int]:
    """About how large last.ckpt and a model's file will be."""
    states_per_parameter = 1 if optimiser == "sgd" else 2
    parameters = sum(value.numel() * value.element_size() for value in model.parameters() if value.requires_grad)
    weights = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    return weights * (2 if averaged else 1) + parameters * states_per_parameter, weights


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `AtomicFiles` wrote: tensors, numbers, strings, lists and dictionaries, nothing that could run code."""
    try:
        with zipfile.ZipFile(path) as archive:  # whose checksums torch writes, and does not look at
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of {damaged} is another")
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
