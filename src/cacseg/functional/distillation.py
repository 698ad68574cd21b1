"""From the oracle to the context classifier: Eqs. (7), (9), (10), (11) and class-wise without entropy.

All four forms are one weighted mean of one cost. The cost of a pixel is the cross-entropy of the context
prediction against the oracle's; the forms differ in each pixel's weight (1, or the entropy of the
oracle's prediction) and in whether the mean is taken over all pixels or within each class first.
The oracle gives targets and weights only: no gradient reaches it from here.

With `offsets` the tensors are packed: logits `[N, n]`, labels `[N]` (`cacseg.functional.packed`).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg._checks import check_choice, check_labels, check_logits, check_offsets
from cacseg.functional._precision import no_autocast, ratio, widen
from cacseg.functional.labels import class_masks, fit_labels
from cacseg.functional.packed import image_of_row
from cacseg.functional.prototypes import SCOPES, Scope

DistillationForm = Literal["classwise_entropy", "classwise", "entropy", "vanilla"]
DISTILLATION_FORMS = ("classwise_entropy", "classwise", "entropy", "vanilla")


def entropy(logits: Float[Tensor, "b n *spatial"]) -> Float[Tensor, "b *spatial"]:
    """Entropy of each pixel's prediction in nats, H; Eq. (9).

    H_i = -sum_j softmax(p_y)_ij log softmax(p_y)_ij
    -(p.softmax(1) * p.log_softmax(1)).sum(1)
    """
    with no_autocast(logits):
        log_probability = widen(logits).log_softmax(dim=1)
        return -(log_probability.exp() * log_probability).sum(dim=1)


def soft_cross_entropy(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *spatial"] | None = None,
    soft_target_weight: float = 1.0,
) -> Float[Tensor, "b *spatial"]:
    """Cross-entropy of each pixel's context prediction against the oracle's; the summand of Eq. (7).

        -sum_j softmax(p_y)_ij log softmax(p_p)_ij
        -(p_y.softmax(1) * p_p.log_softmax(1)).sum(1)

    `soft_target_weight` s mixes the label in: the target is s softmax(p_y) + (1 - s) one_hot(y). The
    paper has s = 1, the authors' code 0.5. Needs `labels` at the size of the logits when s < 1; a label
    outside [0, n) has no one-hot part.
    """
    check_logits(context_logits, oracle_logits)
    with no_autocast(context_logits):
        target = widen(oracle_logits).detach().softmax(dim=1)
        if soft_target_weight != 1.0:
            if labels is None:
                raise ValueError(f"soft_target_weight = {soft_target_weight} mixes the labels in: pass them.")
            masks = class_masks(labels, context_logits.shape[1], ignore_index=-1, dtype=target.dtype)
            target = soft_target_weight * target + (1.0 - soft_target_weight) * masks
        return -(target * widen(context_logits).log_softmax(dim=1)).sum(dim=1)


def distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    form: DistillationForm = "classwise_entropy",
    *,
    entropy_logits: Float[Tensor, "b n *spatial"] | None = None,
    scope: Scope = "image",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, ""]:
    """The mean of `soft_cross_entropy`, c, over the labelled pixels; L_KL in the form of that name.

        "vanilla"             Eq. (7)             c.mean()
        "entropy"             Eq. (10)            (H * c).sum() / H.sum()
        "classwise"           Eq. (11), H = 1     mean over the classes k present of c[labels == k].mean()
        "classwise_entropy"   Eq. (11)            ... of (H * c)[labels == k].sum() / H[labels == k].sum()

    H is `entropy(p_y)` without gradient; `entropy_logits` takes it from another prediction (the ablation's 'Est.' p_p
    and 'Ori.' p). A class without a pixel is 0/0 in Eq. (11) and left out. `scope="image"` is the paper: each image's
    mean, then the mean over images, 0 for one without labels; `"batch"` takes the pixels of the batch together, as the
    authors' code does.
    """
    check_choice("form", form, DISTILLATION_FORMS)
    check_choice("scope", scope, SCOPES)
    check_logits(context_logits, oracle_logits)
    num_classes = context_logits.shape[1]
    check_labels(labels, context_logits, num_classes, ignore_index, packed=offsets is not None)
    labels = fit_labels(labels, context_logits.shape[2:], num_classes, ignore_index)
    cost = soft_cross_entropy(context_logits, oracle_logits, labels, soft_target_weight)
    weight = torch.ones_like(cost)
    if form.endswith("entropy"):
        source = oracle_logits if entropy_logits is None else entropy_logits
        check_logits(context_logits, source)
        weight = entropy(source.detach())
    sums = _sum_by_class(cost, weight, labels, num_classes, offsets)
    return _average_classes(sums, scope) if form.startswith("classwise") else _average_pixels(sums, scope)


def _sum_by_class(
    cost: Float[Tensor, "b *spatial"],
    weight: Float[Tensor, "b *spatial"],
    labels: Int[Tensor, "b *spatial"],
    num_classes: int,
    offsets: Int[Tensor, " b_plus_1"] | None,
) -> Float[Tensor, "3 images n"]:
    """Sums of weight * cost, of weight and of 1 over the labelled pixels of each image and class."""
    masks = class_masks(labels, num_classes, ignore_index=-1, dtype=cost.dtype)
    terms = torch.stack([weight * cost, weight, torch.ones_like(cost)])  # [3, b, *spatial]
    with no_autocast(cost):
        if offsets is None:
            return torch.einsum("bnl,tbl->tbn", masks.flatten(2), terms.flatten(2))
        check_offsets(offsets, cost)
        sums = terms.new_zeros(3, offsets.shape[0] - 1, num_classes)
        return sums.index_add(1, image_of_row(offsets, cost.shape[0]), terms[..., None] * masks)


def _average_pixels(sums: Float[Tensor, "3 images n"], scope: Scope) -> Float[Tensor, ""]:
    """The weighted mean over the pixels of each image, then over the images; or of the batch."""
    numerator, denominator, _ = sums.sum(dim=-1) if scope == "image" else sums.sum(dim=(1, 2))
    return ratio(numerator, denominator).mean()


def _average_classes(sums: Float[Tensor, "3 images n"], scope: Scope) -> Float[Tensor, ""]:
    """The weighted mean within each class, then over the classes that are present, then over the images."""
    numerator, denominator, count = sums if scope == "image" else sums.sum(dim=1, keepdim=True)
    present = (count > 0).sum(dim=-1).to(sums.dtype)
    return ratio(ratio(numerator, denominator).sum(dim=-1), present).mean()
