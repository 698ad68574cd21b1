"""The Triton prototypes as operators."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from typing import Any

import torch
from torch import Tensor

from cacseg.ops._choice import kernels, with_gradient


def _fused_context_prototypes(features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Prototypes [b, n, d], and the two logarithms of each pixel's share in them: [b, L] and [b, n]."""
    return kernels("prototypes").context_forward(features.flatten(2), logits.flatten(2))


fused_context_prototypes_operator = torch.library.custom_op("cacseg::fused_context_prototypes", mutates_args=())(
    _fused_context_prototypes
)


@fused_context_prototypes_operator.register_fake
def _(features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    (b, n), d, length = logits.shape[:2], features.shape[1], features[0, 0].numel()
    shapes = ((b, n, d), (b, length), (b, n))
    return tuple(features.new_empty(shape, dtype=torch.float32) for shape in shapes)  # type: ignore[return-value]


def _fused_context_prototypes_backward(
    gradient: Tensor, features: Tensor, logits: Tensor, prototypes: Tensor, of_pixels: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of features and logits."""
    of_features, of_logits = kernels("prototypes").context_backward(
        gradient, prototypes, features.flatten(2), logits.flatten(2), of_pixels, totals
    )
    return of_features.view(features.shape), of_logits.view(logits.shape)


fused_context_prototypes_backward_operator = torch.library.custom_op(
    "cacseg::fused_context_prototypes_backward", mutates_args=()
)(_fused_context_prototypes_backward)


@fused_context_prototypes_backward_operator.register_fake
def _(
    gradient: Tensor, features: Tensor, logits: Tensor, prototypes: Tensor, of_pixels: Tensor, totals: Tensor
) -> tuple[Tensor, Tensor]:
    like_features, like_logits = (torch.empty_like(one.flatten(2)).view(one.shape) for one in (features, logits))
    return like_features, like_logits


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output)


def _context_backward(run: Any, ctx: Any, of_prototypes: Any, *others: Any) -> tuple[Any, ...]:
    if of_prototypes is None:
        return None, None
    return run(of_prototypes, *ctx.saved_tensors)


fused_context_prototypes = with_gradient(
    fused_context_prototypes_operator,
    _fused_context_prototypes,
    _setup_context,
    _context_backward,
    fused_context_prototypes_backward_operator,
    _fused_context_prototypes_backward,
)


def _fused_label_sums(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sums [b, n, d] and numbers [b, n] of the features of each label; labels outside [0, n) are left out."""
    labels = labels.flatten(1).contiguous()
    sums = kernels("prototypes").label_sums(features.flatten(2), labels, num_classes)
    return sums, kernels("distillation").class_sums(labels, num_classes)[0].sum(0)


fused_label_sums_operator = torch.library.custom_op("cacseg::fused_label_sums", mutates_args=())(_fused_label_sums)


@fused_label_sums_operator.register_fake
def _(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    b, d = features.shape[:2]
    sums = features.new_empty(b, num_classes, d, dtype=torch.float32)
    return sums, features.new_empty(b, num_classes, dtype=torch.float32)


def _fused_label_sums_backward(gradient: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the features."""
    of_features = kernels("prototypes").label_sums_backward(
        gradient, labels.flatten(1).contiguous(), features.flatten(2)
    )
    return of_features.view(features.shape)


fused_label_sums_backward_operator = torch.library.custom_op("cacseg::fused_label_sums_backward", mutates_args=())(
    _fused_label_sums_backward
)


@fused_label_sums_backward_operator.register_fake
def _(gradient: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    return torch.empty_like(features.flatten(2)).view(features.shape)


def _setup_sums(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2])


def _sums_backward(run: Any, ctx: Any, of_sums: Any, *others: Any) -> tuple[Any, ...]:
    return None if of_sums is None else run(of_sums, *ctx.saved_tensors), None, None


fused_label_sums = with_gradient(
    fused_label_sums_operator,
    _fused_label_sums,
    _setup_sums,
    _sums_backward,
    fused_label_sums_backward_operator,
    _fused_label_sums_backward,
)
