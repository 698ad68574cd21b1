"""The choice of implementation for the class prototypes."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_choice, check_features, check_labels
from cacseg.functional._precision import no_autocast
from cacseg.functional.prototypes import SCOPES, Scope
from cacseg.ops._choice import Implementation, use_triton
from cacseg.ops.fused_prototypes import fused_context_prototypes, fused_label_sums
from cacseg.ops.labels import labels_for_kernels


def oracle_prototypes(
    features: Float[Tensor, "b d *spatial"],
    labels: Int[Tensor, "b *full"],
    weight: Float[Tensor, "n d"],
    *,
    scope: Scope = "image",
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "images n d"]:
    """`functional.oracle_prototypes`, Eq. (1); the kernel multiplies with masks that it makes from the labels."""
    if not use_triton(impl, features, dense=offsets is None):
        return functional.oracle_prototypes(
            features, labels, weight, scope=scope, ignore_index=ignore_index, offsets=offsets
        )
    check_choice("scope", scope, SCOPES)
    check_features(features, weight.shape[1])
    check_labels(labels, features, weight.shape[0], ignore_index)
    labels = labels_for_kernels(labels, features.shape[2:], weight.shape[0], ignore_index)
    with no_autocast(features):
        sums, counts = fused_label_sums(features, labels, weight.shape[0])
        if scope == "batch":
            sums, counts = sums.sum(dim=0, keepdim=True), counts.sum(dim=0, keepdim=True)
        counts = counts[..., None]
        return torch.where(counts > 0, sums / counts.clamp_min(1.0), weight.detach().to(sums.dtype))


def context_prototypes(
    features: Float[Tensor, "b d *spatial"],
    plain_logits: Float[Tensor, "b n *spatial"],
    *,
    confidence_threshold: float = 0.0,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "images n d"]:
    """`functional.context_prototypes`, Eq. (4); the kernels read the features once and store no probabilities.

    A `confidence_threshold` takes the readable form.
    """
    dense = offsets is None and confidence_threshold == 0.0 and features.dtype == plain_logits.dtype
    if not use_triton(impl, features, dense=dense) or plain_logits.shape[2:] != features.shape[2:]:
        return functional.context_prototypes(
            features, plain_logits, confidence_threshold=confidence_threshold, offsets=offsets
        )
    check_features(features)
    with no_autocast(features):
        return fused_context_prototypes(features, plain_logits)[0]
