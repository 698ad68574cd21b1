"""The Triton distillation as an operator."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from typing import Any

import torch
from torch import Tensor

from cacseg.ops._choice import kernels, with_gradient


def _fused_distillation(
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    soft_target_weight: float,
    by_entropy: bool,
    by_class: bool,
    over_batch: bool,
    present_only: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, the coefficients of its gradient [b, n], and four values of each pixel [4, b, L].

    Logits are [b, n, *spatial], labels [b, *spatial] with -1 where they take no part.
    """
    return kernels("distillation").forward(
        context.flatten(2),
        oracle.flatten(2),
        labels.flatten(1).contiguous(),
        soft_target_weight,
        by_entropy,
        by_class,
        over_batch,
        present_only,
    )


fused_distillation_operator = torch.library.custom_op("cacseg::fused_distillation", mutates_args=())(
    _fused_distillation
)


@fused_distillation_operator.register_fake
def _(
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    soft_target_weight: float,
    by_entropy: bool,
    by_class: bool,
    over_batch: bool,
    present_only: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    b, n = context.shape[:2]
    shapes = ((), (b, n), (4, b, context[0, 0].numel()))
    return tuple(context.new_empty(shape, dtype=torch.float32) for shape in shapes)  # type: ignore[return-value]


def _fused_distillation_backward(
    of_loss: Tensor,
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    coefficients: Tensor,
    values: Tensor,
    soft_target_weight: float,
    by_entropy: bool,
) -> Tensor:
    """The gradient of the context logits."""
    of_context = kernels("distillation").backward(
        of_loss,
        context.flatten(2),
        oracle.flatten(2),
        labels.flatten(1).contiguous(),
        coefficients,
        values,
        soft_target_weight,
        by_entropy,
    )
    return of_context.view(context.shape)


fused_distillation_backward_operator = torch.library.custom_op("cacseg::fused_distillation_backward", mutates_args=())(
    _fused_distillation_backward
)


@fused_distillation_backward_operator.register_fake
def _(
    of_loss: Tensor,
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    coefficients: Tensor,
    values: Tensor,
    soft_target_weight: float,
    by_entropy: bool,
) -> Tensor:
    return torch.empty_like(context.flatten(2)).view(context.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[3:5]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output[1:])


def _backward(run: Any, ctx: Any, of_loss: Any, *others: Any) -> tuple[Any, ...]:
    of_context = None
    if of_loss is not None:
        of_context = run(of_loss, *ctx.saved_tensors, *ctx.options)
    return of_context, *[None] * 7


fused_distillation = with_gradient(
    fused_distillation_operator,
    _fused_distillation,
    _setup_context,
    _backward,
    fused_distillation_backward_operator,
    _fused_distillation_backward,
)
