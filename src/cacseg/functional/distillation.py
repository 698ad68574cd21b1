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

ClassAverage = Literal["present", "all"]
CLASS_AVERAGES = ("present", "all")


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


def vanilla_distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"] | None = None,
    *,
    scope: Scope = "image",
    soft_target_weight: float = 1.0,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, ""]:
    """Every pixel counts alike; Eq. (7).

        L = -1/(hw) sum_i sum_j softmax(p_y)_ij log softmax(p_p)_ij
        F.cross_entropy(p_p, p_y.detach().softmax(1))

    With `labels`, ignored pixels are left out. `scope="image"`: the mean over the images of each image's
    mean (an image without any labelled pixel counts 0); `"batch"`: all pixels together.
    """
    fitted = _fit_labels(labels, context_logits, ignore_index, offsets)
    targets = None if labels is None else fitted
    cost = soft_cross_entropy(context_logits, oracle_logits, targets, soft_target_weight)
    sums = _sum_by_class(cost, torch.ones_like(cost), fitted, context_logits.shape[1], offsets)
    return _average_pixels(sums, scope)


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
) -> Float[Tensor, ""]:
    """Every pixel counts by the entropy of the oracle's prediction there; Eq. (10).

        L = -1/(sum_i H_i) sum_i H_i sum_j softmax(p_y)_ij log softmax(p_p)_ij
        (H * cost).sum() / H.sum()   with H = entropy(p_y).detach()

    `entropy_logits` takes H from another prediction (the ablation's 'Est.' p_p and 'Ori.' p).
    """
    fitted = _fit_labels(labels, context_logits, ignore_index, offsets)
    targets = None if labels is None else fitted
    cost = soft_cross_entropy(context_logits, oracle_logits, targets, soft_target_weight)
    weight = _entropy_weight(context_logits, oracle_logits if entropy_logits is None else entropy_logits)
    sums = _sum_by_class(cost, weight, fitted, context_logits.shape[1], offsets)
    return _average_pixels(sums, scope)


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
) -> Float[Tensor, ""]:
    """Every class counts alike, and every pixel within its class: Eq. (11) with H = 1.

    L = -1/n sum_k (sum_i M_ki sum_j softmax(p_y)_ij log softmax(p_p)_ij) / (sum_i M_ki)
    mean over the classes k that are present of cost[labels == k].mean()
    """
    labels = _fit_labels(labels, context_logits, ignore_index, offsets)
    cost = soft_cross_entropy(context_logits, oracle_logits, labels, soft_target_weight)
    sums = _sum_by_class(cost, torch.ones_like(cost), labels, context_logits.shape[1], offsets)
    return _average_classes(sums, scope, class_average)


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
) -> Float[Tensor, ""]:
    """Every class counts alike, and each pixel by its entropy within its class; Eq. (11).

        L = -1/n sum_k (sum_i M_ki H_i sum_j softmax(p_y)_ij log softmax(p_p)_ij) / (sum_i M_ki H_i)
        mean over the classes k that are present of (H * cost)[labels == k].sum() / H[labels == k].sum()

    An absent class is 0/0 in the formula. `class_average="present"` leaves it out of the mean,
    `"all"` divides by n. `scope="image"` is the paper: each image's mean, then the mean over images;
    `"batch"` takes the pixels of the batch together, as the authors' code does.
    """
    labels = _fit_labels(labels, context_logits, ignore_index, offsets)
    cost = soft_cross_entropy(context_logits, oracle_logits, labels, soft_target_weight)
    weight = _entropy_weight(context_logits, oracle_logits if entropy_logits is None else entropy_logits)
    sums = _sum_by_class(cost, weight, labels, context_logits.shape[1], offsets)
    return _average_classes(sums, scope, class_average)


def _fit_labels(labels: Tensor | None, logits: Tensor, ignore_index: int, offsets: Tensor | None) -> Tensor:
    """Labels at the size of the logits, -1 where ignored; without labels, every pixel takes part (as class 0)."""
    check_logits(logits)
    if labels is None:
        return torch.zeros_like(logits[:, 0], dtype=torch.long)
    check_labels(labels, logits, logits.shape[1], ignore_index, packed=offsets is not None)
    return fit_labels(labels, logits.shape[2:], logits.shape[1], ignore_index)


def _entropy_weight(context_logits: Tensor, source: Tensor) -> Tensor:
    """What weighs the pixels: the entropy of a prediction, without gradient."""
    check_logits(context_logits, source)
    return entropy(source.detach())


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
    check_choice("scope", scope, SCOPES)
    numerator, denominator, _ = sums.sum(dim=-1) if scope == "image" else sums.sum(dim=(1, 2))
    return ratio(numerator, denominator).mean()


def _average_classes(sums: Float[Tensor, "3 images n"], scope: Scope, class_average: ClassAverage) -> Float[Tensor, ""]:
    """The weighted mean within each class, then over the classes, then over the images."""
    check_choice("scope", scope, SCOPES)
    check_choice("class_average", class_average, CLASS_AVERAGES)
    numerator, denominator, count = sums if scope == "image" else sums.sum(dim=1, keepdim=True)
    present = (count > 0).sum(dim=-1).to(sums.dtype)
    classes = present if class_average == "present" else torch.full_like(present, count.shape[-1])
    return ratio(ratio(numerator, denominator).sum(dim=-1), classes).mean()
