"""Stops a run whose losses or weights are not finite, before they reach a checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cacseg.engine._lightning import Callback, LightningModule, Trainer

ADVICE = (
    "Nothing of it was saved; the last checkpoint is from before. Lower optimiser.rate, clip gradients "
    "(optimiser.clip), or use bf16 in place of fp16."
)


class Watch(Callback):
    """Keeps, on the device, the first step at which each loss term was not finite.

    It is read every `every` steps and before each checkpoint, since a read waits for the GPU; on a CPU in every step.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.names: list[str] = []
        self.first: Tensor | None = None  # for each term the first bad step, 0 for none
        self.done_steps = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.done_steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        terms: dict[str, Tensor] = outputs["terms"]
        values = torch.stack([value.float() for value in terms.values()])
        if self.first is None:
            self.names, self.first = list(terms), torch.zeros_like(values, dtype=torch.int64)
        step = self.done_steps + 1  # also within an accumulated batch, whose step is not done yet
        self.done_steps = trainer.global_step
        bad = ~values.isfinite() & (self.first == 0)
        self.first = torch.where(bad, step, self.first)
        if values.device.type == "cpu" or trainer.global_step % self.every == 0:
            self.check(trainer)

    def check(self, trainer: Trainer) -> None:
        """Raises where a loss was not finite, in every process alike."""
        if self.first is None:
            return
        everywhere = trainer.strategy.reduce(self.first.float(), reduce_op="sum")
        bad = [name for name, value in zip(self.names, everywhere.tolist(), strict=True) if value > 0]
        if bad:
            here = self.first[self.first > 0].tolist()
            raise ValueError(
                f"the loss is not finite at {f'step {min(here)}' if here else 'a step of another process'}: "
                f"{', '.join(bad)}. {ADVICE}"
            )

    def check_all(self, trainer: Trainer) -> None:
        """Losses and weights: what a checkpoint is about to hold."""
        self.check(trainer)
        named = list(trainer.lightning_module.named_parameters())
        finite = torch.stack([value.detach().isfinite().all() for _, value in named])
        if not bool(finite.all()):
            bad = [
                name.removeprefix("model.") for (name, _), good in zip(named, finite.tolist(), strict=True) if not good
            ]
            raise ValueError(
                f"weights are not finite after step {trainer.global_step}, {len(bad)} of {len(named)} tensors "
                f"({', '.join(bad[:3])}). {ADVICE}"
            )
