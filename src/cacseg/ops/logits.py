"""Class scores in the precision the model runs in: one matrix product each, no normalised copy of the features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_features, check_image_classifiers
from cacseg.functional._precision import AUTOCAST_KINDS, inverse_norm, no_autocast, widen

LARGEST_HALF = torch.finfo(torch.float16).max


def compute_dtype(features: Tensor) -> torch.dtype:
    """The precision a convolution would run in here: autocast's where it is on, else that of the features."""
    kind = features.device.type
    autocast = kind in AUTOCAST_KINDS and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if autocast and features.dtype != torch.float64 else features.dtype


def plain_logits(
    features: Float[Tensor, "b d *spatial"],
    weight: Float[Tensor, "n d"],
    bias: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, "b n *spatial"]:
    """`functional.plain_logits` in the precision of the model: what `nn.Conv2d(d, n, 1)` returns there.

    In float16 a score beyond the largest number becomes that number: an infinity would turn every softmax
    after it into NaN.
    """
    check_features(features, weight.shape[1], packed=features.ndim == 2)
    dtype = compute_dtype(features)
    with no_autocast(features):
        features = features.to(dtype)
        scores = _product(weight.to(dtype)[None], features)
        if bias is not None:
            scores = scores + bias.to(dtype).view(-1, *[1] * (features.ndim - 2))
        return scores.clamp(-LARGEST_HALF, LARGEST_HALF) if dtype == torch.float16 else scores


def dot_logits(
    features: Float[Tensor, "b d *spatial"],
    classifier: Float[Tensor, "#images n d"],
    *,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, "b n *spatial"]:
    """`functional.dot_logits` in the precision of the model; float16 saturates as in `plain_logits`."""
    dtype = compute_dtype(features)
    if offsets is not None:
        return functional.dot_logits(features, classifier, offsets=offsets).to(dtype)
    check_features(features, classifier.shape[-1])
    check_image_classifiers(classifier, features.shape[0])
    with no_autocast(features):
        scores = _product(classifier.to(dtype), features.to(dtype))
        return scores.clamp(-LARGEST_HALF, LARGEST_HALF) if dtype == torch.float16 else scores


def cosine_logits(
    features: Float[Tensor, "b d *spatial"],
    classifier: Float[Tensor, "#images n d"],
    scale: float = 15.0,
    *,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    inverse_norms: Float[Tensor, "b 1 *spatial"] | None = None,
) -> Float[Tensor, "b n *spatial"]:
    """`functional.cosine_logits` in the precision of the model.

    (normalise(A) x f) * tau / |f|: the features enter the product as they are, and each pixel's score is divided by
    its length afterwards, in float32 (float16 needs a normalised copy). `inverse_norms` are 1 / |f|, where known.
    """
    dtype = compute_dtype(features)
    if offsets is not None:
        return functional.cosine_logits(features, classifier, scale, offsets=offsets).to(dtype)
    check_features(features, classifier.shape[-1])
    check_image_classifiers(classifier, features.shape[0])
    with no_autocast(features):
        shares = inverse_norm(features, dim=1) if inverse_norms is None else inverse_norms
        rows = widen(classifier) * inverse_norm(classifier, dim=-1)
        if dtype == torch.float16:
            # Before the division a score is as large as |f|, and its gradient as large as 1 / |f|: one or the other
            # leaves the narrow range of float16, so here the features are divided first.
            return scale * _product(rows.to(dtype), (widen(features) * shares).to(dtype))
        scores = _product(rows.to(dtype), features.to(dtype))
        return (scores * (shares * scale)).to(dtype)


def cosine_logits_of_all(
    features: Float[Tensor, "b d *spatial"],
    classifiers: Sequence[Float[Tensor, "#images n d"]],
    scale: float = 15.0,
    *,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> list[Float[Tensor, "b n *spatial"]]:
    """`cosine_logits` of several classifiers; the lengths of the features are found once."""
    norms = inverse_norm(features, dim=1) if offsets is None else None
    return [cosine_logits(features, one, scale, offsets=offsets, inverse_norms=norms) for one in classifiers]


def _product(rows: Tensor, features: Tensor) -> Tensor:
    """[1 or b, n, d] times [b, d, *spatial] (packed: [1, n, d] times [N, d])."""
    if features.ndim == 2:
        return features @ rows[0].T
    if torch.compiler.is_compiling():  # broadcasting in @ asks whether there is one image; exporters keep the answer
        scores = torch.bmm(rows.expand(features.shape[0], -1, -1), features.flatten(2))
    else:
        scores = rows @ features.flatten(2)
    return scores.view(features.shape[0], rows.shape[1], *features.shape[2:])
