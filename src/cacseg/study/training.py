"""The steps of a job. All that a step needs lies on the device, so that a GPU can record one and replay it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cacseg.engine.device import autocast
from cacseg.engine.randomness import seed_all
from cacseg.engine.replay import Replayed
from cacseg.engine.resident import Resident
from cacseg.engine.resident_crops import cut_crops, draw_crops
from cacseg.engine.task import begin_training
from cacseg.models import SegmentationModel
from cacseg.recipes.build import optimiser_of, rate_at, train_transform
from cacseg.recipes.config import Config
from cacseg.study.halfway import Halfway, State

LOOK_EVERY = {"cuda": 100, "cpu": 5}  # steps between two looks at the losses, which wait for the device
LAST = 50  # steps at the end whose losses are kept

Progress = Callable[[int], None]  # steps done since the last call


class Trained(NamedTuple):
    model: SegmentationModel  # the averaged one, where weights are averaged
    losses: dict[str, float | None]  # means over the last steps; None where one is not finite
    steps: int
    diverged: bool
    seconds: float  # of all its steps
    resumed: list[int]  # the steps at which it went on after an interruption


def train_model(
    config: Config,
    model: SegmentationModel,
    split: Resident,
    progress: Progress | None = None,
    *,
    graphs: bool = True,
    halfway: Halfway | None = None,
) -> Trained:
    """The steps of a run, none of which waits for the device; a loss that is not finite ends them early.

    On a GPU a step is recorded as a CUDA graph and replayed, unless `graphs` says no. What `halfway` has of the run is
    not done again, and at times it is given the state.
    """
    start = time.perf_counter()
    training = _Training(config, model, split)
    step_once = Replayed(training.step, split.images.device) if graphs else training.step
    losses: list[Tensor] = []  # of the last steps, one number for each term
    steps, every = config.schedule.steps, LOOK_EVERY[split.images.device.type]
    first, resumed = 0, list[int]()
    saved = None if halfway is None else halfway.read()
    if saved is not None:
        training.restore(saved)
        first, losses = saved["step"], list(saved["losses"].to(training.device))
        resumed = [*saved["resumed"], first]
        start -= saved["seconds"]
    for step in range(first, steps):
        training.set_rates(rate_at(config.optimiser, config.schedule, step))
        losses.append(step_once().clone())
        if (step + 1) % every == 0 or step + 1 == steps:
            looked_at = (step % every) + 1
            totals = torch.stack(losses[-looked_at:])[:, training.terms.index("total")]
            finite = bool(torch.isfinite(totals).all())
            if progress is not None:
                progress(looked_at)
            if not finite:
                break
            losses = losses[-LAST:]
            if halfway is not None and step + 1 < steps and halfway.due():
                run = {"step": step + 1, "losses": torch.stack(losses), "resumed": resumed}
                halfway.save({**training.state(), **run, "seconds": time.perf_counter() - start})
    means = torch.stack(losses[-LAST:]).mean(0).tolist()
    terms = dict(zip(training.terms, (value if math.isfinite(value) else None for value in means), strict=True))
    return Trained(training.trained(), terms, step + 1, not finite, time.perf_counter() - start, resumed)


class _Training:
    """A model, its optimiser and the crops of a whole run."""

    def __init__(self, config: Config, model: SegmentationModel, split: Resident) -> None:
        options, device = config.training, split.images.device
        self.model, self.split, self.device = model, split, device
        self.precision, self.clip = cast(options.precision), config.optimiser.clip
        self.layout = torch.channels_last if options.channels_last else torch.contiguous_format
        model.to(memory_format=self.layout)  # type: ignore[call-overload]
        begin_training(model, freeze_batch_norm=options.freeze_batch_norm)
        self.optimiser = optimiser_of(config.optimiser, model)
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        if device.type == "cuda":
            _on_the_device(self.optimiser, device)
        self.parameters = [parameter for group in self.optimiser.param_groups for parameter in group["params"]]
        self.averaged = None if options.ema_decay is None else Averaged(model, options.ema_decay)
        transform = train_transform(config.data, split.ignore_index)
        count = config.schedule.steps * options.batch
        self.crop, self.crops = transform.crop, draw_crops(transform, split, options.seed, count, model.mean, model.std)
        self.positions = torch.arange(options.batch, device=device)
        self.terms: tuple[str, ...] = ()  # what `step` returns, by name
        seed_all(options.seed, 0, 0)  # as a run of `cacseg train` starts: dropout does not depend on what was built

    def set_rates(self, share: float) -> None:
        """Learning rates for the next step."""
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * share)
            else:
                group["lr"] = rate * share

    def step(self) -> Tensor:
        """One step on the next crops; the terms of its loss."""
        images, labels = cut_crops(self.split, self.crops.at(self.positions), self.crop)
        with autocast(self.device, self.precision):
            losses = self.model.loss(images.contiguous(memory_format=self.layout), labels)
        self.optimiser.zero_grad(set_to_none=True)
        losses["total"].backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimiser.step()
        if self.averaged is not None:
            self.averaged.update()
        self.positions += len(self.positions)
        self.terms = tuple(losses)
        return torch.stack([value.detach().float() for value in losses.values()])

    def trained(self) -> SegmentationModel:
        return self.model if self.averaged is None else self.averaged.finish()

    def state(self) -> State:
        """All that the next step depends on, but for the settings: crops are drawn, and dropout is torch's."""
        return {
            "model": self.model.state_dict(),
            "average": None if self.averaged is None else self.averaged.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "positions": self.positions,
            "terms": list(self.terms),
            "random": torch.get_rng_state(),
            "random_there": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def restore(self, state: State) -> None:
        """What `state` gave, before the first step."""
        self.model.load_state_dict(state["model"])
        if self.averaged is not None:
            self.averaged.average.load_state_dict(state["average"])
            self.averaged.begun = True
        self.optimiser.load_state_dict(state["optimiser"])
        if self.device.type == "cuda":
            _on_the_device(self.optimiser, self.device)
        self.positions.copy_(state["positions"])
        self.terms = tuple(state["terms"])
        torch.set_rng_state(state["random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_there"], self.device)


def _on_the_device(optimiser: torch.optim.Optimizer, device: torch.device) -> None:
    """One kernel for a step of all weights, with rates and counts that it reads from the device's memory."""
    for group in optimiser.param_groups:
        group["fused"], group["foreach"] = True, False
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
        if "capturable" in group:
            group["capturable"] = True


class Averaged:
    """An exponential moving average of a model's weights; buffers are the model's last.

    What torch's AveragedModel gives with `get_ema_multi_avg_fn`, which waits for a GPU in each step to send it the
    number of steps.
    """

    def __init__(self, model: SegmentationModel, decay: float) -> None:
        self.model, self.decay, self.average = model, decay, copy.deepcopy(model)
        self.weights: list[Tensor] = list(model.parameters())
        self.averages: list[Tensor] = list(self.average.parameters())
        self.begun = False

    @torch.no_grad()
    def update(self) -> None:
        """After each step; the first is taken as it is."""
        torch._foreach_lerp_(self.averages, self.weights, 1.0 - self.decay if self.begun else 1.0)
        self.begun = True

    def finish(self) -> SegmentationModel:
        for theirs, ours in zip(self.average.buffers(), self.model.buffers(), strict=True):
            theirs.copy_(ours)
        return self.average


def cast(precision: str) -> str:
    """What autocast is told: TF32 is a matter of matrix products, not of types."""
    return "fp32" if precision == "tf32" else precision
