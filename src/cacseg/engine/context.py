"""A classifier made from more than one pass: from the tiles of an image, or from the frames of a film."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from cacseg import designs, ops
from cacseg.classifier import ContextAwareClassifier
from cacseg.models.model import SegmentationModel


class Pool:
    """The prototypes of Eq. (4), from features that come in parts; quotients are taken in the logarithm."""

    def __init__(self) -> None:
        self.peak: Tensor | None = None  # [n], the largest logarithm of a weighted probability so far
        self.sums = self.counts = torch.zeros(())  # [n, d] and [n], divided by exp(peak)

    def add(self, features: Float[Tensor, "d l"], plain: Float[Tensor, "n l"], weights: Float[Tensor, " l"]) -> None:
        kept = weights > 0.0
        logarithms = (plain.double().log_softmax(0) + weights.double().log())[:, kept]
        if logarithms.shape[1] == 0:
            return
        peak = logarithms.amax(1) if self.peak is None else torch.maximum(self.peak, logarithms.amax(1))
        before = 0.0 if self.peak is None else (self.peak - peak).exp()
        shares = (logarithms - peak[:, None]).exp()
        self.sums = self.sums * _column(before) + shares @ features.double()[:, kept].T
        self.counts = self.counts * before + shares.sum(1)
        self.peak = peak

    def decay(self, factor: float) -> None:
        """Multiplies sums and counts by a factor from 0 to 1."""
        if factor == 0.0:
            self.peak = None
        elif self.peak is not None:
            self.peak = self.peak + math.log(factor)

    def as_arrays(self) -> dict[str, npt.NDArray[np.float64]] | None:
        if self.peak is None:
            return None
        return {"peak": _array(self.peak), "sums": _array(self.sums), "counts": _array(self.counts)}

    def load(self, arrays: Mapping[str, npt.NDArray[np.float64]], device: torch.device) -> None:
        """What `as_arrays` gave."""
        self.peak, self.sums, self.counts = (
            torch.from_numpy(arrays[name]).to(device) for name in ("peak", "sums", "counts")
        )

    def prototypes(self, epsilon: float) -> Float[Tensor, "1 n d"]:
        assert self.peak is not None
        return (self.sums / (self.counts + epsilon * (-self.peak).exp())[:, None])[None].float()


def _array(values: Tensor) -> npt.NDArray[np.float64]:
    return values.cpu().numpy().copy()


def _column(values: Tensor | float) -> Tensor | float:
    return values[:, None] if isinstance(values, Tensor) else values


def classifier_of(pool: Pool, classifier: ContextAwareClassifier) -> Float[Tensor, "1 n d"]:
    """A_p of Eq. (5)."""
    prototypes = pool.prototypes(classifier.prototype_epsilon) if pool.peak is not None else None
    rows = classifier.weight.flatten(1)
    own = designs.make_classifier(classifier.context_design, classifier.context_projector, prototypes, rows)
    assert own is not None
    return own


def logits_of(own: Float[Tensor, "1 n d"], features: Tensor, classifier: ContextAwareClassifier) -> Tensor:
    """p_p of Eq. (6)."""
    if classifier.context_similarity == "dot":
        return ops.dot_logits(features, own)
    return ops.cosine_logits(features, own, classifier.scale)


class CarriedContext:
    """The context logits of frames in their order, whose prototypes are carried over time.

    Eq. (4) of frame t from sums S_t = carry * S_(t-1) + s_t, and counts likewise. Called as `predict_each` calls a
    network; a batch is so many frames, one after another.
    """

    def __init__(self, model: SegmentationModel, carry: float) -> None:
        if not 0.0 <= carry <= 1.0:
            raise ValueError(f"carry must be from 0 (each frame alone) to 1 (nothing is forgotten); got {carry}.")
        classifier = model.classifier
        if not isinstance(classifier, ContextAwareClassifier) or not designs.needs_prototypes(
            classifier.context_design
        ):
            raise ValueError("carry needs a model with a context-aware classifier, made from prototypes.")
        self.model, self.classifier, self.carry, self.pool = model, classifier, carry, Pool()

    @torch.no_grad()
    def __call__(self, images: Tensor, labels: Tensor | None) -> Iterator[Tensor]:
        found = []
        for features in self.model.features(images).split(1):
            plain = self.classifier.plain_logits(features)[0].flatten(1)
            self.pool.decay(self.carry)
            self.pool.add(features[0].flatten(1), plain, plain.new_ones(plain.shape[1]))
            found.append(logits_of(classifier_of(self.pool, self.classifier), features, self.classifier).float())
        logits = torch.cat(found)
        yield logits if self.model.stride is None else self.model.upsample_logits(logits, images.shape[2:])
