"""The choice of implementation for the distillations."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_choice, check_labels, check_logits
from cacseg.functional._precision import no_autocast
from cacseg.functional.distillation import CLASS_AVERAGES, ClassAverage
from cacseg.functional.prototypes import SCOPES, Scope
from cacseg.ops._choice import Implementation, use_triton
from cacseg.ops.fused_distillation import fused_distillation
from cacseg.ops.labels import labels_for_kernels


def vanilla_distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"] | None = None,
    *,
    scope: Scope = "image",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """`functional.vanilla_distillation`, Eq. (7): every pixel counts alike."""
    if use_triton(impl, context_logits, dense=offsets is None and labels is not None):
        return _fused(context_logits, oracle_logits, labels, ignore_index, soft_target_weight, scope)
    return functional.vanilla_distillation(
        context_logits,
        oracle_logits,
        labels,
        scope=scope,
        soft_target_weight=soft_target_weight,
        ignore_index=ignore_index,
        offsets=offsets,
    )


def entropy_distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"] | None = None,
    *,
    entropy_logits: Float[Tensor, "b n *spatial"] | None = None,
    scope: Scope = "image",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """`functional.entropy_distillation`, Eq. (10): pixels count by their entropy."""
    usual = offsets is None and labels is not None and (entropy_logits is None or entropy_logits is oracle_logits)
    if use_triton(impl, context_logits, dense=usual):
        return _fused(context_logits, oracle_logits, labels, ignore_index, soft_target_weight, scope, by_entropy=True)
    return functional.entropy_distillation(
        context_logits,
        oracle_logits,
        labels,
        entropy_logits=entropy_logits,
        scope=scope,
        soft_target_weight=soft_target_weight,
        ignore_index=ignore_index,
        offsets=offsets,
    )


def classwise_distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    scope: Scope = "image",
    class_average: ClassAverage = "present",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """`functional.classwise_distillation`, Eq. (11) with H = 1: classes count alike."""
    if use_triton(impl, context_logits, dense=offsets is None):
        return _fused(
            context_logits,
            oracle_logits,
            labels,
            ignore_index,
            soft_target_weight,
            scope,
            class_average=class_average,
        )
    return functional.classwise_distillation(
        context_logits,
        oracle_logits,
        labels,
        scope=scope,
        class_average=class_average,
        soft_target_weight=soft_target_weight,
        ignore_index=ignore_index,
        offsets=offsets,
    )


def classwise_entropy_distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    entropy_logits: Float[Tensor, "b n *spatial"] | None = None,
    scope: Scope = "image",
    class_average: ClassAverage = "present",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """`functional.classwise_entropy_distillation`, Eq. (11): classes alike, pixels by their entropy.

    Entropies of another prediction than the oracle's take the readable form, as packed batches do.
    """
    usual = offsets is None and (entropy_logits is None or entropy_logits is oracle_logits)
    if use_triton(impl, context_logits, dense=usual):
        return _fused(
            context_logits,
            oracle_logits,
            labels,
            ignore_index,
            soft_target_weight,
            scope,
            by_entropy=True,
            class_average=class_average,
        )
    return functional.classwise_entropy_distillation(
        context_logits,
        oracle_logits,
        labels,
        entropy_logits=entropy_logits,
        scope=scope,
        class_average=class_average,
        soft_target_weight=soft_target_weight,
        ignore_index=ignore_index,
        offsets=offsets,
    )


def _fused(
    context_logits: Tensor,
    oracle_logits: Tensor,
    labels: Tensor | None,
    ignore_index: int,
    soft_target_weight: float,
    scope: Scope,
    *,
    by_entropy: bool = False,
    class_average: ClassAverage | None = None,
) -> Tensor:
    """One operator for the four forms; a mean within each class first where a `class_average` is given."""
    check_logits(context_logits, oracle_logits)
    check_choice("scope", scope, SCOPES)
    if class_average is not None:
        check_choice("class_average", class_average, CLASS_AVERAGES)
    assert labels is not None
    check_labels(labels, context_logits, context_logits.shape[1], ignore_index)
    fitted = labels_for_kernels(labels, context_logits.shape[2:], context_logits.shape[1], ignore_index)
    with no_autocast(context_logits):
        return fused_distillation(
            context_logits,
            oracle_logits.detach().to(context_logits.dtype),
            fitted,
            soft_target_weight,
            by_entropy,
            class_average is not None,
            scope == "batch",
            class_average == "present",
        )[0]
