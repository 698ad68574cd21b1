"""Optimisers and learning rates as plain functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cacseg.engine.options import OptimiserOptions, ScheduleOptions

PARTS = ("backbone", "head", "classifier", "auxiliary", "projectors")
POSITIONS = ("absolute_pos_embed", "pos_embed", "relative_position_bias_table")

_NORMALISATIONS = (
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.modules.instancenorm._InstanceNorm,
)


def polynomial(
    step: int, steps: int, power: float, *, minimum: float = 0.0, warmup_steps: int = 0, warmup_ratio: float = 1e-6
) -> float:
    """The share of the learning rate at a step, 0 being the first.

        (1 - minimum) (1 - step / steps)^power + minimum

    times, in the first `warmup_steps`, a line from `warmup_ratio` to 1. `minimum` is a share too.
    """
    share = (1.0 - minimum) * (1.0 - min(step, steps) / steps) ** power + minimum
    if step < warmup_steps:
        share *= 1.0 - (1.0 - step / warmup_steps) * (1.0 - warmup_ratio)
    return share


def parameter_groups(
    model: nn.Module,
    rate: float,
    weight_decay: float,
    *,
    decay_normalisation: bool = True,
    multipliers: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group; a group shares its learning rate and weight decay.

    Without `decay_normalisation` no weight decay pulls at normalisations, positions and relative-position biases.
    `multipliers` scale the rate of a part of the model ("backbone", "head", "classifier", "auxiliary"); "projectors"
    are those of a context-aware classifier, which follow "classifier" unless they are named.
    """
    multipliers = dict(multipliers or {})
    unknown = sorted(set(multipliers) - set(PARTS))
    if unknown:
        raise ValueError(f"rate multipliers must name a part of the model, {', '.join(PARTS)}; got {unknown[0]!r}.")
    kept = {
        parameter
        for module in model.modules()
        if isinstance(module, _NORMALISATIONS)
        for parameter in module.parameters(recurse=False)
    }
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        multiplier = multipliers.get(name.split(".", 1)[0], 1.0)
        if "_projector." in name:
            multiplier = multipliers.get("projectors", multiplier)
        spared = not decay_normalisation and (parameter in kept or name.rsplit(".", 1)[-1] in POSITIONS)
        groups.setdefault((multiplier, 0.0 if spared else weight_decay), []).append(parameter)
    return [
        {"params": parameters, "lr": rate * multiplier, "weight_decay": decay}
        for (multiplier, decay), parameters in groups.items()
    ]


def make_optimiser(options: OptimiserOptions, model: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW. `fused` updates all weights in a few kernels, on a GPU."""
    groups = parameter_groups(
        model,
        options.rate,
        options.weight_decay,
        decay_normalisation=options.decay_normalisation,
        multipliers=options.multipliers,
    )
    if options.name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=options.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=0.0, betas=options.betas, fused=fused)


def rate_at(optimiser: OptimiserOptions, schedule: ScheduleOptions, step: int) -> float:
    """The share of the learning rate at a step, 0 being the first."""
    return polynomial(
        step,
        schedule.steps,
        schedule.power,
        minimum=schedule.minimum / optimiser.rate,
        warmup_steps=schedule.warmup_steps,
        warmup_ratio=schedule.warmup_ratio,
    )
