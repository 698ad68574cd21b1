"""The context-aware classifier in the operations that ONNX Runtime computes fastest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg import designs
from cacseg.classifier import ContextAwareClassifier
from cacseg.functional._precision import inverse, inverse_norm
from cacseg.functional.prototypes import class_shares

# The least share of shares that sum to 1: below 1e-38 numbers are subnormal, and a product with them takes 30 times as
# long. Not added: exporters take an addition of so little for one of 0 and leave it out.
TINY = 1e-30


@contextmanager
def for_onnx(model: nn.Module) -> Iterator[None]:
    """Within the block the context-aware classifiers of a model run `onnx_logits`, where it computes what they do."""
    changed = [one for one in model.modules() if isinstance(one, ContextAwareClassifier) and _fits(one)]
    for one in changed:
        one._fused_logits = partial(onnx_logits, one)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for one in changed:
            del one._fused_logits


def _fits(classifier: ContextAwareClassifier) -> bool:
    similarities = (classifier.plain_similarity, classifier.context_similarity)
    return similarities == ("dot", "cosine") and designs.needs_prototypes(classifier.context_design)


def onnx_logits(
    classifier: ContextAwareClassifier, features: Float[Tensor, "b d *spatial"], labels: None = None
) -> tuple[Tensor, Tensor, None] | None:
    """Plain and context logits [b, n, h, w], without labels; None where features are no maps.

    ONNX Runtime keeps maps in blocks of channels. The convolution reads these; for the products features are copied
    out once, channels last, so that products and lengths read memory in order.
    """
    if features.ndim != 4:
        return None
    weight, bias = classifier._rows()
    plain = F.conv2d(features, weight[:, :, None, None], bias)
    pixels, scores = (maps.permute(0, 2, 3, 1).flatten(1, 2) for maps in (features, plain))  # [b, l, d] and [b, l, n]
    log_probability = scores.log_softmax(-1).transpose(1, 2)
    shares = class_shares(log_probability, classifier.prototype_epsilon).clamp_min(TINY)
    prototypes = torch.bmm(shares, pixels)
    own = designs.make_classifier(classifier.context_design, classifier.context_projector, prototypes, weight)
    assert own is not None
    rows = own * (inverse_norm(own, dim=2) * classifier.scale)
    context = torch.bmm(rows, pixels.transpose(1, 2)) * inverse(_lengths(pixels))
    return plain, context.view_as(plain), None


def _lengths(pixels: Float[Tensor, "b l d"]) -> Float[Tensor, "b 1 l"]:
    """|f| from products of each pixel with itself: they read features once, and use vector instructions."""
    each = pixels.flatten(0, 1)[:, None]  # [b*l, 1, d]
    return torch.bmm(each, each.transpose(1, 2)).view(pixels.shape[0], 1, -1).sqrt()
