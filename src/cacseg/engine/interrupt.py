"""Ctrl-C and SIGTERM end a run between two steps, with a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from cacseg.engine._lightning import Callback, LightningModule, Trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Launchers pass a signal on to processes that got it from the terminal already.
ECHO_SECONDS = 1.0


class Stopped(Exception):
    """A run ended early because it was asked to, after saving the checkpoint of `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


class Interrupt(Callback):
    """Remembers a signal until the step is over; a second Ctrl-C ends the process at once.

    `report`: callback for progress messages.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report
        self.first_time: float | None = None
        self.previous: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        try:
            self.previous = {number: signal.signal(number, self._remember) for number in SIGNALS}
        except ValueError:  # signals belong to the main thread
            self.previous = {}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore()

    def wanted(self, trainer: Trainer) -> bool:
        """Whether the run should stop after this step; the same in every process."""
        if trainer.world_size == 1:
            return self.first_time is not None
        # One more reduction in each step, as Lightning does for its own handler.
        asked = torch.tensor(float(self.first_time is not None), device=trainer.strategy.root_device)
        return bool(trainer.strategy.reduce(asked, reduce_op="sum") > 0)

    def _remember(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.first_time is None:
            self.first_time = now
            self.report("stopping after this step, and its validation if one is due; once more ends at once")
        elif number == signal.SIGINT and now - self.first_time > ECHO_SECONDS:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}
