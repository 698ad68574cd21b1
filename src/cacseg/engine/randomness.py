"""Random states: saved in checkpoints, restored when a run is resumed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from cacseg.engine._lightning import Callback, LightningModule, Trainer


def random_state() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's global generators, as tensors, numbers and strings alone."""
    version, internal, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global state itself)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """What `random_state` gave."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), place, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_all(*words: int) -> None:
    """Every global generator from a few numbers."""
    python, numpy, pytorch = np.random.SeedSequence(words).generate_state(3).tolist()
    random.seed(python)
    np.random.seed(numpy)  # noqa: NPY002 (libraries may use the global generator)
    torch.manual_seed(pytorch)


class Randomness(Callback):
    """Seeds a new run, each process differently, and restores the states of a resumed one.

    Both happen when the training loop starts, so that random numbers drawn before do not matter.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.states: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if len(self.states) == trainer.world_size:
            set_random_state(self.states[trainer.global_rank])
        else:  # a new run, or one resumed on another number of devices
            seed_all(self.seed, trainer.global_step, trainer.global_rank)
        self.states = []

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        states: list[Any] = [None] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(states, random_state())
        else:
            states = [random_state()]
        checkpoint["random_states"] = states

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.states = checkpoint["random_states"]
