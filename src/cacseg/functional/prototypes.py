"""Class prototypes of an image: Eq. (1) from its labels, Eq. (4) from its plain prediction."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg._checks import check_choice, check_features, check_labels, check_offsets
from cacseg.functional import packed
from cacseg.functional._precision import no_autocast, widen
from cacseg.functional.labels import class_masks, fit_labels

Scope = Literal["image", "batch"]
SCOPES = ("image", "batch")


def oracle_prototypes(
    features: Float[Tensor, "b d *spatial"],
    labels: Int[Tensor, "b *full"],
    weight: Float[Tensor, "n d"],
    *,
    scope: Scope = "image",
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, "images n d"]:
    """Mean feature of the pixels that carry each label, C_y; Eq. (1).

        C_y = (y_* x f) / sum_j y_*(., j)
        einsum("bnl,bdl->bnd", one_hot(y), f) / one_hot(y).sum(-1)[..., None]

    Labels of another size are resized (nearest) first. A class that no pixel carries has no mean: it
    takes its row of `weight`, without gradient. `scope="batch"` pools all images together, one [1, n, d]
    for the batch, as the authors' code does; `"image"` is the paper.
    """
    check_choice("scope", scope, SCOPES)
    check_features(features, weight.shape[1], packed=offsets is not None)
    check_labels(labels, features, weight.shape[0], ignore_index, packed=offsets is not None)
    if offsets is not None:
        check_offsets(offsets, features)
        return packed.oracle_prototypes(
            features, labels, weight, offsets, pool_batch=scope == "batch", ignore_index=ignore_index
        )
    labels = fit_labels(labels, features.shape[2:], weight.shape[0], ignore_index)
    with no_autocast(features):
        values = widen(features).flatten(2)
        masks = class_masks(labels, weight.shape[0], -1, values.dtype).flatten(2)
        sums = torch.einsum("bnl,bdl->bnd", masks, values)
        counts = masks.sum(dim=-1, keepdim=True)
        if scope == "batch":
            sums, counts = sums.sum(dim=0, keepdim=True), counts.sum(dim=0, keepdim=True)
        absent = weight.detach().to(sums.dtype)
        return torch.where(counts > 0, sums / counts.clamp_min(1.0), absent)


def context_prototypes(
    features: Float[Tensor, "b d *spatial"],
    plain_logits: Float[Tensor, "b n *spatial"],
    *,
    epsilon: float = 0.0,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, "images n d"]:
    """Mean feature weighted by the plain prediction's probability of each class, C_p; Eq. (4).

        C_p = (softmax(p)^T x f) / (sum_j softmax(p)^T(., j) + epsilon)
        einsum("bnl,bdl->bnd", p.softmax(1), f) / (p.softmax(1).sum(-1)[..., None] + epsilon)

    `epsilon` is 0 in the paper: a class whose probability underflows everywhere still gets a mean, because the quotient
    is taken in the logarithm. The authors' code has 1e-12, by which such a class gets a prototype of 0.
    """
    check_features(features, packed=offsets is not None)
    if epsilon < 0.0:
        raise ValueError(f"epsilon must not be negative; got {epsilon}.")
    if plain_logits.shape[0] != features.shape[0] or plain_logits.shape[2:] != features.shape[2:]:
        raise ValueError(
            "plain_logits must have the batch and spatial sizes of the features; got logits "
            f"{tuple(plain_logits.shape)} and features {tuple(features.shape)}."
        )
    if offsets is not None:
        check_offsets(offsets, features)
        return packed.context_prototypes(features, plain_logits, offsets, epsilon=epsilon)
    with no_autocast(features):
        values = widen(features).flatten(2)
        share = pixel_shares(plain_logits, epsilon).flatten(2)
        return torch.einsum("bnl,bdl->bnd", share.to(values.dtype), values)


def pixel_shares(plain_logits: Float[Tensor, "b n *spatial"], epsilon: float = 0.0) -> Float[Tensor, "b n *spatial"]:
    """softmax(p) / (sum_j softmax(p)(., j) + epsilon) of Eq. (4): what part of a class's prototype each pixel is."""
    log_probability = widen(plain_logits).flatten(2).log_softmax(dim=1)
    return class_shares(log_probability, epsilon).view(plain_logits.shape)


def class_shares(log_probability: Float[Tensor, "b n l"], epsilon: float = 0.0) -> Float[Tensor, "b n l"]:
    """`pixel_shares` from the logarithm of softmax(p)."""
    if epsilon == 0.0:
        return log_probability.softmax(dim=-1)
    total = log_probability.logsumexp(dim=-1, keepdim=True)
    total = torch.logaddexp(total, torch.full_like(total, epsilon).log())
    return (log_probability - total).exp()
