"""How much of a gradient passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, share: float) -> Tensor:
        ctx.share = share
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.share, None


def scale_gradient(values: Tensor, share: float) -> Tensor:
    """The same values; what comes back through them is multiplied by `share`, 0 cutting them off.

    values.detach() + share * (values - values.detach())
    """
    if share == 1.0 or not values.requires_grad:
        return values
    return values.detach() if share == 0.0 else _ScaledGradient.apply(values, share)
