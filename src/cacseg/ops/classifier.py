"""The whole classifier of the paper's design as one operator, where kernels can run: features in, all scores out."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from collections.abc import Sequence
from typing import Any, Optional

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg.functional._precision import exact_products, no_autocast
from cacseg.ops._choice import Implementation, kernels, make_operator, use_triton
from cacseg.ops.logits import compute_dtype

# [first weight, second weight, second bias] of theta
ProjectorWeights = Sequence[Tensor]


def context_aware_logits(
    features: Float[Tensor, "b d *spatial"],
    weight: Float[Tensor, "n d"],
    bias: Float[Tensor, " n"] | None,
    context_projector: ProjectorWeights,
    oracle_projector: ProjectorWeights | None = None,
    labels: Int[Tensor, "b *spatial"] | None = None,
    *,
    scale: float = 15.0,
    over_batch: bool = False,
    dropout: float = 0.0,
    residual: bool = False,
    prototype_epsilon: float = 0.0,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Plain, context and oracle logits at once: Eqs. (1) to (6) with A = theta([P, C]). None where no kernel can run.

    The same numbers as `plain_logits`, `context_prototypes`, `oracle_prototypes`, theta and `cosine_logits` one after
    the other, with a third of the launches and one gradient of the features. Labels have the features' size, -1 where
    they take no part; without labels or an oracle projector there are no oracle logits. `dropout` drops channels on
    the way to the plain logits. With `residual` A = theta([P, C]) + C. `prototype_epsilon` is that of
    `functional.context_prototypes`.
    """
    if not use_triton(impl, features):
        return None
    dtype = compute_dtype(features)
    channel_scale = None
    if dropout > 0.0:  # the same draws as dropping channels of the features themselves
        ones = torch.ones(*features.shape[:2], 1, dtype=torch.float32, device=features.device)
        channel_scale = torch.feature_dropout(ones, dropout, True)[..., 0]
    with no_autocast(features):
        of_oracle = (None,) * 4 if labels is None or oracle_projector is None else (*oracle_projector, labels)
        options = (scale, over_batch, residual, prototype_epsilon)
        plain, context, *rest = fused_classifier(
            features.to(dtype), weight, bias, channel_scale, *context_projector, *of_oracle, *options
        )
    return plain, context, rest[0] if of_oracle[0] is not None else None


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
    module, places = kernels("classifier"), None
    projectors = [module.Projector(context_first, context_second, context_bias)]
    if oracle_first is not None and labels is not None:
        projectors.append(module.Projector(oracle_first, oracle_second, oracle_bias))
        places = labels.flatten(1).contiguous()
    # The projectors too: TF32 would switch units near zero on or off, and n rows cost nothing.
    with exact_products(features):
        pixels, options = features.flatten(2), (scale, over_batch, residual, epsilon)
        outputs, saved = module.forward(pixels, weight, bias, channel_scale, projectors, places, *options)
    return [one.view(*one.shape[:2], *features.shape[2:]) for one in outputs] + saved


def _fake(features: Tensor, weight: Tensor, *others: Any) -> list[Tensor]:
    _, _, context_first, _, _, oracle_first, _, _, labels, _, over_batch, _, _ = others
    (b, d), (n, hidden) = features.shape[:2], (weight.shape[0], context_first.shape[0])
    length = features[0, 0].numel()
    with_oracle = oracle_first is not None and labels is not None
    groups = b + (0 if not with_oracle else 1 if over_batch else b)

    def empty(*shape: int) -> Tensor:
        return features.new_empty(shape, dtype=torch.float32)

    scores = [features.new_empty(b, n, *features.shape[2:]) for _ in range(2 + with_oracle)]  # plain, context, oracle
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
    of_scores = [None if one is None else one.flatten(2) for one in gradients]
    pairs = [module.Projector(*projectors[start : start + 3]) for start in range(0, len(projectors), 3)]
    places, scores = None if labels is None else labels.flatten(1).contiguous(), [one.flatten(2) for one in outputs]
    with exact_products(features):
        given = (features.flatten(2), weight, channel_scale, pairs, places, scores, saved)
        of_features, *rest = module.backward(of_scores, *given, scale, with_bias, residual)
    return [of_features.view(features.shape), *(one.to(weight.dtype) for one in rest)]


def _fake_backward(gradients: Any, features: Tensor, weight: Tensor, _: Any, projectors: Any, *others: Any) -> Any:
    with_bias = others[-2]
    used = projectors[:3] if gradients[2] is None else projectors
    of_features = torch.empty_like(features.flatten(2)).view(features.shape)
    of_bias = [weight.new_empty(weight.shape[0])] if with_bias else []
    return [of_features, torch.empty_like(weight), *of_bias, *(torch.empty_like(one) for one in used)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> int:
    features, weight, bias, channel_scale, *projectors, labels, ctx.scale, _, ctx.residual, _ = inputs
    ctx.with_bias = bias is not None
    ctx.branches = 2 if projectors[3] is not None and labels is not None else 1
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(features, weight, channel_scale, labels, *projectors[: 3 * ctx.branches], *output)
    return 1 + ctx.branches


def _gradients(run: Any, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    if len(gradients) == 1 and not isinstance(gradients[0], Tensor):  # the operator's list arrives as one
        gradients = tuple(gradients[0])
    features, weight, channel_scale, labels, *rest = ctx.saved_tensors
    projectors, saved = rest[: 3 * ctx.branches], rest[3 * ctx.branches :]
    outputs, saved = saved[: 1 + ctx.branches], saved[1 + ctx.branches :]
    of_scores = [*gradients[: len(outputs)], None][:3]  # of plain, context and oracle
    if all(one is None for one in of_scores):
        return (None,) * 15
    if of_scores[1] is None:
        of_scores[1] = torch.zeros_like(outputs[1])
    tensors = (features, weight, channel_scale, projectors, labels, outputs, saved)
    of_features, of_weight, *others = run(of_scores, *tensors, ctx.scale, ctx.with_bias, ctx.residual)
    of_bias = others.pop(0) if ctx.with_bias else None
    return of_features, of_weight, of_bias, None, *others, *[None] * (6 - len(others)), *[None] * 5


fused_classifier = make_operator(
    "fused_classifier", _forward, _fake, _backward, _fake_backward, save=_save, gradients=_gradients
)
