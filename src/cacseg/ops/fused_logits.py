"""The Triton products between features and classifiers as operators."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from typing import Any, Optional

import torch
from torch import Tensor

from cacseg.ops._choice import kernels, with_gradient


def _fused_cosine_logits(
    features: Tensor,
    rows: Tensor,
    other_rows: Optional[Tensor],  # noqa: UP045
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scores [b, m, *spatial] of one or two classifiers [1 or b, m, d], 1 / |features| [b, L], 1 / |rows| of both."""
    module, flat = kernels("cosine"), features.flatten(2)
    of_pixels = module.inverse_norms(flat)
    results = []
    for one in (rows, other_rows):
        if one is None:
            results.append((features.new_empty(0), features.new_empty(0)))
            continue
        scores, of_rows = module.forward(flat, one, of_pixels, scale)
        results.append((scores.view(features.shape[0], one.shape[1], *features.shape[2:]), of_rows))
    (scores, of_rows), (other_scores, of_other_rows) = results
    return scores, other_scores, of_pixels, of_rows, of_other_rows


fused_cosine_logits_operator = torch.library.custom_op("cacseg::fused_cosine_logits", mutates_args=())(
    _fused_cosine_logits
)


@fused_cosine_logits_operator.register_fake
def _(
    features: Tensor,
    rows: Tensor,
    other_rows: Optional[Tensor],  # noqa: UP045
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_pixels = features.new_empty(features.shape[0], features[0, 0].numel(), dtype=torch.float32)
    results = []
    for one in (rows, other_rows):
        if one is None:
            results.append((features.new_empty(0), features.new_empty(0)))
            continue
        scores = features.new_empty(features.shape[0], one.shape[1], *features.shape[2:])
        results.append((scores, features.new_empty(one.shape[:2], dtype=torch.float32)))
    (scores, of_rows), (other_scores, of_other_rows) = results
    return scores, other_scores, of_pixels, of_rows, of_other_rows


def _fused_cosine_logits_backward(
    features: Tensor,
    of_pixels: Tensor,
    gradients: list[Tensor],
    rows: list[Tensor],
    scores: list[Tensor],
    of_rows: list[Tensor],
    scale: float,
) -> list[Tensor]:
    """The gradients of the features and of the rows of each branch."""
    module = kernels("cosine")
    branches = [
        module.Branch(gradient.flatten(2), one, score.flatten(2), inverse)
        for gradient, one, score, inverse in zip(gradients, rows, scores, of_rows, strict=True)
    ]
    of_features, of_all_rows = module.backward(features.flatten(2), of_pixels, branches, scale)
    narrowed = [gradient.to(one.dtype) for gradient, one in zip(of_all_rows, rows, strict=True)]
    return [of_features.view(features.shape), *narrowed]


fused_cosine_logits_backward_operator = torch.library.custom_op(
    "cacseg::fused_cosine_logits_backward", mutates_args=()
)(_fused_cosine_logits_backward)


@fused_cosine_logits_backward_operator.register_fake
def _(
    features: Tensor,
    of_pixels: Tensor,
    gradients: list[Tensor],
    rows: list[Tensor],
    scores: list[Tensor],
    of_rows: list[Tensor],
    scale: float,
) -> list[Tensor]:
    return [torch.empty_like(features.flatten(2)).view(features.shape), *(torch.empty_like(one) for one in rows)]


def _setup_cosine(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    features, rows, other_rows, ctx.scale = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(features, rows, other_rows, *output)


def _cosine_backward(run: Any, ctx: Any, of_scores: Any, of_other_scores: Any, *others: Any) -> tuple[Any, ...]:
    features, rows, other_rows, scores, other_scores, of_pixels, of_rows, of_other_rows = ctx.saved_tensors
    branches = [(of_scores, rows, scores, of_rows), (of_other_scores, other_rows, other_scores, of_other_rows)]
    used = [index for index, branch in enumerate(branches) if branch[0] is not None and branch[1] is not None]
    if not used:
        return None, None, None, None
    given = [list(part) for part in zip(*(branches[index] for index in used), strict=True)]
    of_features, *of_used = run(features, of_pixels, *given, ctx.scale)
    of_both: list[Any] = [None, None]
    for index, gradient in zip(used, of_used, strict=True):
        of_both[index] = gradient
    return of_features, *of_both, None


fused_cosine_logits = with_gradient(
    fused_cosine_logits_operator,
    _fused_cosine_logits,
    _setup_cosine,
    _cosine_backward,
    fused_cosine_logits_backward_operator,
    _fused_cosine_logits_backward,
)


def _fused_plain_logits(features: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """Scores [b, n, *spatial] in the dtype of the features."""
    product = kernels("matmul").product
    scores = product(weight[None], features.flatten(2), bias=bias, dtype=features.dtype)
    return scores.view(features.shape[0], weight.shape[0], *features.shape[2:])


fused_plain_logits_operator = torch.library.custom_op("cacseg::fused_plain_logits", mutates_args=())(
    _fused_plain_logits
)


@fused_plain_logits_operator.register_fake
def _(features: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: UP045
    return features.new_empty(features.shape[0], weight.shape[0], *features.shape[2:])


def _fused_plain_logits_backward(gradient: Tensor, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of features and weight."""
    module, flat, gradient = kernels("matmul"), features.flatten(2), gradient.flatten(2)
    of_features = module.product(weight.T[None], gradient, out=torch.empty_like(flat))
    of_weight = module.long_product(gradient, flat.transpose(1, 2)).sum((0, 1))
    return of_features.view(features.shape), of_weight.to(weight.dtype)


fused_plain_logits_backward_operator = torch.library.custom_op("cacseg::fused_plain_logits_backward", mutates_args=())(
    _fused_plain_logits_backward
)


@fused_plain_logits_backward_operator.register_fake
def _(gradient: Tensor, features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(features.flatten(2)).view(features.shape), torch.empty_like(weight)


def _setup_plain(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, weight, bias = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(features, weight)


def _plain_backward(run: Any, ctx: Any, of_scores: Tensor) -> tuple[Any, ...]:
    of_bias = None
    if ctx.bias_dtype is not None:
        of_bias = of_scores.flatten(2).sum((0, 2), dtype=torch.float32).to(ctx.bias_dtype)
    return *run(of_scores, *ctx.saved_tensors), of_bias


fused_plain_logits = with_gradient(
    fused_plain_logits_operator,
    _fused_plain_logits,
    _setup_plain,
    _plain_backward,
    fused_plain_logits_backward_operator,
    _fused_plain_logits_backward,
)
