"""A classifier that adapts to each image, in the place of the last 1x1 convolution of a segmentation model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cacseg import _checks, designs, ops
from cacseg.convolutions import arguments_of, binary_rows, complete_state, copy_values
from cacseg.designs import DesignName, Similarity
from cacseg.functional.labels import LabelSampling, read_mask
from cacseg.functional.prototypes import Scope
from cacseg.outputs import ContextLogits, Features, Labels, Logits, Offsets
from cacseg.presets import DEFAULT, PresetName, fill_preset


class ContextAwareClassifier(nn.Module):
    """Stands where ``nn.Conv2d(in_channels, num_classes, 1)`` stood, and adapts to each image.

    `classifier(features)` returns the context logits (Eq. 6); only what inference needs is computed.
    `classifier(features, labels)` returns `ContextLogits` for `ContextLoss`; the labels may have any resolution.
    `classifier.oracle_logits(features, labels)` returns the paper's upper bound, from ground truth.
    `classifier.plain_logits(features)` returns what the convolution returned.

    Features are `[b, d, *spatial]` with one to three spatial dimensions, or packed (point clouds): `[N, d]` with labels
    `[N]` and `offsets` `[b + 1]`.

    Args:
        in_channels: channels d of the features.
        num_classes: classes n. 1 is binary segmentation: it returns one logit for each pixel, for a sigmoid. Inside,
            and in `ContextLogits`, there are two classes, background and foreground. Labels are 0 and 1, or a mask.
        bias: whether the plain classifier has a bias; the context classifiers have none.
        dropout: channel dropout, applied to the plain branch only.
        scale: tau, the factor on the cosines.
        preset: "tuned" (ours), "released" (the authors' code) or "paper"; the default of every argument that is None.
        oracle_scope: compute oracle prototypes for each "image", or pool them over the "batch" on a device.
        label_sampling: the pixel that a feature takes its label from: the first of its cell ("nearest"), the middle one
            ("centred"), or where upsampling with align_corners puts the feature ("aligned").
        zero_start: initialise the projectors to return 0, so that with a residual design A starts as C.
        plain_similarity: "dot", or "cosine" (scaled by `scale`; needs bias=False).
        context_similarity: "cosine" or "dot", for the context and the oracle classifier.
        context_design, oracle_design: how prototypes and weight become a classifier, a name in
            `cacseg.designs.DESIGNS`; "none" removes that branch.
        prototype_epsilon: added to the denominator of the context prototypes.
        frozen_oracle: do not train the oracle projector (for losses that never reach it).
        ignore_index: the label to ignore.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    context_projector: nn.Sequential | None
    oracle_projector: nn.Sequential | None
    labels_in_proportion = True  # labels of another aspect ratio than the features are refused

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        bias: bool = True,
        dropout: float = 0.0,
        scale: float = 15.0,
        preset: PresetName = DEFAULT,
        *,
        oracle_scope: Scope | None = None,
        label_sampling: LabelSampling | None = None,
        zero_start: bool | None = None,
        plain_similarity: Similarity = "dot",
        context_similarity: Similarity = "cosine",
        context_design: DesignName | None = None,
        oracle_design: DesignName | None = None,
        prototype_epsilon: float | None = None,
        frozen_oracle: bool = False,
        ignore_index: int = 255,
    ) -> None:
        super().__init__()
        _checks.check_sizes(in_channels, num_classes)
        _checks.check_number("dropout", dropout, 0.0, 1.0, scalars=True)
        _checks.check_number("scale", scale, ends="()", scalars=True)
        _checks.check_integer("ignore_index", ignore_index, scalars=True)
        _checks.check_flags(bias=bias, frozen_oracle=frozen_oracle)
        designs.check_similarities(plain_similarity, context_similarity, bias)
        given: dict[str, Any] = {
            "oracle_scope": oracle_scope,
            "label_sampling": label_sampling,
            "zero_start": zero_start,
        }
        given |= {"context_design": context_design, "oracle_design": oracle_design}
        options = fill_preset(preset, **given, prototype_epsilon=prototype_epsilon)
        self.in_channels, self.num_classes, self.dropout, self.scale = in_channels, num_classes, dropout, scale
        self.plain_similarity, self.context_similarity = plain_similarity, context_similarity
        self.preset, self.oracle_scope, self.label_sampling = preset, options.oracle_scope, options.label_sampling
        self.context_design, self.oracle_design = options.context_design, options.oracle_design
        self.prototype_epsilon, self.ignore_index = options.prototype_epsilon, ignore_index
        convolution = nn.Conv2d(in_channels, num_classes, 1, bias=bias)  # for its initial values
        self.weight = nn.Parameter(convolution.weight.detach())
        self.bias = nn.Parameter(convolution.bias.detach()) if convolution.bias is not None else None
        zeros = designs.choose_zero_start(zero_start, options.zero_start, self.context_design, self.oracle_design)
        self.context_projector = designs.make_projector(self.context_design, in_channels, zeros)
        self.oracle_projector = designs.make_projector(self.oracle_design, in_channels, zeros)
        if frozen_oracle and self.oracle_projector is not None:
            self.oracle_projector.requires_grad_(False)

    @classmethod
    def from_conv(cls, conv: nn.Module, **arguments: Any) -> ContextAwareClassifier:
        """A classifier with the weight and bias of a trained 1x1 convolution or linear layer.

        `arguments` are those of the constructor, except in_channels, num_classes and bias.
        """
        classifier = cls(**arguments_of(cls, conv, arguments)).to(next(conv.parameters()))
        copy_values(conv, classifier.weight, classifier.bias)
        return classifier.train(conv.training)

    def forward(
        self, features: Features, labels: Labels | None = None, offsets: Offsets | None = None
    ) -> Logits | ContextLogits:
        """The context logits, or with labels all that the losses need."""
        if labels is None:
            return self.both_logits(features, offsets)[1]
        labels = self._fit_labels(features, offsets, labels)
        plain, context, oracle = self._logits(features, offsets, labels)
        return ContextLogits(context, plain, oracle, labels, offsets, self.ignore_index, self.preset)

    def plain_logits(self, features: Features) -> Logits:
        """p: what the convolution returned, dropout before it included while training."""
        _checks.check_features(features, self.in_channels, packed=features.ndim == 2)
        return self._one_if_binary(self._plain(features))

    def both_logits(self, features: Features, offsets: Offsets | None = None) -> tuple[Logits, Logits]:
        """p, and p_p of Eq. (6); without a context branch the plain logits twice."""
        self._check(features, offsets)
        plain, context, _ = self._logits(features, offsets, None)
        return self._one_if_binary(plain), self._one_if_binary(context)

    def both_weights(self, features: Features, offsets: Offsets | None = None) -> tuple[Tensor, Tensor]:
        """C, [n, d], and A_p of Eq. (5), [b, n, d]; of binary segmentation two rows, background and foreground."""
        self._check(features, offsets)
        own = self._context_classifier(features, offsets, self._plain(features))
        if own is None:
            raise ValueError("the classifier has no context branch, context_design='none': its rows never move.")
        return self._rows()[0], own.expand(len(features) if offsets is None else len(offsets) - 1, -1, -1)

    def oracle_logits(
        self, features: Features, labels: Labels, offsets: Offsets | None = None, scope: Scope = "image"
    ) -> Logits:
        """p_y of Eq. (3), the paper's upper bound; by default with each image's own prototypes, however trained."""
        labels = self._fit_labels(features, offsets, labels)
        known = self._oracle_classifier(features, offsets, labels, scope)
        if known is None:
            raise ValueError("the classifier has no oracle: oracle_design='none', or drop_oracle() was called.")
        return self._one_if_binary(self._similarities(features, offsets, known)[0])

    def drop_oracle(self) -> ContextAwareClassifier:
        """Removes the oracle branch in place, before an export: only training reads it. Returns the classifier."""
        self.oracle_projector, self.oracle_design = None, "none"
        return self

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.num_classes}, bias={self.bias is not None}, preset={self.preset!r}"

    def _check(self, features: Tensor, offsets: Tensor | None) -> None:
        _checks.check_features(features, self.in_channels, packed=offsets is not None)
        if offsets is not None:
            _checks.check_offsets(offsets, features)

    def _fit_labels(self, features: Tensor, offsets: Tensor | None, labels: Tensor) -> Tensor:
        """Labels at the features' size, -1 wherever they take no part."""
        self._check(features, offsets)
        n, ignored, packed = max(2, self.num_classes), self.ignore_index, offsets is not None
        labels = read_mask(labels, features.ndim, ignored) if self.num_classes == 1 else labels
        _checks.check_labels(labels, features, n, ignored, packed=packed, in_proportion=self.labels_in_proportion)
        return ops.fit_labels(labels, features.shape[2:], n, ignored, self.label_sampling)

    def _rows(self) -> tuple[Tensor, Tensor | None]:
        """C, [n, d], and its bias, [n]; of binary segmentation two rows whose difference is the weight."""
        return (self.weight.flatten(1), self.bias) if self.num_classes > 1 else binary_rows(self.weight, self.bias)

    def _one_if_binary(self, logits: Tensor) -> Tensor:
        """The logit for a sigmoid from those of two classes."""
        return logits if self.num_classes > 1 else logits[:, 1:] - logits[:, :1]

    def _logits(
        self, features: Features, offsets: Offsets | None, labels: Labels | None
    ) -> tuple[Logits, Logits, Logits | None]:
        """p, p_p and with labels p_y, of two classes or more; without a context branch p_p is p."""
        fused = self._fused_logits(features, labels) if offsets is None else None
        if fused is not None:
            return fused
        plain = self._plain(features)
        own = self._context_classifier(features, offsets, plain)
        known = None if labels is None else self._oracle_classifier(features, offsets, labels, self.oracle_scope)
        found = iter(self._similarities(features, offsets, *(one for one in (own, known) if one is not None)))
        return plain, plain if own is None else next(found), None if known is None else next(found)

    def _fused_logits(self, features: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """All logits from one operation, for the paper's design where a kernel can run; else None."""
        design, oracle = self.context_design, self.oracle_projector
        found = (self.plain_similarity, self.context_similarity, design in designs.FUSED)
        if found != ("dot", "cosine", True) or (labels is not None and self.oracle_design not in (design, "none")):
            return None
        assert self.context_projector is not None
        return ops.context_aware_logits(
            features,
            *self._rows(),
            designs.projector_weights(self.context_projector),
            None if oracle is None else designs.projector_weights(oracle),
            labels,
            scale=self.scale,
            over_batch=self.oracle_scope == "batch",
            dropout=self.dropout if self.training else 0.0,
            residual=designs.DESIGNS[design].residual,
            prototype_epsilon=self.prototype_epsilon,
        )

    def _plain(self, features: Tensor) -> Tensor:
        weight, bias = self._rows()
        if self.dropout > 0.0 and self.training:
            features = torch.feature_dropout(features, self.dropout, True)
        if self.plain_similarity == "dot":
            return ops.plain_logits(features, weight, bias)
        if features.ndim == 2:  # packed: a fixed classifier needs no offsets, every row is its own image
            return ops.cosine_logits(features[..., None], weight[None], self.scale)[..., 0]
        return ops.cosine_logits(features, weight[None], self.scale)

    def _context_classifier(self, features: Tensor, offsets: Tensor | None, plain: Tensor) -> Tensor | None:
        """A_p of Eq. (5), one classifier for each image; None without a context branch."""
        prototypes = None
        if designs.needs_prototypes(self.context_design):
            prototypes = ops.context_prototypes(features, plain, epsilon=self.prototype_epsilon, offsets=offsets)
        return designs.make_classifier(self.context_design, self.context_projector, prototypes, self._rows()[0])

    def _oracle_classifier(
        self, features: Tensor, offsets: Tensor | None, labels: Tensor, scope: Scope
    ) -> Tensor | None:
        """A_y of Eq. (2), one classifier for each image or for the batch; None without an oracle branch."""
        prototypes, weight = None, self._rows()[0]
        if designs.needs_prototypes(self.oracle_design):
            prototypes = ops.oracle_prototypes(features, labels, weight, scope=scope, ignore_index=-1, offsets=offsets)
        return designs.make_classifier(self.oracle_design, self.oracle_projector, prototypes, weight)

    def _similarities(self, features: Tensor, offsets: Tensor | None, *classifiers: Tensor) -> list[Tensor]:
        """Eqs. (3) and (6): the logits of each classifier."""
        if self.context_similarity == "dot":
            return [ops.dot_logits(features, one, offsets=offsets) for one in classifiers]
        return ops.cosine_logits_of_all(features, classifiers, self.scale, offsets=offsets)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes the state dict of the convolution alone, too."""
        complete_state(state_dict, prefix, self.state_dict(prefix=prefix))
        super()._load_from_state_dict(state_dict, prefix, *rest)
