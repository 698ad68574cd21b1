"""A whole segmentation model: backbone, head, classifier, and for training an auxiliary head."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg import functional, ops
from cacseg._checks import check_labels, check_proportions
from cacseg.classifier import ContextAwareClassifier
from cacseg.functional.cross_entropy import PixelAverage
from cacseg.functional.labels import resize_labels
from cacseg.losses import ContextLoss
from cacseg.models.backbones import Backbone
from cacseg.models.files import describe, write_tensors
from cacseg.models.heads import FCN, OCRNet
from cacseg.models.hub import HubModel
from cacseg.models.layers import crop, crop_to_stride, resize
from cacseg.presets import DEFAULT, fill_preset


class PlainClassifier(nn.Conv2d):
    """The 1x1 convolution that a context-aware classifier replaces, with the dropout before it."""

    def __init__(self, in_channels: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__(in_channels, num_classes, 1)
        self.dropout = dropout

    def forward(self, features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b n h w"]:
        return self.without_dropout(F.dropout2d(features, self.dropout, self.training))

    def without_dropout(self, features: Float[Tensor, "b d h w"]) -> Float[Tensor, "b n h w"]:
        return super().forward(features)


class AuxiliaryHead(nn.Module):
    """Plain logits from within the network: a second loss while training, and OCRNet's soft regions."""

    def __init__(self, head: FCN, classifier: PlainClassifier) -> None:
        super().__init__()
        self.head = head
        self.classifier = classifier

    def forward(self, pyramid: Sequence[Tensor]) -> Float[Tensor, "b n h w"]:
        return self.classifier(self.head(pyramid))


