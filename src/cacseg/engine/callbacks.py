"""What happens around the steps of a run: dry run, random states, signals, and a watch over the numbers."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from cacseg.engine.device import read_clock
from cacseg.engine.loaders import Loaders

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO_SECONDS = 1.0  # launchers pass a signal on to processes that got it from the terminal already
ADVICE = (
    "Nothing of it was saved; the last checkpoint is from before. Lower optimiser.rate, clip gradients "
    "(optimiser.clip), or use bf16 in place of fp16."
)


class DryRun(Callback):
    """Reads, trains and validates one batch as the run will, with gradients, then restores the model's buffers.

    Errors of data, model or memory show here and not at the first validation, hours later. Both passes are run twice,
    and the second is timed: `report` is told what the run will take. Weights and optimiser are not touched, and
    `Randomness`, which comes after, sets the random states.

    `passed`: called on rank 0 when nothing was wrong.
    """

    def __init__(self, passed: Callable[[], None] | None, report: Callable[[str], None]) -> None:
        self.passed, self.report = passed, report

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task: Any = pl_module
        loaders: Loaders = trainer.datamodule  # type: ignore[attr-defined]
        kept = {name: value.clone() for name, value in task.model.named_buffers()}
        modes = {module: module.training for module in task.model.modules()}
        try:
            batch = loaders.first_batch(trainer.global_step)
            if bool((batch.labels == task.model.ignore_index).all()):
                raise ValueError(
                    "the labels of a batch must not all be ignored; every pixel of the first "
                    f"{len(batch.labels)} crops is {task.model.ignore_index}, the ignore index. Do the label files "
                    "hold classes, and is the ignore index right?"
                )
            picture = loaders.first_picture()

            def step() -> None:
                with trainer.precision_plugin.train_step_context():
                    total = task.losses(batch)["total"]
                # Not backward(): nothing is left in the parameters, and no hook of a distributed wrapper fires.
                torch.autograd.grad(total, [value for value in task.model.parameters() if value.requires_grad])

            def validate() -> None:
                with torch.no_grad(), trainer.precision_plugin.val_step_context():
                    task.count(picture)

            step_seconds = _seconds_again(step, task.device)
            task.model.eval()
            validation_seconds = _seconds_again(validate, task.device)
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
        if trainer.is_global_zero:
            if self.passed is not None:
                self.passed()
            self.report(_expectation(trainer, task, step_seconds, validation_seconds))


def _seconds_again(run: Callable[[], None], device: torch.device) -> float:
    """Of a second run: the first loads kernels and chooses algorithms."""
    run()
    started = read_clock(device)
    run()
    return read_clock(device) - started


def _expectation(trainer: Trainer, task: Any, step_seconds: float, validation_seconds: float) -> str:
    """What a run will take, if its images are read as fast as it trains; the optimiser is not timed."""
    loaders: Loaders = trainer.datamodule  # type: ignore[attr-defined]
    first, last, every = trainer.global_step, task.schedule.steps, task.training_options.validate_every
    validations = last // every - first // every + (last % every > 0)
    images = len(loaders.validation) + len(loaders.sample)
    seconds = (last - first) * step_seconds * loaders.accumulate
    seconds += validations * images * validation_seconds / trainer.world_size
    memory = ""
    if task.device.type == "cuda":
        states = 2 * sum(one.nbytes for one in task.model.parameters())
        memory = f" and {(torch.cuda.max_memory_allocated(task.device) + states) / 2**30:.1f} GiB of GPU memory"
    limit = "at most" if task.training_options.graph is True else "about"  # recorded steps, not timed here, are faster
    return (
        f"will take {limit} {timedelta(seconds=max(1, round(seconds)))}{memory}: {last - first} steps of "
        f"{step_seconds * loaders.accumulate:.2g} s, {validations} validations of {images} images"
    )


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
        states: list[Any] = [random_state()] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(states, random_state())
        checkpoint["random_states"] = states

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.states = checkpoint["random_states"]


class Stopped(Exception):
    """A run ended early because it was asked to, after saving the checkpoint of `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


class Interrupt(Callback):
    """Ctrl-C and SIGTERM end a run between two steps, with a checkpoint; a second Ctrl-C ends the process at once.

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

    def on_train_end(self, *_: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()

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


class Watch(Callback):
    """Stops a run whose losses or weights are not finite, before they reach a checkpoint.

    Keeps, on the device, the first step at which each loss term was not finite. It is read every `every` steps and
    before each checkpoint, since a read waits for the GPU; on a CPU in every step.
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
        self.first = torch.where(~values.isfinite() & (self.first == 0), step, self.first)
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
        finite = torch.stack([value.detach().isfinite().all() for _, value in named]).tolist()
        bad = [name.removeprefix("model.") for (name, _), good in zip(named, finite, strict=True) if not good]
        if bad:
            raise ValueError(
                f"weights are not finite after step {trainer.global_step}, {len(bad)} of {len(named)} tensors "
                f"({', '.join(bad[:3])}). {ADVICE}"
            )
