"""The Triton cross-entropy as an operator: torch.compile sees its shapes, autograd its gradient."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from typing import Any, Optional

import torch
from torch import Tensor

from cacseg.ops._choice import kernels, with_gradient
from cacseg.ops.interpolation import cells


def _fused_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    ignore_index: int,
    label_smoothing: float,
    align_corners: bool,
    count_ignored: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, each pixel's share in it, and the logsumexp of each output pixel.

    logits [b, n, h, w], labels [b, H, W]. `count_ignored` divides by the number of all pixels.
    """
    module = kernels("cross_entropy")
    axes = _axes(module, logits, labels, align_corners)
    return module.forward(logits, labels, weight, *axes, ignore_index, label_smoothing, count_ignored)


fused_cross_entropy_operator = torch.library.custom_op("cacseg::fused_cross_entropy", mutates_args=())(
    _fused_cross_entropy
)


@fused_cross_entropy_operator.register_fake
def _(
    logits: Tensor,
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    ignore_index: int,
    label_smoothing: float,
    align_corners: bool,
    count_ignored: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    loss = logits.new_empty((), dtype=torch.float32)
    return loss, torch.empty_like(loss), logits.new_empty(labels.shape, dtype=torch.float32)


def _fused_cross_entropy_backward(
    of_loss: Tensor,
    logits: Tensor,
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    share: Tensor,
    lse: Tensor,
    label_smoothing: float,
    align_corners: bool,
) -> Tensor:
    """The gradient of the logits."""
    module = kernels("cross_entropy")
    axes = _axes(module, logits, labels, align_corners)
    return module.backward(of_loss, logits, labels, weight, share, lse, *axes, label_smoothing)


fused_cross_entropy_backward_operator = torch.library.custom_op(
    "cacseg::fused_cross_entropy_backward", mutates_args=()
)(_fused_cross_entropy_backward)


@fused_cross_entropy_backward_operator.register_fake
def _(
    of_loss: Tensor,
    logits: Tensor,
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    share: Tensor,
    lse: Tensor,
    label_smoothing: float,
    align_corners: bool,
) -> Tensor:
    return torch.empty_like(logits)


def _axes(module: Any, logits: Tensor, labels: Tensor, align_corners: bool) -> list[Any]:
    sizes = zip(logits.shape[2:], labels.shape[1:], strict=True)
    return [module.Axis(*cells(source, output, align_corners, logits.device)) for source, output in sizes]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, labels, weight, _, ctx.label_smoothing, ctx.align_corners, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, labels, weight, *output[1:])


def _backward(run: Any, ctx: Any, of_loss: Any, *others: Any) -> tuple[Any, ...]:
    of_logits = None
    if of_loss is not None:
        of_logits = run(of_loss, *ctx.saved_tensors, ctx.label_smoothing, ctx.align_corners)
    return of_logits, *[None] * 6


fused_cross_entropy = with_gradient(
    fused_cross_entropy_operator,
    _fused_cross_entropy,
    _setup_context,
    _backward,
    fused_cross_entropy_backward_operator,
    _fused_cross_entropy_backward,
)
