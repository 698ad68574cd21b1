"""The Triton overlap as an operator."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from typing import Any

import torch
from torch import Tensor

from cacseg.ops._choice import kernels, with_gradient


def _fused_overlap(logits: Tensor, fitted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, its derivatives by the sums of each class, [2, n], and two values of each pixel, [2, b, L].

    logits [b, n, *spatial] and labels [b, *spatial], or points [P, n] and [P]; labels are -1 where they take no part.
    """
    return kernels("overlap").forward(_as_maps(logits), _as_rows(fitted))


def _fused_overlap_backward(of_loss: Tensor, logits: Tensor, fitted: Tensor, of_sums: Tensor, powers: Tensor) -> Tensor:
    """The gradient of the logits."""
    return _as_given(
        kernels("overlap").backward(of_loss, _as_maps(logits), _as_rows(fitted), of_sums, powers), logits.shape
    )


def _as_maps(logits: Tensor) -> Tensor:
    """[b, n, L]; points are the places of one image."""
    return logits.T[None] if logits.ndim == 2 else logits.flatten(2)


def _as_given(maps: Tensor, shape: torch.Size) -> Tensor:
    """What `_as_maps` was made of."""
    return maps[0].T if len(shape) == 2 else maps.view(shape)


def _as_rows(fitted: Tensor) -> Tensor:
    """[b, L]."""
    return fitted[None].contiguous() if fitted.ndim == 1 else fitted.flatten(1).contiguous()


fused_overlap_operator = torch.library.custom_op("cacseg::fused_overlap", mutates_args=())(_fused_overlap)
fused_overlap_backward_operator = torch.library.custom_op("cacseg::fused_overlap_backward", mutates_args=())(
    _fused_overlap_backward
)


@fused_overlap_operator.register_fake
def _(logits: Tensor, fitted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, n, length = _as_maps(logits).shape
    shapes = ((), (2, n), (2, b, length))
    return tuple(logits.new_empty(shape, dtype=torch.float32) for shape in shapes)  # type: ignore[return-value]


@fused_overlap_backward_operator.register_fake
def _(of_loss: Tensor, logits: Tensor, fitted: Tensor, of_sums: Tensor, powers: Tensor) -> Tensor:
    return _as_given(torch.empty_like(_as_maps(logits)), logits.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output[1:])


def _backward(run: Any, ctx: Any, of_loss: Any, *others: Any) -> tuple[Any, ...]:
    return None if of_loss is None else run(of_loss, *ctx.saved_tensors), None


fused_overlap = with_gradient(
    fused_overlap_operator,
    _fused_overlap,
    _setup_context,
    _backward,
    fused_overlap_backward_operator,
    _fused_overlap_backward,
)
