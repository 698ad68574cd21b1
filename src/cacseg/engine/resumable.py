"""Checks that a checkpoint holds all that a run needs to go on as if it had not stopped, before any of it is used.

Lightning and torch pass over what is missing: without optimiser states, for one, a run would go on elsewhere.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from cacseg._tensors import is_finite
from cacseg._text import parse_json, shorten
from cacseg.engine.optim import make_optimiser
from cacseg.engine.task import SegmentationTask

LEAST_LIGHTNING = 2  # the major version that writes checkpoints of this form
# Of a group of parameters: what the device decides, and what a step changes.
FREE = {"lr", "params", "foreach", "fused", "capturable", "differentiable"}


def check_facts(found: Any, path: Path, steps: int) -> dict[str, Any]:
    """What is read before there is a trainer: how far the run of `steps` is, and what it has scored."""
    with _named(path):
        _need(isinstance(found, dict), f"it holds {type(found).__name__}, no dictionary")
        step = _number(found, "global_step", int)
        _need(step >= 1, f"global_step is {step}")
        _number(found, "epoch", int)
        _need(_number(found, "best_step", int) <= step, "best_step is later than global_step")
        _number(found, "since_best", int)
        _number(found, "seconds", float)
        best = found["best"]
        _need(isinstance(best, float | int) and not math.isnan(best), "best is", best)
        _need(isinstance(found["scores"], str), "scores is", found["scores"])
        if found["scores"] or step >= steps:
            _need(isinstance(parse_json(found["scores"]), dict), "scores are no object")
        version = str(found["pytorch-lightning_version"])
        numbers = re.match(r"(\d+)\.\d+(\.\w+)*", version)
        _need(numbers is not None and int(numbers[1]) >= LEAST_LIGHTNING, f"pytorch-lightning_version is {version!r}")
    checked: dict[str, Any] = found
    return checked


def check_states(
    found: Mapping[str, Any], path: Path, task: SegmentationTask, trainer: Trainer, averaged: bool
) -> None:
    """Weights, averages, optimiser, learning rates, progress, random states and data, against those of the run."""
    step = found["global_step"]
    with _named(path):
        _alike(task.state_dict(), found["state_dict"], "state_dict")
        if averaged:
            _alike([one.detach() for one in task.parameters()], found["averages"], "averages")
        _check_optimiser(found, task, step)
        loops = found["loops"]["fit_loop"]
        _alike(trainer.fit_loop.state_dict(), loops, "loops.fit_loop")
        steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]
        batches, done = loops["epoch_loop.batch_progress"], step * trainer.accumulate_grad_batches
        _need(steps["completed"] == step, f"loops.fit_loop counts {steps['completed']} steps, global_step is {step}")
        for name in ("total", "current"):
            counts = set(batches[name].values())
            _need(counts <= {done - 1, done}, f"loops.fit_loop counts {sorted(counts)} batches, not {done}")
        plugin = trainer.precision_plugin
        if scaler := plugin.state_dict():
            _alike(scaler, found[type(plugin).__qualname__], type(plugin).__qualname__)
        _need(isinstance(found["callbacks"], dict), "callbacks is no dictionary")
        _alike({"images": 0, "classes": [""] * task.model.num_classes}, found["Loaders"], "Loaders")
        states = found["random_states"]
        _need(isinstance(states, list) and len(states) > 0, "random_states is", states)
        for state in states:
            _check_random_state(state)


def _check_optimiser(found: Mapping[str, Any], task: SegmentationTask, step: int) -> None:
    """One optimiser and one schedule, a state for each parameter; fp16 may have left out all steps so far."""
    optimiser = make_optimiser(task.optimiser_options, task.model)
    fresh, states, schedules = optimiser.state_dict(), found["optimizer_states"], found["lr_schedulers"]
    for name, one in (("optimizer_states", states), ("lr_schedulers", schedules)):
        _need(isinstance(one, list) and len(one) == 1 and isinstance(one[0], dict), f"{name} is", one)
    groups, schedule = states[0]["param_groups"], schedules[0]
    last = schedule["last_epoch"]
    half = task.training_options.precision == "fp16"
    _need(type(last) is int and (last == step or (half and 0 <= last < step)), f"lr_schedulers is at step {last}")
    _alike([group["lr"] for group in fresh["param_groups"]], schedule["base_lrs"], "base_lrs")
    _alike([0.0] * len(fresh["param_groups"]), schedule["_last_lr"], "_last_lr")
    _need(type(schedule["_step_count"]) is int, f"_step_count is {schedule['_step_count']}")
    _need(isinstance(groups, list) and len(groups) == len(fresh["param_groups"]), "param_groups are others")
    for place, (ours, theirs) in enumerate(zip(fresh["param_groups"], groups, strict=True)):
        where = f"param_groups[{place}]"
        _need(theirs["params"] == ours["params"], f"{where} has other parameters")
        _need(math.isclose(theirs["initial_lr"], ours["lr"]), f"{where}.initial_lr is {theirs['initial_lr']}")
        # A recorded step keeps its rate in float32.
        now = schedule["_last_lr"][place]
        _need(math.isclose(theirs["lr"], now, rel_tol=1e-6), f"{where}.lr is {theirs['lr']}, not {now}")
        for key in (ours.keys() & theirs.keys()) - FREE:
            same = list(theirs[key]) == list(ours[key]) if key == "betas" else theirs[key] == ours[key]
            _need(same, f"{where}.{key} is {shorten(theirs[key])}, not {ours[key]}")
        absent = {"weight_decay", "momentum" if task.optimiser_options.name == "sgd" else "betas"} - theirs.keys()
        _need(not absent, f"{where} has no {', '.join(absent)}")
    parameters = [parameter.detach() for group in optimiser.param_groups for parameter in group["params"]]
    if task.optimiser_options.name == "sgd":
        expected = [{"momentum_buffer": one} if task.optimiser_options.momentum else {} for one in parameters]
    else:
        expected = [{"step": torch.tensor(0.0), "exp_avg": one, "exp_avg_sq": one} for one in parameters]
    there = {place: state for place, state in enumerate(expected) if state}
    if half and not states[0]["state"]:
        return
    _alike(there, states[0]["state"], "optimizer_states.state")
    for place, state in states[0]["state"].items():
        if "step" in state:
            count, where = float(state["step"]), f"optimizer_states.state.{place}"
            _need(count == step or (half and 0 < count < step), f"{where} is at step {count:g}")
            _need(not bool((state["exp_avg_sq"] < 0.0).any()), f"{where}.exp_avg_sq is negative")


def _check_random_state(state: Any) -> None:
    """Tried on generators of our own."""
    version, internal, gauss = state["python"]
    random.Random().setstate((version, tuple(internal), gauss))
    name, keys, place, has_gauss, cached = state["numpy"]
    numbers = np.array(keys, dtype=np.uint32)
    np.random.RandomState().set_state((name, numbers, place, has_gauss, cached))
    torch.Generator().set_state(state["torch"])
    cuda = state["cuda"]
    _need(cuda is None or (isinstance(cuda, Tensor) and cuda.dtype == torch.uint8), "random_states.cuda is no state")


def _alike(ours: Any, found: Any, where: str) -> None:
    """The same structure, with tensors of the same shapes and types that are finite, and counts that are not negative.

    Other numbers and words may differ.
    """
    if isinstance(ours, Tensor):
        is_tensor = isinstance(found, Tensor)
        had = (tuple(found.shape), found.dtype) if is_tensor else (found,)
        same = is_tensor and found.shape == ours.shape and found.dtype == ours.dtype
        _need(same, f"{where} must be {tuple(ours.shape)} {ours.dtype}; it is", *had)
        _need(is_finite(found), f"{where} holds NaN or infinity")
    elif isinstance(ours, Mapping):
        _need(isinstance(found, Mapping), f"{where} must be a dictionary; it is", found)
        for words, names in (("lacks", ours.keys() - found.keys()), ("has also", found.keys() - ours.keys())):
            _need(not names, f"{where} {words} {', '.join(sorted(map(str, names))[:3])} ({len(names)} names)")
        for name, value in ours.items():
            _alike(value, found[name], f"{where}.{name}")
    elif isinstance(ours, list | tuple):
        count = len(found) if isinstance(found, list | tuple) else found
        _need(count == len(ours), f"{where} must have {len(ours)} entries; it has", count)
        for place, (one, other) in enumerate(zip(ours, found, strict=True)):
            _alike(one, other, f"{where}[{place}]")
    elif isinstance(ours, bool | int | float | str):
        same = type(found) is type(ours) or (isinstance(ours, float) and type(found) is int)
        _need(same and (isinstance(ours, bool | str) or 0 <= found < math.inf), f"{where} is", found)


def _number(found: Mapping[str, Any], name: str, kind: type) -> Any:
    value = found[name]
    is_one = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    _need(is_one and 0 <= value < math.inf, f"{name} is", value)
    return value


def _need(condition: bool, words: str, *values: Any) -> None:
    if not condition:
        raise ValueError(" ".join([words, *map(shorten, values)]))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """One line that names the file, whatever is wrong within."""
    try:
        yield
    except Exception as error:  # of any kind: the content may be anything
        reason = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(
            f"{path} is no whole checkpoint of this run: {reason or type(error).__name__}. Nothing was changed. Bring "
            "back the file as it was, or start a new run from the model beside it: "
            f"model.weights={path.with_suffix('.safetensors')}"
        ) from error