class SegmentationModel(nn.Module, HubModel):
    """`model(images)` gives logits at the images' size; `model.loss(images, labels)` the named training losses.

    Images are [b, c, H, W] of any size, normalised with `mean` and `std` by the caller. Labels are [b, H, W].

    Args:
        backbone: maps images to a pyramid of features.
        head: maps the pyramid to the classifier's features (`OCRNet` also takes the auxiliary logits).
        classifier: a `ContextAwareClassifier`, or a `PlainClassifier` as the baseline.
        auxiliary: a head whose cross-entropy, times `auxiliary_weight`, is added to the total.
        criterion: the losses of a context-aware classifier.
        mean, std: what images must be normalised with, for pixels in [0, 1], or for `bands` in their own units.
        auxiliary_average: average that cross-entropy over "labelled" pixels, or over "all"; by default as the preset of
            the classifier says, "labelled" with a plain one.
        stride, auxiliary_stride: pixels from one feature, and from one of the auxiliary's logits, to the next, where
            the backbone gives maps of padded images (`crops_padding=False`); None where maps end with the image.
        ignore_index, class_weights, label_smoothing: for the plain and the auxiliary cross-entropy; the criterion has
            its own.
        overlap_weight: the weight of `ops.overlap_loss` with a plain classifier; the criterion has its own.
        bands: how many bands images have, in the units of their files; None for 8-bit colours or channels of your own.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module,
        classifier: ContextAwareClassifier | PlainClassifier,
        auxiliary: AuxiliaryHead | None = None,
        criterion: ContextLoss | None = None,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        auxiliary_weight: float = 0.4,
        auxiliary_average: PixelAverage | None = None,
        stride: int | None = None,
        auxiliary_stride: int | None = None,
        ignore_index: int = 255,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        overlap_weight: float = 0.0,
        bands: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(head, OCRNet) and auxiliary is None:
            raise ValueError("OCRNet's first stage is the auxiliary head; got auxiliary=None. Leave it in.")
        if isinstance(classifier, ContextAwareClassifier) and criterion is None:
            raise ValueError("a context-aware classifier needs a criterion; got None. Pass cacseg.ContextLoss().")
        if not backbone.crops_padding and (stride is None or (auxiliary is not None and auxiliary_stride is None)):
            raise ValueError("a backbone that leaves its maps padded needs stride and auxiliary_stride; got None.")
        self.backbone, self.head, self.classifier = backbone, head, classifier
        self.auxiliary, self.criterion = auxiliary, criterion
        self.mean, self.std, self.bands = tuple(mean), tuple(std), bands
        self.auxiliary_weight = auxiliary_weight
        preset = classifier.preset if isinstance(classifier, ContextAwareClassifier) else DEFAULT
        self.auxiliary_average = fill_preset(preset, auxiliary_average=auxiliary_average).auxiliary_average
        self.stride, self.auxiliary_stride = stride, auxiliary_stride
        self.ignore_index, self.label_smoothing, self.overlap_weight = ignore_index, label_smoothing, overlap_weight
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)
        self.num_classes: int = classifier.weight.shape[0]
        self.arguments: dict[str, Any] = {}  # of create_model, to build the same model again
        self.class_names: Sequence[str] | None = None
        self.palette: Sequence[Sequence[int]] | None = None  # red, green, blue of each class, 0 to 255
        self.source: Path | None = None  # the file it was loaded from

    @property
    def default_output(self) -> str:
        """Which of its `all_logits` the model gives when it is simply called."""
        adapts = isinstance(self.classifier, ContextAwareClassifier) and self.classifier.context_design != "none"
        return "context" if adapts else "plain"

    def features(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b d h w"]:
        """The features that the classifier reads."""
        return self._decode(images, with_auxiliary=False)[0]

    def forward(
        self, images: Float[Tensor, "b c H W"], labels: Int[Tensor, "b H W"] | None = None
    ) -> Tensor | dict[str, Tensor]:
        """The logits of the classifier, of the image's own one where it is context-aware.

        With labels it is `loss`, for wrappers that see nothing but calls of the model: `DDP(model)(images, labels)`.
        """
        if labels is not None:
            return self.loss(images, labels)
        return self.upsample_logits(self.classifier(self.features(images)), images.shape[2:])

    def upsample_logits(self, logits: Float[Tensor, "b n h w"], size: Sequence[int]) -> Float[Tensor, "b n H W"]:
        """Logits of the features' size at that of their images."""
        if self.stride is None:
            return resize(logits, size)
        whole = [side * self.stride for side in logits.shape[2:]]
        return crop(resize(logits, whole), size)

    def plain(self, images: Float[Tensor, "b c H W"]) -> Float[Tensor, "b n H W"]:
        """The logits of the fixed classifier."""
        classifier = self.classifier
        logits = classifier.plain_logits if isinstance(classifier, ContextAwareClassifier) else classifier
        return self.upsample_logits(logits(self.features(images)), images.shape[2:])

    def oracle(self, images: Float[Tensor, "b c H W"], labels: Int[Tensor, "b H W"]) -> Float[Tensor, "b n H W"]:
        """The logits of the oracle, a classifier made from the labels: the paper's upper bound."""
        if not isinstance(self.classifier, ContextAwareClassifier):
            raise ValueError("a plain classifier has no oracle logits. Create the model with classifier='context'.")
        labels = self.pad_labels(labels, images, self.stride)
        return self.upsample_logits(self.classifier.oracle_logits(self.features(images), labels), images.shape[2:])

    def all_logits(
        self, images: Float[Tensor, "b c H W"], labels: Int[Tensor, "b _ _"] | None = None
    ) -> dict[str, Float[Tensor, "b n h w"]]:
        """The logits of every classifier that the model has, from one pass, at the size of the features.

        "plain"; with a context-aware classifier also "context" and "mean", the mean of both probabilities; with labels
        (of any resolution) also "oracle", from each image's own prototypes. `default_output` names what the model
        returns; `upsample_logits` brings logits to the size of the images.
        """
        features = self.features(images)
        classifier = self.classifier
        if not isinstance(classifier, ContextAwareClassifier):
            return {"plain": classifier(features)}
        plain, context = classifier.both_logits(features)
        found = {"plain": plain}
        if classifier.context_design != "none":
            found |= {"context": context, "mean": functional.mean_logits(plain, context)}
        if labels is not None and classifier.oracle_design != "none":
            found["oracle"] = classifier.oracle_logits(features, self.pad_labels(labels, images, self.stride))
        return found

    def loss(self, images: Float[Tensor, "b c H W"], labels: Int[Tensor, "b H W"]) -> dict[str, Float[Tensor, ""]]:
        """The named terms, before their weights, and "total", their weighted sum."""
        features, auxiliary = self._decode(images, with_auxiliary=True)
        padded = self.pad_labels(labels, images, self.stride)
        if isinstance(self.classifier, ContextAwareClassifier):
            assert self.criterion is not None
            losses = self.criterion(self.classifier(features, padded), padded)
            total = losses.pop("total")
        else:
            check_labels(padded, features, self.num_classes, self.ignore_index)
            logits = self.classifier(features)
            total = self._cross_entropy(logits, padded)
            losses = {"plain": total}
            if self.overlap_weight > 0.0:  # of the logits before dropout
                if self.training and self.classifier.dropout > 0.0:
                    logits = self.classifier.without_dropout(features)
                losses["overlap"] = ops.overlap_loss(logits, padded, ignore_index=self.ignore_index)
                total = total + self.overlap_weight * losses["overlap"]
        if auxiliary is not None:
            padded = self.pad_labels(labels, images, self.auxiliary_stride)
            losses["auxiliary"] = self._cross_entropy(auxiliary, padded, self.auxiliary_average)
            total = total + self.auxiliary_weight * losses["auxiliary"]
        return {**losses, "total": total}

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """One safetensors file with weights and description, written whole or not at all: `cacseg.load(path)`."""
        write_tensors(path, self.state_dict(), self.describe(), overwrite=overwrite)

    def describe(self) -> dict[str, str]:
        """What a saved model says of itself, as JSON: arguments, class names, palette."""
        arguments = dict(self.arguments)
        if arguments:  # what may have been changed since the model was created
            arguments |= {"mean": self.mean, "std": self.std, "auxiliary_weight": self.auxiliary_weight}
        return describe(arguments, self.class_names, self.palette)

    def predict(self, images: Any, **options: Any) -> Any:
        """The `Result` of an image (a path, a PIL image, an array, a tensor), or the results of a list of images.

        `options` are those of `cacseg.Predictor`; keep one for many calls. The model moves to its device.
        """
        import cacseg

        return cacseg.Predictor(self, **options)(images)

    def synchronise_batch_norm(self) -> SegmentationModel:
        """Synchronises batch normalisation over all devices, in place, for distributed training.

        torch's own conversion would drop the activations that timm fuses into some of its normalisations.
        """
        timm.layers.norm_act.convert_sync_batchnorm(self)
        return self

    def _decode(self, images: Tensor, *, with_auxiliary: bool) -> tuple[Tensor, Tensor | None]:
        self._check(images)
        pyramid = self.backbone(images)
        if isinstance(self.head, OCRNet):  # its first stage belongs to inference too
            assert self.auxiliary is not None
            auxiliary: Tensor | None = self.auxiliary(pyramid)
            features = self.head(pyramid, auxiliary)
        else:
            auxiliary = self.auxiliary(pyramid) if with_auxiliary and self.auxiliary is not None else None
            features = self.head(pyramid)
        size = images.shape[2:]
        if auxiliary is not None and self.auxiliary_stride is not None:
            auxiliary = crop_to_stride(auxiliary, size, self.auxiliary_stride)
        return features if self.stride is None else crop_to_stride(features, size, self.stride), auxiliary

    def pad_labels(self, labels: Tensor, images: Tensor, stride: int | None) -> Tensor:
        """Labels of all pixels that a grid of that stride stands for, ignored after the end of the image.

        As where crops are padded, these pixels count in averages over all pixels.
        """
        if not isinstance(labels, Tensor) or labels.ndim != 3 or labels.is_floating_point() or labels.numel() == 0:
            return labels  # the checks of the classifier say what is wrong
        check_proportions("labels", labels.shape[1:], "images", images.shape[2:])
        if stride is None:
            return labels
        if labels.shape[1:] != images.shape[2:]:
            labels = resize_labels(labels, images.shape[2:])
        below, right = (-side % stride for side in labels.shape[1:])
        if below == right == 0:
            return labels
        return F.pad(labels.long(), (0, right, 0, below), value=self.ignore_index)

    def _cross_entropy(self, logits: Tensor, labels: Tensor, average: PixelAverage = "labelled") -> Tensor:
        return ops.upsampled_cross_entropy(
            logits,
            labels,
            ignore_index=self.ignore_index,
            weight=self.class_weights,
            label_smoothing=self.label_smoothing,
            average=average,
        )

    def _check(self, images: Tensor) -> None:
        if not isinstance(images, Tensor):
            raise TypeError(f"images must be a torch.Tensor; got {type(images).__name__}.")
        if not images.is_floating_point():
            must = "floating point, normalised with model.mean and model.std"
            raise TypeError(f"images must be {must}; got {images.dtype}.")
        channels, shape = len(self.mean), tuple(images.shape)
        if images.ndim != 4 or images.shape[1] != channels:
            hint = " Add the batch dimension: images[None]." if images.ndim == 3 else ""
            raise ValueError(f"images must be [b, {channels}, H, W]; got shape {shape}.{hint}")
        if images.numel() == 0:
            raise ValueError(f"a batch must have at least 1 image of at least 1 pixel; got shape {shape}.")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards, when no other thread is in here with it, each module is in the mode it was in."""
    with _modes_lock:
        training = [module for module in model.modules() if module.training]
        for module in training:
            module.training = False
        users, trained = _modes.get(id(model), (0, []))
        _modes[id(model)] = users + 1, trained + training
    try:
        yield
    finally:
        with _modes_lock:
            users, trained = _modes.pop(id(model))
            if users > 1:
                _modes[id(model)] = users - 1, trained
            else:
                for module in trained:
                    module.training = True


_modes: dict[int, tuple[int, list[nn.Module]]] = {}  # of models in `evaluating`: how often, and what was in training
_modes_lock = threading.Lock()
