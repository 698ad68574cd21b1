"""The distillations: the readable form, or one operation where kernels can run."""

# No `from __future__ import annotations` here: torch reads the operator's annotations as objects.

from typing import Any, Optional

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_choice, check_labels, check_logits
from cacseg.functional._precision import no_autocast
from cacseg.functional.distillation import DISTILLATION_FORMS, DistillationForm
from cacseg.functional.prototypes import SCOPES, Scope
from cacseg.ops._choice import Implementation, kernels, use_triton
from cacseg.ops._operators import make_operator
from cacseg.ops.labels import labels_for_kernels


def distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    form: DistillationForm = "classwise_entropy",
    *,
    entropy_logits: Optional[Float[Tensor, "b n *spatial"]] = None,  # noqa: UP045
    scope: Scope = "image",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Optional[Int[Tensor, " b_plus_1"]] = None,  # noqa: UP045
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """`functional.distillation`, Eqs. (7), (10) and (11) by name.

    Entropies of another prediction than the oracle's take the readable form, as packed batches do.
    """
    own_entropy = entropy_logits is None or entropy_logits is oracle_logits or not form.endswith("entropy")
    if not use_triton(impl, context_logits, dense=offsets is None and own_entropy):
        return functional.distillation(
            context_logits,
            oracle_logits,
            labels,
            form,
            entropy_logits=entropy_logits,
            scope=scope,
            soft_target_weight=soft_target_weight,
            ignore_index=ignore_index,
            offsets=offsets,
        )
    check_choice("form", form, DISTILLATION_FORMS)
    check_choice("scope", scope, SCOPES)
    check_logits(context_logits, oracle_logits)
    check_labels(labels, context_logits, context_logits.shape[1], ignore_index)
    fitted = labels_for_kernels(labels, context_logits.shape[2:], context_logits.shape[1], ignore_index)
    with no_autocast(context_logits):
        return fused_distillation(
            context_logits,
            oracle_logits.detach().to(context_logits.dtype),
            fitted,
            soft_target_weight,
            form.endswith("entropy"),
            form.startswith("classwise"),
            scope == "batch",
        )[0]


def _forward(
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    soft_target_weight: float,
    by_entropy: bool,
    by_class: bool,
    over_batch: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, the coefficients of its gradient [b, n], and four values of each pixel [4, b, L].

    Logits are [b, n, *spatial], labels [b, *spatial] with -1 where they take no part.
    """
    flat = context.flatten(2), oracle.flatten(2), labels.flatten(1).contiguous()
    return kernels("distillation").forward(*flat, soft_target_weight, by_entropy, by_class, over_batch)


def _fake(context: Tensor, *others: Any) -> tuple[Tensor, ...]:
    b, n = context.shape[:2]
    shapes = ((), (b, n), (4, b, context[0, 0].numel()))
    return tuple(context.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _backward(
    of_loss: Tensor,
    context: Tensor,
    oracle: Tensor,
    labels: Tensor,
    coefficients: Tensor,
    values: Tensor,
    soft_target_weight: float,
    by_entropy: bool,
) -> Tensor:
    """The gradient of the context logits."""
    flat = context.flatten(2), oracle.flatten(2), labels.flatten(1).contiguous()
    of_context = kernels("distillation").backward(of_loss, *flat, coefficients, values, soft_target_weight, by_entropy)
    return of_context.view(context.shape)


def _fake_backward(of_loss: Tensor, context: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(context.flatten(2)).view(context.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.options = inputs[3:5]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output[1:])


def _gradients(run: Any, ctx: Any, of_loss: Any, *others: Any) -> tuple[Any, ...]:
    of_context = None if of_loss is None else run(of_loss, *ctx.saved_tensors, *ctx.options)
    return of_context, *[None] * 6


fused_distillation = make_operator(
    "fused_distillation", _forward, _fake, _backward, _fake_backward, save=_save, gradients=_gradients
)
