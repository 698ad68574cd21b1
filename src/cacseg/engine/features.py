"""What a model makes of single images: features by class, the rows of their classifiers, answers and entropies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cacseg import functional, ops
from cacseg.classifier import ContextAwareClassifier
from cacseg.data.sample import Sample, SegmentationData, read_sample
from cacseg.engine.inference import Inference, Networks, Scale, collate, networks_of, predict_each, view_image
from cacseg.metrics import most_likely
from cacseg.models.model import SegmentationModel

KEPT = 200  # features of a class that are kept of an image
Floats = npt.NDArray[np.float32]


class ImageRows(NamedTuple):
    """An image's features by class, and the rows of its own classifier. Present is a class that labels a feature."""

    place: int  # in the data set
    name: str
    counts: npt.NDArray[np.int64]  # [n], features of each class
    features: dict[int, Floats]  # [at most KEPT, d] of each class present, taken evenly
    rows: Floats  # [n, d]
    moves: Floats  # [n], 1 - cosine of each row to that of the plain classifier


class Answer(NamedTuple):
    """What one output says of each pixel of an image."""

    classes: npt.NDArray[np.uint8]  # [H, W]
    entropy: Floats  # [H, W], of the probabilities, over log n: from 0 (sure) to 1 (uniform)


class ImageAnswers(NamedTuple):
    name: str
    sample: Sample
    answers: dict[str, Answer]  # by output


def adapts(model: SegmentationModel) -> bool:
    """Whether an image has rows of its own."""
    return model.default_output == "context"


def answer_names(model: SegmentationModel) -> list[str]:
    return ["plain", "context"] if adapts(model) else ["plain"]


def row_moves(plain: Float[Tensor, "n d"], own: Float[Tensor, "b n d"]) -> Float[Tensor, "b n"]:
    """How far each image's rows have turned from the plain ones: 1 - cosine."""
    return 1.0 - F.cosine_similarity(own.float(), plain.float(), dim=-1)


def networks_with_moves(
    model: SegmentationModel, told: Callable[[Tensor, Tensor, Tensor | None, Tensor], None]
) -> Networks:
    """`answer_names`, in the form that `predict_each` takes, from one pass over the features.

    Where the model adapts, `told` gets the images of each batch (of windows, if it slides), their features, their
    labels, and how far the rows move, [b, n].
    """
    classifier = model.classifier
    if not isinstance(classifier, ContextAwareClassifier) or not adapts(model):
        return networks_of(model, ["plain"])

    def logits(images: Tensor, labels: Tensor | None) -> Iterator[Tensor]:
        features = model.features(images)
        told(images, features, labels, row_moves(*classifier.both_weights(features)))
        for one in classifier.both_logits(features):
            yield one if model.stride is None else model.upsample_logits(one.float(), images.shape[2:])

    return logits


def labels_of_features(
    model: SegmentationModel, labels: Int[Tensor, "b _ _"], images: Tensor, features: Tensor, ignore_index: int
) -> Int[Tensor, "b h w"]:
    """The label of each feature, as the classifier's losses read it; -1 where ignored."""
    assert isinstance(model.classifier, ContextAwareClassifier)
    known = torch.where(labels == ignore_index, model.ignore_index, labels.long())
    padded = model.pad_labels(known, images, model.stride)
    sampling = model.classifier.label_sampling
    return ops.fit_labels(padded, features.shape[2:], model.num_classes, model.ignore_index, sampling)


@torch.no_grad()
def image_rows(
    model: SegmentationModel,
    data: SegmentationData,
    indices: Sequence[int],
    *,
    scale: Scale | None = None,
    device: torch.device,
) -> Iterator[ImageRows]:
    """Features and rows of some images, each shown whole. The model adapts, is on the device and in evaluation mode."""
    assert isinstance(model.classifier, ContextAwareClassifier)
    for index in indices:
        sample = read_sample(data, index)
        (shown,) = collate([view_image(sample.image, scale, (1.0,))], model, device)
        features = model.features(shown)
        labels = torch.from_numpy(np.ascontiguousarray(sample.labels))[None].to(device)
        found = labels_of_features(model, labels, shown, features, data.ignore_index)[0].flatten()
        plain, own = model.classifier.both_weights(features)
        vectors = features[0].flatten(1).T.float()  # [h w, d]
        counts = torch.bincount(found[found >= 0], minlength=model.num_classes).cpu().numpy()
        kept = {k: vectors[_evenly(found.eq(k))].cpu().numpy() for k in np.flatnonzero(counts).tolist()}
        moves = row_moves(plain, own)[0].cpu().numpy()
        yield ImageRows(index, data.image_name(index), counts, kept, own[0].float().cpu().numpy(), moves)


def plain_rows(model: SegmentationModel) -> Floats:
    """C, [n, d]: what all images share."""
    return model.classifier.weight.detach().flatten(1).float().cpu().numpy()


@torch.no_grad()
def image_answers(
    model: SegmentationModel,
    data: SegmentationData,
    indices: Sequence[int],
    names: Sequence[str],
    *,
    inference: Inference = Inference(),  # noqa: B008 (frozen)
    scale: Scale | None = None,
    device: torch.device,
) -> Iterator[ImageAnswers]:
    """The named outputs of some images, at the images' own size. The model is on the device, in evaluation mode."""
    for index in indices:
        sample = read_sample(data, index)
        shown = collate([view_image(sample.image, scale, inference.ratios)], model, device)
        height, width = sample.labels.shape
        found = predict_each(networks_of(model, names), shown, (height, width), inference)
        answers = {name: _answer(logits) for name, logits in zip(names, found, strict=True)}
        yield ImageAnswers(data.image_name(index), sample, answers)


def _answer(logits: Float[Tensor, "1 n H W"]) -> Answer:
    classes = most_likely(logits[0], 0).to(torch.uint8).cpu().numpy()
    return Answer(classes, (functional.entropy(logits)[0] / math.log(logits.shape[1])).cpu().numpy())


def _evenly(mask: Tensor) -> Tensor:
    """The places where a mask holds, at most KEPT of them, taken evenly."""
    places = mask.nonzero()[:, 0]
    count = min(KEPT, len(places))
    return places[torch.arange(count, device=places.device) * len(places) // count]
