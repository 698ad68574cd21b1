"""The Triton classifier of the paper's design as an operator: features in, all scores out."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from typing import Any, Optional

import torch
from torch import Tensor

from cacseg.functional._precision import exact_products
from cacseg.ops._choice import kernels
from cacseg.ops._operators import make_operator

SCORES = 2  # without an oracle: plain and context; the rest of the list is for the backward pass


def _forward(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],  # noqa: UP045
    channel_scale: Optional[Tensor],  # noqa: UP045
    context_first: Tensor,
    context_second: Tensor,
    context_bias: Tensor,
    oracle_first: Optional[Tensor],  # noqa: UP045
    oracle_second: Optional[Tensor],  # noqa: UP045
    oracle_bias: Optional[Tensor],  # noqa: UP045
    labels: Optional[Tensor],  # noqa: UP045
    scale: float,
    over_batch: bool,
    residual: bool,
    epsilon: float,
) -> list[Tensor]:
    """Plain, context and (with an oracle's projector and labels) oracle scores [b, n, *spatial], then what is saved.

    labels [b, *spatial], -1 where they take no part; `over_batch` pools the oracle prototypes over the batch.
    """
    module = kernels("classifier")
    projectors = [module.Projector(context_first, context_second, context_bias)]
    if oracle_first is not None and labels is not None:
        projectors.append(module.Projector(oracle_first, oracle_second, oracle_bias))
    # The projectors too: TF32 would switch units near zero on or off, and n rows cost nothing.
    with exact_products(features):
        outputs, saved = module.forward(
            features.flatten(2),
            weight,
            bias,
            channel_scale,
            projectors,
            labels.flatten(1).contiguous() if labels is not None and len(projectors) > 1 else None,
            scale,
            over_batch,
            residual,
            epsilon,
        )
    return [one.view(*one.shape[:2], *features.shape[2:]) for one in outputs] + saved


def _fake(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],  # noqa: UP045
    channel_scale: Optional[Tensor],  # noqa: UP045
    context_first: Tensor,
    context_second: Tensor,
    context_bias: Tensor,
    oracle_first: Optional[Tensor],  # noqa: UP045
    oracle_second: Optional[Tensor],  # noqa: UP045
    oracle_bias: Optional[Tensor],  # noqa: UP045
    labels: Optional[Tensor],  # noqa: UP045
    scale: float,
    over_batch: bool,
    *options: Any,
) -> list[Tensor]:
    (b, d), (n, hidden) = features.shape[:2], (weight.shape[0], context_first.shape[0])
    length = features[0, 0].numel()
    with_oracle = oracle_first is not None and labels is not None
    groups = b + (0 if not with_oracle else 1 if over_batch else b)

    def empty(*shape: int) -> Tensor:
        return features.new_empty(shape, dtype=torch.float32)

    scores = [features.new_empty(b, n, *features.shape[2:]) for _ in range(SCORES + with_oracle)]
    of_rows = [weight.new_empty(groups, n, d), empty(groups, n)]
    of_projectors = [weight.new_empty(groups * n, size) for size in (2 * d, hidden)]
    return [*scores, empty(b, length), empty(b, n), empty(b, length), *of_rows, *of_projectors, empty(groups - b, n)]


def _backward(
    gradients: list[Optional[Tensor]],  # noqa: UP045
    features: Tensor,
    weight: Tensor,
    channel_scale: Optional[Tensor],  # noqa: UP045
    projectors: list[Tensor],
    labels: Optional[Tensor],  # noqa: UP045
    outputs: list[Tensor],
    saved: list[Tensor],
    scale: float,
    with_bias: bool,
    residual: bool,
) -> list[Tensor]:
    """The gradients of features, weight, bias, and of the projectors whose scores have one, in that order."""
    module = kernels("classifier")
    with exact_products(features):
        of_features, *rest = module.backward(
            [None if one is None else one.flatten(2) for one in gradients],
            features.flatten(2),
            weight,
            channel_scale,
            [module.Projector(*projectors[start : start + 3]) for start in range(0, len(projectors), 3)],
            None if labels is None else labels.flatten(1).contiguous(),
            [one.flatten(2) for one in outputs],
            saved,
            scale,
            with_bias,
            residual,
        )
    return [of_features.view(features.shape), *(one.to(weight.dtype) for one in rest)]


def _fake_backward(
    gradients: list[Optional[Tensor]],  # noqa: UP045
    features: Tensor,
    weight: Tensor,
    channel_scale: Optional[Tensor],  # noqa: UP045
    projectors: list[Tensor],
    labels: Optional[Tensor],  # noqa: UP045
    outputs: list[Tensor],
    saved: list[Tensor],
    scale: float,
    with_bias: bool,
    residual: bool,
) -> list[Tensor]:
    used = projectors[:3] if gradients[2] is None else projectors
    of_features = torch.empty_like(features.flatten(2)).view(features.shape)
    of_bias = [weight.new_empty(weight.shape[0])] if with_bias else []
    return [of_features, torch.empty_like(weight), *of_bias, *(torch.empty_like(one) for one in used)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> int:
    features, weight, bias, channel_scale, *projectors, labels, ctx.scale, _, ctx.residual, _ = inputs
    ctx.with_bias = bias is not None
    ctx.with_oracle = projectors[3] is not None and labels is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(features, weight, channel_scale, labels, *projectors[: 6 if ctx.with_oracle else 3], *output)
    return SCORES + ctx.with_oracle


def _gradients(run: Any, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    if len(gradients) == 1 and not isinstance(gradients[0], Tensor):  # the operator's list arrives as one
        gradients = tuple(gradients[0])
    features, weight, channel_scale, labels, *rest = ctx.saved_tensors
    projectors, rest = rest[: 6 if ctx.with_oracle else 3], rest[6 if ctx.with_oracle else 3 :]
    count = SCORES + ctx.with_oracle
    of_plain, of_context, *of_oracle = gradients[:count]
    of_scores = [of_plain, of_context, of_oracle[0] if of_oracle else None]
    if all(one is None for one in of_scores):
        return (None,) * 15
    if of_context is None:
        of_scores[1] = torch.zeros_like(rest[1])
    of_features, of_weight, *others = run(
        of_scores,
        features,
        weight,
        channel_scale,
        projectors,
        labels,
        rest[:count],
        rest[count:],
        ctx.scale,
        ctx.with_bias,
        ctx.residual,
    )
    of_bias = others.pop(0) if ctx.with_bias else None
    return of_features, of_weight, of_bias, None, *others, *[None] * (6 - len(others)), *[None] * 5


fused_classifier = make_operator(
    "fused_classifier", _forward, _fake, _backward, _fake_backward, save=_save, gradients=_gradients
)
