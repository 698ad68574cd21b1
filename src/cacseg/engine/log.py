"""Logs of a run: metrics.csv, a progress bar or lines of progress, and a line after each validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from cacseg._files import check_there, open_appending, to_csv, write_file
from cacseg._text import read_csv, shorten
from cacseg.engine._lightning import is_first_process

METRICS = "metrics.csv"
SHORT = {"distillation": "kl", "auxiliary": "aux"}  # in the progress bar
QUIET_SECONDS = 30.0  # the longest time without a line, where lines are reported
DIVERGED = 4.0  # times the lowest smoothed loss


class CsvLog(Logger):
    """One row for each log call, flushed at once; a resumed run keeps the rows up to its step and goes on.

    Lightning's own CSVLogger deletes the rows of the run that it continues.
    """

    def __init__(self, path: Path, keep_steps: int = 0) -> None:
        super().__init__()
        self.path = path
        self.columns = ["step"]
        self.rows: list[dict[str, str]] = []
        if is_first_process() and path.is_file():
            # A last row without its end was cut short: its step may be the first digits of another.
            self.columns, *rows = read_csv(path) or [self.columns]
            if self.columns[:1] != ["step"]:
                raise ValueError(
                    f"{path} is no log of a run: its first column must be step; it begins with "
                    f"{shorten(','.join(self.columns))}. Move it away: the run goes on without these rows."
                )
            whole = [row for row in rows if len(row) == len(self.columns) and _step(row[0]) <= keep_steps]
            self.rows = [dict(zip(self.columns, row, strict=True)) for row in whole]
            self._rewrite()

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *_: Any) -> None:
        """They are in config.json."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = {"step": str(step), **{name: repr(float(value)) for name, value in metrics.items()}}
        self.rows.append(row)
        new = [name for name in row if name not in self.columns]
        check_there(self.path.parent)
        if new or not self.path.is_file():
            self.columns += new
            self._rewrite()
            return
        try:
            with open_appending(self.path) as file:
                file.write(to_csv([[row.get(name, "") for name in self.columns]]).encode())
        except OSError as error:
            raise OSError(
                f"{self.path} could not be written ({error.strerror or error}). Free or add space, then continue with "
                "--resume."
            ) from error

    def _rewrite(self) -> None:
        rows = ([row.get(name, "") for name in self.columns] for row in self.rows)
        write_file(self.path, to_csv([self.columns, *rows]), flush=True)


