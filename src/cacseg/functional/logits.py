"""From features and a classifier to class scores: Eqs. (3) and (6), and the dot products beside them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg._checks import check_features, check_image_classifiers, check_offsets
from cacseg.functional import packed
from cacseg.functional._precision import inverse_norm, no_autocast, widen


def plain_logits(
    features: Float[Tensor, "b d *spatial"],
    weight: Float[Tensor, "n d"],
    bias: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "b n *spatial"]:
    """Scores of the fixed classifier, p: a 1x1 convolution over any number of spatial dimensions.

    p = f x C^T + bias
    F.conv2d(f, C[:, :, None, None], bias)   (packed [N, d]: F.linear(f, C, bias))
    """
    check_features(features, weight.shape[1], packed=features.ndim == 2)
    with no_autocast(features):
        scores = torch.einsum("nd,bd...->bn...", widen(weight), widen(features))
        return scores if bias is None else scores + bias.view(-1, *[1] * (features.ndim - 2))


def dot_logits(
    features: Float[Tensor, "b d *spatial"],
    classifier: Float[Tensor, "#images n d"],
    *,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, "b n *spatial"]:
    """Dot product of features with a classifier of each image's own ('Context (Dot)' in the ablations).

    f x A^T
    einsum("bnd,bd...->bn...", A, f)
    """
    check_features(features, classifier.shape[-1], packed=offsets is not None)
    check_image_classifiers(classifier, features.shape[0] if offsets is None else offsets.shape[0] - 1)
    if offsets is not None:
        check_offsets(offsets, features)
        return packed.dot_logits(features, classifier, offsets)
    with no_autocast(features):
        rows = widen(classifier).expand(features.shape[0], -1, -1)
        return torch.einsum("bnd,bd...->bn...", rows, widen(features))


def cosine_logits(
    features: Float[Tensor, "b d *spatial"],
    classifier: Float[Tensor, "#images n d"],
    scale: float = 15.0,
    *,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, "b n *spatial"]:
    """Scaled cosine between features and a classifier of each image's own; Eq. (3) p_y, Eq. (6) p_p.

        p_y = tau * normalise(f) x normalise(A_y)^T,   p_p the same with A_p
        scale * einsum("bnd,bd...->bn...", F.normalize(A, dim=-1), F.normalize(f, dim=1))

    A zero vector (of a length up to 1e-12) has cosine 0 with everything, and gradient 0.
    """
    check_features(features, classifier.shape[-1], packed=offsets is not None)
    with no_autocast(features):
        directions = widen(features) * inverse_norm(features, dim=1)
        rows = widen(classifier) * inverse_norm(classifier, dim=-1)
        return scale * dot_logits(directions, rows, offsets=offsets)


def mean_logits(
    first: Float[Tensor, "b n *spatial"], second: Float[Tensor, "b n *spatial"]
) -> Float[Tensor, "b n *spatial"]:
    """The logarithm of the mean of both probabilities: scores whose softmax is that mean.

    log((softmax(p) + softmax(p_p)) / 2)
    """
    with no_autocast(first):
        both = torch.logaddexp(widen(first).log_softmax(1), widen(second).log_softmax(1))
        return both - math.log(2.0)
