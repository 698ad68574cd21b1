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


class _BalancedGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
        ctx.ratio = ratio
        return values.view_as(values), values.view_as(values)

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        longest, length = ctx.ratio * _length(first), _length(second)
        share = (longest / length.clamp(min=torch.finfo(length.dtype).tiny)).clamp(max=1.0)
        return torch.addcmul(first, second, share.to(second.dtype)), None


def _length(gradient: Tensor) -> Tensor:
    narrow = gradient.dtype in (torch.float16, torch.bfloat16)
    return torch.linalg.vector_norm(gradient, dtype=torch.float32 if narrow else None)


def balance_gradients(values: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """The same values twice; the gradient of the second is made at most `ratio` times as long as that of the first.

    g_1 + min(1, ratio |g_1| / |g_2|) g_2
    """
    if not values.requires_grad:
        return values, values
    first, second = _BalancedGradients.apply(values, ratio)
    return first, second
