"""Optimisers and learning rates as plain functions."""

from __future__ import annotations

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


def rate_at(optimiser: OptimiserOptions, schedule: ScheduleOptions, step: int) -> float:
    """The share of the learning rate at a step, 0 being the first.

        (1 - minimum) (1 - step / steps)^power + minimum

    times, in the first `warmup_steps`, a line from `warmup_ratio` to 1. `minimum` is a share here too.
    """
    minimum = schedule.minimum / optimiser.rate
    share = (1.0 - minimum) * (1.0 - min(step, schedule.steps) / schedule.steps) ** schedule.power + minimum
    if step < schedule.warmup_steps:
        share *= 1.0 - (1.0 - step / schedule.warmup_steps) * (1.0 - schedule.warmup_ratio)
    return share


def parameter_groups(options: OptimiserOptions, model: nn.Module) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group; a group shares its learning rate and weight decay.

    Without `decay_normalisation` no weight decay pulls at normalisations, positions and relative-position biases.
    `multipliers` scale the rate of a part of the model ("backbone", "head", "classifier", "auxiliary"); "projectors"
    are those of a context-aware classifier, which follow "classifier" unless they are named.
    """
    multipliers = options.multipliers
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
        spared = not options.decay_normalisation and (parameter in kept or name.rsplit(".", 1)[-1] in POSITIONS)
        groups.setdefault((multiplier, 0.0 if spared else options.weight_decay), []).append(parameter)
    return [
        {"params": parameters, "lr": options.rate * multiplier, "weight_decay": decay}
        for (multiplier, decay), parameters in groups.items()
    ]


def make_optimiser(options: OptimiserOptions, model: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW. `fused` updates all weights in a few kernels, on a GPU."""
    groups = parameter_groups(options, model)
    if options.name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=options.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=0.0, betas=options.betas, fused=fused)
