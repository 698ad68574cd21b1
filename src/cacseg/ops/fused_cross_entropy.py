"""The Triton cross-entropies as an operator: torch.compile sees their shapes, autograd their gradients."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from typing import Any, Optional

import torch
from torch import Tensor

from cacseg.ops._choice import kernels
from cacseg.ops._operators import make_operator
from cacseg.ops.interpolation import cells


def _forward(
    first: Tensor,
    second: Optional[Tensor],  # noqa: UP045
    third: Optional[Tensor],  # noqa: UP045
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    ignore_index: int,
    label_smoothing: float,
    align_corners: list[bool],
    count_ignored: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses [m] of one to three logits [b, n, h, w], the share of each pixel in them [m], and the logsumexp of
    each output pixel [m, b, H, W]. labels [b, H, W]. `count_ignored` divides by the number of all pixels.
    """
    logits = _alike([one for one in (first, second, third) if one is not None])
    module = kernels("cross_entropy")
    axes = _axes(module, first, labels, align_corners)
    return module.forward(logits, labels, weight, *axes, ignore_index, label_smoothing, count_ignored)


def _fake(
    first: Tensor,
    second: Optional[Tensor],  # noqa: UP045
    third: Optional[Tensor],  # noqa: UP045
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    ignore_index: int,
    label_smoothing: float,
    align_corners: list[bool],
    count_ignored: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    losses = first.new_empty(len(align_corners), dtype=torch.float32)
    return losses, torch.empty_like(losses), first.new_empty(len(align_corners), *labels.shape, dtype=torch.float32)


def _backward(
    of_losses: Tensor,
    logits: list[Tensor],
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    shares: Tensor,
    lse: Tensor,
    label_smoothing: float,
    align_corners: list[bool],
) -> Tensor:
    """The gradients of the logits, [m, b, n, h, w]."""
    module = kernels("cross_entropy")
    axes = _axes(module, logits[0], labels, align_corners)
    return module.backward(of_losses, _alike(logits), labels, weight, shares, lse, *axes, label_smoothing)


def _fake_backward(of_losses: Tensor, logits: list[Tensor], *others: Any) -> Tensor:
    if len(logits) == 1:
        return torch.empty_like(logits[0])[None]
    return logits[0].new_empty(len(logits), *logits[0].shape)


def _alike(logits: list[Tensor]) -> list[Tensor]:
    """Several logits share a launch if they share strides."""
    if len({one.stride() for one in logits}) == 1:
        return logits
    return [one.contiguous() for one in logits]


def _axes(module: Any, logits: Tensor, labels: Tensor, align_corners: list[bool]) -> list[Any]:
    sizes = zip(logits.shape[2:], labels.shape[1:], strict=True)
    return [module.Axis(*cells(source, output, tuple(align_corners), logits.device)) for source, output in sizes]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> int:
    *logits, labels, weight, _, ctx.label_smoothing, ctx.align_corners, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(labels, weight, *output[1:], *(one for one in logits if one is not None))
    return 1


def _gradients(run: Any, ctx: Any, of_losses: Any, *others: Any) -> tuple[Any, ...]:
    if of_losses is None:
        return (None,) * 9
    labels, weight, shares, lse, *logits = ctx.saved_tensors
    gradients = run(of_losses, logits, labels, weight, shares, lse, ctx.label_smoothing, ctx.align_corners).unbind()
    return *gradients, *[None] * (9 - len(gradients))


fused_cross_entropy = make_operator(
    "fused_cross_entropy", _forward, _fake, _backward, _fake_backward, save=_save, gradients=_gradients
)
