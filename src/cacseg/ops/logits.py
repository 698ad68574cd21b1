"""Class scores in the precision the model runs in: one matrix product each, no normalised copy of the features."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_features, check_image_classifiers
from cacseg.functional._precision import AUTOCAST_KINDS, inverse_norm, no_autocast, widen
from cacseg.ops._choice import Implementation, use_triton
from cacseg.ops.fused_logits import fused_cosine_logits, fused_plain_logits

LARGEST_HALF = torch.finfo(torch.float16).max


def compute_dtype(features: Tensor) -> torch.dtype:
    """The precision a convolution would run in here: autocast's where it is on, else that of the features."""
    kind = features.device.type
    autocast = kind in AUTOCAST_KINDS and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if autocast and features.dtype != torch.float64 else features.dtype


def inverse_norms(features: Float[Tensor, "b d *spatial"]) -> Float[Tensor, "b 1 *spatial"]:
    """1 / |f| of every pixel, 0 for a zero vector: computed once, shared by `cosine_logits` of one image."""
    return inverse_norm(features, dim=1)


def plain_logits(
    features: Float[Tensor, "b d *spatial"],
    weight: Float[Tensor, "n d"],
    bias: Float[Tensor, " n"] | None = None,
    *,
    impl: Implementation = "auto",
) -> Float[Tensor, "b n *spatial"]:
    """`functional.plain_logits` in the precision of the model: what `nn.Conv2d(d, n, 1)` returns there.

    In float16 a score beyond the largest number becomes that number: an infinity would turn every softmax
    after it into NaN.
    """
    check_features(features, weight.shape[1], packed=features.ndim == 2)
    dtype = compute_dtype(features)
    with no_autocast(features):
        features = features.to(dtype)
        if use_triton(impl, features, dense=features.ndim > 2):
            return fused_plain_logits(features, weight.to(dtype), bias)
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
    norms: Float[Tensor, "b 1 *spatial"] | None = None,
    impl: Implementation = "auto",
) -> Float[Tensor, "b n *spatial"]:
    """`functional.cosine_logits` in the precision of the model.

    (normalise(A) x f) * tau / |f|: the features enter the product as they are, and each pixel's score is divided by
    its length afterwards, in float32 (float16 needs a normalised copy, outside of the kernels). `norms` are the
    `inverse_norms(features)` if they are known already; the kernels find their own.
    """
    dtype = compute_dtype(features)
    fused = use_triton(impl, features, dense=offsets is None)
    if offsets is not None:
        return functional.cosine_logits(features, classifier, scale, offsets=offsets).to(dtype)
    check_features(features, classifier.shape[-1])
    check_image_classifiers(classifier, features.shape[0])
    with no_autocast(features):
        if fused:
            return fused_cosine_logits(features.to(dtype), classifier, None, scale)[0]
        shares = inverse_norms(features) if norms is None else norms
        rows = widen(classifier) * inverse_norm(classifier, dim=-1)
        if dtype == torch.float16:
            # Before the division a score is as large as |f|, and its gradient as large as 1 / |f|: one or the other
            # leaves the narrow range of float16, so here the features are divided first.
            return scale * _product(rows.to(dtype), (widen(features) * shares).to(dtype))
        scores = _product(rows.to(dtype), features.to(dtype))
        return (scores * (shares * scale)).to(dtype)


def cosine_logits_of_both(
    features: Float[Tensor, "b d *spatial"],
    classifier: Float[Tensor, "#images n d"],
    other: Float[Tensor, "#images n d"],
    scale: float = 15.0,
    *,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
    impl: Implementation = "auto",
) -> tuple[Float[Tensor, "b n *spatial"], Float[Tensor, "b n *spatial"]]:
    """`cosine_logits` of two classifiers: lengths found once, and in the kernels one pair of products backward."""
    if use_triton(impl, features, dense=offsets is None):
        check_features(features, classifier.shape[-1])
        for one in (classifier, other):
            check_image_classifiers(one, features.shape[0])
        with no_autocast(features):
            return fused_cosine_logits(features.to(compute_dtype(features)), classifier, other, scale)[:2]
    norms = inverse_norms(features) if offsets is None else None
    first, second = (
        cosine_logits(features, one, scale, offsets=offsets, norms=norms, impl="torch") for one in (classifier, other)
    )
    return first, second


def _product(rows: Tensor, features: Tensor) -> Tensor:
    """[1 or b, n, d] times [b, d, *spatial] (packed: [1, n, d] times [N, d])."""
    if features.ndim == 2:
        return features @ rows[0].T
    scores = rows @ features.flatten(2)
    return scores.view(features.shape[0], rows.shape[1], *features.shape[2:])
