"""Distillation and overlap: the readable forms, or one operation for either or both where kernels can run."""

# No `from __future__ import annotations` here: torch reads the operator's annotations as objects.

from typing import Any, Optional

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_choice, check_labels, check_logits
from cacseg.functional.distillation import DISTILLATION_FORMS, DistillationForm
from cacseg.functional.labels import LabelSampling
from cacseg.functional.prototypes import SCOPES, Scope
from cacseg.ops._choice import Implementation, kernels, make_operator, use_triton
from cacseg.ops.labels import labels_for_kernels


def overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    label_sampling: LabelSampling = "centred",
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """Soft Jaccard loss: 1 - soft intersection over union of the probabilities q and the labels M.

        L = mean over the classes k present of 1 - (sum_i M_ki q_ki) / (sum_i M_ki + sum_i (1 - M_ki) q_ki)

    `functional.overlap_loss`; the kernels keep two numbers of each pixel for the backward pass instead of all
    probabilities, and are differentiable once. For maps of any number of dimensions, and for points [P, n].

    Args:
        logits: before softmax, of two classes or more.
        labels: classes in [0, n); of another size than the logits, they are resized to it.
        ignore_index: the label that takes no part.
        label_sampling: which pixel gives a logit its label: "centred" for logits that are upsampled with
            align_corners=False, "aligned" with True, "nearest" for the first pixel of each cell.
        impl: "auto", "torch" or "triton".
    """
    if not use_triton(impl, logits):
        return functional.overlap_loss(logits, labels, ignore_index=ignore_index, label_sampling=label_sampling)
    check_logits(logits)
    check_labels(labels, logits, logits.shape[1], ignore_index, packed=logits.ndim == 2)
    fitted = labels_for_kernels(labels, logits.shape[2:], logits.shape[1], ignore_index, label_sampling)
    return fused_pixel_losses(logits, None, fitted, 0.0, False, False, False, True)[1]


def pixel_losses(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"] | None,
    labels: Int[Tensor, "b *spatial"],
    form: DistillationForm = "classwise_entropy",
    *,
    overlap: bool = True,
    entropy_logits: Float[Tensor, "b n *spatial"] | None = None,
    scope: Scope = "image",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> dict[str, Float[Tensor, ""]]:
    """By name: `functional.distillation`, if there are oracle logits, and with `overlap` that of the context logits.

    Both from the same passes over the pixels where kernels run and the labels have the size of the logits. Entropies of
    another prediction than the oracle's take the readable form, as packed batches do.
    """
    losses: dict[str, Tensor] = {}
    if oracle_logits is not None:
        foreign = form.endswith("entropy") and entropy_logits is not None and entropy_logits is not oracle_logits
        if use_triton(impl, context_logits, dense=offsets is None and not foreign):
            check_choice("form", form, DISTILLATION_FORMS)
            check_choice("scope", scope, SCOPES)
            check_logits(context_logits, oracle_logits)
            size, n = context_logits.shape[2:], context_logits.shape[1]
            check_labels(labels, context_logits, n, ignore_index)
            both = overlap and labels.shape[1:] == size
            oracle = oracle_logits.detach().to(context_logits.dtype)
            fitted = labels_for_kernels(labels, size, n, ignore_index)
            kind = (form.endswith("entropy"), form.startswith("classwise"), scope == "batch")
            found = fused_pixel_losses(context_logits, oracle, fitted, soft_target_weight, *kind, both)
            losses["distillation"] = found[0]
            if both:
                return {**losses, "overlap": found[1]}
        else:
            losses["distillation"] = functional.distillation(
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
    if overlap:
        losses["overlap"] = overlap_loss(context_logits, labels, ignore_index=ignore_index, impl=impl)
    return losses


def _forward(
    logits: Tensor,
    oracle: Optional[Tensor],  # noqa: UP045
    fitted: Tensor,
    soft_target_weight: float,
    by_entropy: bool,
    by_class: bool,
    over_batch: bool,
    overlap: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distillation (0 without an oracle), overlap (or 0), the coefficients of their gradient and values of each pixel.

    Logits [b, n, *spatial] and labels [b, *spatial], or points [P, n] and [P]; labels are -1 where they take no part.
    """
    options = (soft_target_weight, by_entropy, by_class, over_batch, overlap)
    return kernels("pixel_losses").forward(*_inputs(logits, oracle, fitted), *options)


def _fake(logits: Tensor, oracle: Any, *others: Any) -> tuple[Tensor, ...]:
    b, n, length = _as_maps(logits).shape
    shapes = ((), (), (b + 2, n), (2 if oracle is None else 4, b, length))
    return tuple(logits.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _backward(
    of_distillation: Optional[Tensor],  # noqa: UP045
    of_overlap: Optional[Tensor],  # noqa: UP045
    logits: Tensor,
    oracle: Optional[Tensor],  # noqa: UP045
    fitted: Tensor,
    coefficients: Tensor,
    values: Tensor,
    soft_target_weight: float,
) -> Tensor:
    """The gradient of the logits, from those losses that have one."""
    found = (*_inputs(logits, oracle, fitted), coefficients, values, soft_target_weight)
    return _like(kernels("pixel_losses").backward(of_distillation, of_overlap, *found), logits)


def _fake_backward(of_distillation: Any, of_overlap: Any, logits: Tensor, *others: Any) -> Tensor:
    return _like(torch.empty_like(_as_maps(logits)), logits)


def _as_maps(logits: Tensor) -> Tensor:
    """[b, n, L]; points are the places of one image."""
    return logits.T[None] if logits.ndim == 2 else logits.flatten(2)


def _like(maps: Tensor, logits: Tensor) -> Tensor:
    """What `_as_maps` was made of."""
    return maps[0].T if logits.ndim == 2 else maps.view(logits.shape)


def _inputs(logits: Tensor, oracle: Tensor | None, fitted: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """As the kernels read them: maps [b, n, L] and labels [b, L]."""
    rows = fitted[None] if fitted.ndim == 1 else fitted.flatten(1)
    return _as_maps(logits), None if oracle is None else _as_maps(oracle), rows.contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> int:
    ctx.soft_target_weight, ctx.overlap = inputs[3], inputs[7]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output[2:])
    return 2


def _gradients(run: Any, ctx: Any, of_distillation: Any, of_overlap: Any, *others: Any) -> tuple[Any, ...]:
    logits, oracle, *rest = ctx.saved_tensors
    of_distillation, of_overlap = of_distillation if oracle is not None else None, of_overlap if ctx.overlap else None
    if of_distillation is None and of_overlap is None:
        return (None,) * 8
    of_logits = run(of_distillation, of_overlap, logits, oracle, *rest, ctx.soft_target_weight)
    return of_logits, *[None] * 7


fused_pixel_losses = make_operator(
    "fused_pixel_losses", _forward, _fake, _backward, _fake_backward, save=_save, gradients=_gradients
)
