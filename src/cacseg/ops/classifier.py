"""The whole classifier of the paper's design in one operation, where kernels can run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg.functional._precision import no_autocast
from cacseg.ops._choice import Implementation, use_triton
from cacseg.ops.fused_classifier import fused_classifier
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
    if labels is None:
        oracle_projector = None
    with no_autocast(features):
        plain, context, *rest = fused_classifier(
            features.to(dtype),
            weight,
            bias,
            channel_scale,
            *context_projector,
            *(oracle_projector if oracle_projector is not None else (None, None, None)),
            labels if oracle_projector is not None else None,
            scale,
            over_batch,
            residual,
            prototype_epsilon,
        )
    return plain, context, rest[0] if oracle_projector is not None else None
