"""Losses that are no numbers end a run before they reach a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cacseg.engine._lightning import Callback, LightningModule, Trainer


class Watch(Callback):
    """Remembers, on the device, the first step whose losses were not finite, and which of them.

    A GPU is not waited for in every step: the memory is read every `every` steps and before each checkpoint. On a
    CPU it is read in every step.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.names: list[str] = []
        self.first: Tensor | None = None  # for each term the first bad step, 0 for none

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        terms: dict[str, Tensor] = outputs["terms"]
        values = torch.stack([value.float() for value in terms.values()])
        if self.first is None:
            self.names, self.first = list(terms), torch.zeros_like(values, dtype=torch.int64)
        step = max(trainer.global_step, 1)
        bad = ~values.isfinite() & (self.first == 0)
        self.first = torch.where(bad, step, self.first)
        if values.device.type == "cpu" or trainer.global_step % self.every == 0:
            self.check(trainer)

    def check(self, trainer: Trainer) -> None:
        """Raises where a loss was not finite, in every process alike."""
        if self.first is None:
            return
        first = (
            self.first.float()
            if trainer.world_size == 1
            else trainer.strategy.reduce(self.first.float(), reduce_op="sum")
        )
        if not bool((first > 0).any()):
            return
        steps = self.first[self.first > 0].tolist()
        where = f"step {min(steps)}" if steps else "another process"
        names = [name for name, value in zip(self.names, first.tolist(), strict=True) if value > 0]
        raise ValueError(
            f"the loss is not finite at {where}: {', '.join(names)}. Nothing was saved since; the last checkpoint is "
            "from before. Lower optimiser.rate, clip gradients (optimiser.clip), or use bf16 in place of fp16."
        )