def _step(text: str) -> float:
    """Of a row; infinite where it is no number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else math.inf


class Log(Callback):
    """Logs the loss terms and the learning rate every `every` steps, and the scores of each validation.

    A step's terms are means over its parts and over all processes. `latest` is what the progress bar shows. With
    `lines` the losses are reported as well, and the step at least every 30 seconds. A loss that has grown far beyond
    its lowest is reported once, with a remedy.
    """

    def __init__(self, report: Callable[[str], None], steps: int, every: int, *, lines: bool = False) -> None:
        self.report, self.steps, self.every, self.lines = report, steps, every, lines
        self.latest: dict[str, float] = {}
        self.parts: list[Tensor] = []
        self.seen_step = -1
        self.started = 0.0  # moved by the time of each validation: the pace is that of training alone
        self.validating_since = 0.0
        self.first_step = 0
        self.reported = 0.0  # when
        self.lowest: tuple[float, int] | None = None  # smoothed loss, and its step
        self.smoothed: float | None = None
        self.warned = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seen_step = self.first_step = trainer.global_step
        self.started = self.reported = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        terms: dict[str, Tensor] = outputs["terms"]
        self.parts.append(torch.stack([value.float() for value in terms.values()]))
        step = trainer.global_step
        if step == self.seen_step:
            return
        self.seen_step = step
        parts, self.parts = self.parts, []
        if step % self.every and step != self.steps:
            if self.lines and time.monotonic() - self.reported > QUIET_SECONDS:
                self._report(f"step {step}/{self.steps} ({self._pace()})")
            return
        means = trainer.strategy.reduce(torch.stack(parts).mean(0), reduce_op="mean")
        losses = dict(zip(terms, means.tolist(), strict=True))
        # The rate of this step, not of the next: the schedule has moved on already.
        rate = trainer.optimizers[0].param_groups[0]["initial_lr"] * pl_module.rate_at(step - 1)  # type: ignore[operator]
        self._log(trainer, {**{f"loss/{name}": value for name, value in losses.items()}, "rate": rate})
        self.latest |= losses
        if self.lines:
            words = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
            self._report(f"step {step}/{self.steps}: loss {words}, rate {rate:.2g} ({self._pace()})")
        self._warn_of_divergence(losses["total"], step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validating_since = time.monotonic()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if self.lines and time.monotonic() - self.reported > QUIET_SECONDS:
            self._report(f"step {trainer.global_step}/{self.steps}: validating, {batch_idx + 1} images")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started += time.monotonic() - self.validating_since
        task: Any = pl_module
        metrics, own = dict[str, float](), task.model.default_output
        for split, found in task.scores.items():
            for name in ("mean_iou", "mean_accuracy", "pixel_accuracy"):
                metrics[f"{split}/{name}"] = getattr(found.outputs[own], name)
            metrics |= {f"{split}/{output}_mean_iou": values.mean_iou for output, values in found.outputs.items()}
        self._log(trainer, metrics)
        self.latest["mIoU"] = 100 * task.mean_iou
        words = [f"mIoU {self.latest['mIoU']:.2f}"]
        words += [
            f"{name} {100 * values.mean_iou:.2f}" for name, values in task.scores["val"].outputs.items() if name != own
        ]
        if "train" in task.scores:
            words.append(f"on training images {100 * task.scores['train'].outputs[own].mean_iou:.2f}")
        self._report(f"step {trainer.global_step}/{self.steps}: {', '.join(words)} ({self._pace()})")

    def _pace(self) -> str:
        """Of training alone, and the time that is left at this pace."""
        done, elapsed = self.seen_step - self.first_step, time.monotonic() - self.started
        seconds = round((self.steps - self.seen_step) * elapsed / max(done, 1))
        left = f", {timedelta(seconds=seconds)} left" if seconds and done else ""
        return f"{done / max(elapsed, 1e-9):.2f} steps/s{left}"

    def _warn_of_divergence(self, total: float, step: int) -> None:
        self.smoothed = total if self.smoothed is None else 0.7 * self.smoothed + 0.3 * total
        if self.lowest is None or self.smoothed < self.lowest[0]:
            self.lowest = self.smoothed, step
        if self.smoothed > DIVERGED * self.lowest[0] and not self.warned and self.lowest[0] > 0.0:
            self.warned = True
            self._report(
                f"warning: the loss diverges: about {self.lowest[0]:.3g} at step {self.lowest[1]}, {self.smoothed:.3g} "
                f"at step {step}. Lower optimiser.rate, clip gradients (optimiser.clip=1), or warm up for longer "
                "(schedule.warmup_steps)."
            )

    def _log(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)

    @rank_zero_only
    def _report(self, text: str) -> None:
        self.reported = time.monotonic()
        self.report(text)


class Bar(RichProgressBar):
    """Lightning's bar on stderr for a run that is one long epoch, showing what was logged last."""

    def __init__(self, log: Log, batches: int) -> None:
        super().__init__(refresh_rate=4, leave=False, console_kwargs={"stderr": True})
        self.log_callback, self.batches = log, batches  # Lightning sets `log` of every callback

    @property
    def total_train_batches(self) -> int:
        return self.batches

    def _get_train_description(self, current_epoch: int) -> str:
        return "training"

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return {SHORT.get(name, name): value for name, value in self.log_callback.latest.items()}
