"""The relations between classes, from the oracle to the context classifier; an idea of SSA-Seg, not of the paper."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cacseg._checks import check_labels, check_logits
from cacseg.functional._precision import ZERO_NORM, no_autocast, ratio, widen
from cacseg.functional.labels import class_masks, fit_labels

# A map of scores counts as constant where its spread is below this share of its size: it would be rounding alone.
FLAT = 1e-4


def relation_distillation(
    context_logits: Float[Tensor, "b n *spatial"],
    oracle_logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
) -> Float[Tensor, ""]:
    """Classes should rise and fall together as they do in the oracle's scores.

        L = mean over the pairs k != l of classes present of (R(p_p)_kl - R(p_y)_kl)^2
        (p_p[:, labelled].corrcoef() - p_y.detach()[:, labelled].corrcoef())[k, l] ** 2

    R is the correlation of two classes' scores over the labelled pixels of an image, 0 where the scores of one are
    constant. The mean is taken within each image, then over the images with at least two classes; 0 without any.
    """
    check_logits(context_logits, oracle_logits)
    if context_logits.ndim < 3:
        raise ValueError(
            "relation_distillation is for dense batches, logits [b, n, *spatial]; got shape "
            f"{tuple(context_logits.shape)}, as of a packed one. Leave the term out (relation_weight=0)."
        )
    num_classes = context_logits.shape[1]
    check_labels(labels, context_logits, num_classes, ignore_index)
    fitted = fit_labels(labels, context_logits.shape[2:], num_classes, ignore_index).flatten(1)
    present = (class_masks(fitted, num_classes, ignore_index=-1) > 0).any(dim=-1)  # [b, n]
    others = ~torch.eye(num_classes, dtype=torch.bool, device=labels.device)
    pairs = present[:, :, None] & present[:, None, :] & others
    with no_autocast(context_logits):
        found, wanted = (correlations(one, fitted >= 0) for one in (context_logits, oracle_logits.detach()))
        squares = torch.where(pairs, (found - wanted).square(), 0.0).sum(dim=(1, 2))
        counts = pairs.sum(dim=(1, 2)).to(squares.dtype)
        return ratio(ratio(squares, counts).sum(), (counts > 0).sum())


def correlations(scores: Float[Tensor, "b n *spatial"], kept: Bool[Tensor, "b l"]) -> Float[Tensor, "b n n"]:
    """Pearson's, of every two classes' scores over the pixels that are kept; 0 where the scores of one are constant."""
    share = ratio(kept.to(widen(scores).dtype), kept.sum(dim=-1, keepdim=True))[:, None]  # [b, 1, l]
    values = torch.where(kept[:, None], widen(scores).flatten(2), 0.0)
    centred = torch.where(kept[:, None], values - (values * share).sum(dim=-1, keepdim=True), 0.0)
    spread = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
    size = torch.linalg.vector_norm(values.detach(), dim=-1, keepdim=True)
    units = ratio(centred, torch.where(spread > (FLAT * size).clamp_min(ZERO_NORM), spread, 0.0))
    return units @ units.transpose(1, 2)
