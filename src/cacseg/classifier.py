"""A classifier that adapts to each image, in the place of the last 1x1 convolution of a segmentation model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cacseg import functional, ops
from cacseg._checks import (
    check_choice,
    check_confidence,
    check_context_drop,
    check_dropout,
    check_features,
    check_flags,
    check_gradient_ratio,
    check_integer,
    check_labels,
    check_number,
    check_offsets,
    check_pooling,
    check_share,
    check_sizes,
)
from cacseg.convolutions import arguments_of, complete_state, copy_values
from cacseg.designs import (
    DESIGNS,
    DesignName,
    Fact,
    Head,
    context_facts,
    finish,
    generate,
    leave_some,
    make_projectors,
    oracle_facts,
    weights_of,
)
from cacseg.functional.labels import LABEL_SAMPLINGS, LabelSampling
from cacseg.functional.prototypes import SCOPES, Scope
from cacseg.presence import Presence, PresenceHead, make_presence_head
from cacseg.presets import DEFAULT, PresetName, fill, get_preset
from cacseg.scales import AnnealedScale, make_annealed_scale

Similarity = Literal["dot", "cosine"]
SIMILARITIES = ("dot", "cosine")
Answer = Literal["context", "plain", "mean"]
ANSWERS = ("context", "plain", "mean")
FUSED_DESIGNS = ("project_concat", "project_concat_residual")  # that one operation can compute, where a kernel can run


class ContextLogits(NamedTuple):
    """What a classifier returns when it is given labels: all that `ContextLoss` needs."""

    context: Float[Tensor, "b n *spatial"]  # p_p, the answer at inference
    plain: Float[Tensor, "b n *spatial"]  # p, of the fixed classifier
    oracle: Float[Tensor, "b n *spatial"] | None  # p_y, from the labels; None with oracle_design="none"
    labels: Int[Tensor, "b *spatial"]  # at the size of the features, -1 where they take no part
    offsets: Int[Tensor, " b_plus_1"] | None = None  # of a packed batch
    ignore_index: int = 255  # of the full labels
    taught: Float[Tensor, "b n *spatial"] | None = None  # context, for a distillation with a gradient of its own
    presence: Float[Tensor, "images n"] | None = None  # of the classes in each image; `context` is without it
    usual_odds: Float[Tensor, " n"] | None = None  # of the classes in any image, where `presence` is beside them


class ContextAwareClassifier(nn.Module):
    """Stands where ``nn.Conv2d(in_channels, num_classes, 1)`` stood, and adapts to each image.

    `classifier(features)` returns the context logits (Eq. 6), or another `answer`; only what inference needs is
    computed.
    `classifier(features, labels)` returns `ContextLogits` for `ContextLoss`; the labels may have any resolution.
    `classifier.oracle_logits(features, labels)` returns the paper's upper bound, from ground truth.
    `classifier.plain_logits(features)` returns what the convolution returned.

    Features are `[b, d, *spatial]` with one, two or three spatial dimensions. A ragged batch (point clouds) is
    packed: features `[N, d]`, labels `[N]`, and `offsets` `[b + 1]`.

    Args:
        in_channels: channels d of the features.
        num_classes: classes n, at least 2.
        bias: whether the plain classifier has a bias; the context classifiers have none unless an option gives one.
        dropout: probability of dropping a channel (a value, when packed) on the way to the plain logits, while
            training; prototypes and cosines see the features before dropout.
        scale: tau, the factor of the cosines.
        preset: "tuned", "centred" (ours), "released" (the authors' code) or "paper"; fills in what is left None (see
            `cacseg.presets`).
        oracle_scope: oracle prototypes of each "image", or pooled over the "batch" on a device.
        plain_similarity: "dot", or "cosine" (scaled by `scale`; needs bias=False).
        context_similarity: "cosine" or "dot", of the context and the oracle classifier.
        context_design, oracle_design: how prototypes and weight become a classifier, a name in `DESIGNS`.
            "none" leaves the branch out; without a context branch the answer is the plain logits.
        frozen_oracle: the oracle projector keeps its initial values (for losses that never train it).
        confidence_threshold: pixels whose largest probability is below it, of those that pool them, stay out of the
            context prototypes.
        rounds: how often context prototypes are pooled: by the plain probabilities, then by the answer they gave.
        detach_plain: no gradient from the context prototypes into the plain logits.
        detach_prototypes: context prototypes are constants: no gradient through them into the features, nor (as with
            `detach_plain`) into the plain logits. Those of the oracle keep theirs.
        detach_weight: no gradient from the context and the oracle classifier into the plain weight and bias that they
            are made with; it still comes through the plain logits, unless `detach_plain` says otherwise.
        feature_gradient: the share of the context branch's gradient that reaches the features, 0 to 1.
        oracle_gradient: the same for the oracle branch; None takes `feature_gradient`.
        distillation_gradient: of the context branch's, the share of the distillation's that reaches the features.
        label_sampling: which pixel of its cell gives a feature its label: the first ("nearest"), or the one where
            upsampling has the feature without ("centred") or with align_corners ("aligned").
        gradient_ratio: what both branches send into the features together is made at most so many times as long as what
            the plain logits send; None leaves it as it is.
        zero_start: projectors start by giving 0, so that with a residual design A starts as C.
        context_drop: while training, the probability that an image's context classifier is C alone.
        presence: the context classifier gets a bias, the logarithm of how probable it is that the image has the class
            at all: told by one linear layer from mean and largest value of each channel. It learns from the labels,
            at the features' size. "relative": a class loses only what the image makes it less probable than usual, so
            that a layer that has learnt nothing says nothing. True is not for short training.
        presence_gradient: how many times the gradient of that layer's loss reaches the features; 0 leaves them alone.
            `feature_gradient` and `gradient_ratio` are of the other branches.
        reads: what else the projectors read of an image: the "share" of it that a class takes, the mean feature of
            the "scene", the mean "place" of a class. They then also give each class a bias ("place": a map of it).
        context_bias: the plain bias joins the context and the oracle logits too.
        learnable_scale: the factor of the context and oracle logits learns, starting from `scale`.
        annealed_scale: (start, calls): that factor goes from `start` to `scale`, in a line, over so many calls with
            labels while training (a step of accumulated gradients makes several).
        answer: what `classifier(features)` returns: "context", "plain", or the "mean" of both probabilities.
        ignore_index: the label that takes no part.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    context_projector: nn.Sequential | None
    oracle_projector: nn.Sequential | None
    scale_factor: nn.Parameter | None
    annealed_scale: AnnealedScale | None
    presence_head: PresenceHead | None

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
        plain_similarity: Similarity = "dot",
        context_similarity: Similarity = "cosine",
        context_design: DesignName | None = None,
        oracle_design: DesignName | None = None,
        frozen_oracle: bool = False,
        confidence_threshold: float = 0.0,
        rounds: int = 1,
        detach_plain: bool = False,
        detach_prototypes: bool = False,
        detach_weight: bool = False,
        feature_gradient: float = 1.0,
        oracle_gradient: float | None = None,
        distillation_gradient: float = 1.0,
        gradient_ratio: float | None = None,
        label_sampling: LabelSampling | None = None,
        zero_start: bool | None = None,
        context_drop: float = 0.0,
        presence: Presence = False,
        presence_gradient: float = 0.0,
        reads: Sequence[Fact] = (),
        context_bias: bool = False,
        learnable_scale: bool = False,
        annealed_scale: tuple[float, int] | None = None,
        answer: Answer = "context",
        ignore_index: int = 255,
    ) -> None:
        super().__init__()
        check_sizes(in_channels, num_classes)
        check_dropout(dropout)
        check_number("scale", scale, ends="()", scalars=True)
        check_confidence(confidence_threshold)
        check_integer("ignore_index", ignore_index, scalars=True)
        check_flags(bias=bias, context_bias=context_bias, learnable_scale=learnable_scale, frozen_oracle=frozen_oracle)
        check_flags(detach_plain=detach_plain, detach_prototypes=detach_prototypes, detach_weight=detach_weight)
        check_choice("plain_similarity", plain_similarity, SIMILARITIES)
        check_choice("context_similarity", context_similarity, SIMILARITIES)
        check_choice("answer", answer, ANSWERS)
        if context_bias and not bias:
            raise ValueError("context_bias needs a bias; got bias=False. Pass bias=True.")
        if plain_similarity == "cosine" and bias:
            raise ValueError("plain_similarity='cosine' has no bias; got bias=True. Pass bias=False.")
        self.in_channels = in_channels
        self.num_classes = num_classes
        self.dropout = dropout
        self.scale = scale
        self.plain_similarity = plain_similarity
        self.context_similarity = context_similarity
        self.confidence_threshold = confidence_threshold
        self.rounds = rounds
        self.context_bias = context_bias
        self.answer = answer
        self.ignore_index = ignore_index

        filled = get_preset(preset)
        self.oracle_scope: Scope = fill(oracle_scope, filled.oracle_scope)
        check_choice("oracle_scope", self.oracle_scope, SCOPES)
        self.label_sampling: LabelSampling = fill(label_sampling, filled.label_sampling)
        check_choice("label_sampling", self.label_sampling, LABEL_SAMPLINGS)
        self.context_design: DesignName = fill(context_design, filled.design)
        self.oracle_design: DesignName = fill(oracle_design, filled.design)
        check_choice("context_design", self.context_design, tuple(DESIGNS))
        check_pooling(rounds, detach_prototypes, self.context_design)
        check_choice("oracle_design", self.oracle_design, tuple(DESIGNS))
        self.detach_plain, self.detach_weight = detach_plain or detach_prototypes, detach_weight
        self.detach_prototypes = detach_prototypes
        self.feature_gradient = feature_gradient
        self.oracle_gradient: float = fill(oracle_gradient, feature_gradient)
        check_share("feature_gradient", self.feature_gradient)
        check_share("oracle_gradient", self.oracle_gradient)
        check_share("distillation_gradient", distillation_gradient)
        self.distillation_gradient = distillation_gradient
        check_gradient_ratio(gradient_ratio)
        self.gradient_ratio = gradient_ratio

        convolution = nn.Conv2d(in_channels, num_classes, 1, bias=bias)  # for its initial values
        self.weight = nn.Parameter(convolution.weight.detach())
        self.bias = nn.Parameter(convolution.bias.detach()) if convolution.bias is not None else None
        names = (self.context_design, self.oracle_design)
        if zero_start is None:
            zero_start = filled.zero_start and all(DESIGNS[one].residual for one in names if DESIGNS[one].projected)
        check_flags(zero_start=zero_start)
        self.context_projector, self.oracle_projector, self.reads = make_projectors(
            names, in_channels, reads=reads, zero_start=zero_start
        )
        check_context_drop(
            context_drop,
            context_design=self.context_design,
            rounds=rounds,
            distillation_gradient=distillation_gradient,
            reads=self.reads,
        )
        self.context_drop = context_drop
        self.presence_head = make_presence_head(
            presence, in_channels, num_classes, scale, self.context_design, gradient=presence_gradient
        )
        self.scale_factor = nn.Parameter(torch.ones(())) if learnable_scale else None
        cosines = context_similarity == "cosine"
        self.annealed_scale = make_annealed_scale(scale, annealed_scale, fixed=not learnable_scale, cosines=cosines)
        if frozen_oracle and self.oracle_projector is not None:
            self.oracle_projector.requires_grad_(False)

    @classmethod
    def from_conv(cls, conv: nn.Module, **arguments: Any) -> ContextAwareClassifier:
        """The classifier in the place of a trained 1x1 convolution (or linear layer), with its weight and bias.

        `arguments` are those of the constructor, but for the ones the convolution fixes: in_channels,
        num_classes, and bias unless it is given and agrees.
        """
        classifier = cls(**arguments_of(conv, arguments))
        trained = next(conv.parameters())
        classifier.to(device=trained.device, dtype=trained.dtype)
        copy_values(conv, classifier.weight, classifier.bias)
        return classifier.train(conv.training)

    def forward(
        self,
        features: Float[Tensor, "b d *spatial"],
        labels: Int[Tensor, "b *full"] | None = None,
        offsets: Int[Tensor, " b_plus_1"] | None = None,
    ) -> Tensor | ContextLogits:
        """The answer, or with labels all that the losses need."""
        if labels is None:
            return self._answer(features, offsets)
        self._check(features, labels, offsets)
        labels = self._fitted(labels, features.shape[2:])
        presence = self.presence_logits(features, offsets)
        usual_odds = None if self.presence_head is None else self.presence_head.usual_odds(labels, offsets)
        at_once = self._at_once(features, labels) if offsets is None else None
        if at_once is not None:
            return ContextLogits(
                at_once[1], at_once[0], at_once[2], labels, None, self.ignore_index, None, presence, usual_odds
            )
        seen = features
        if self.gradient_ratio is not None:
            features, seen = functional.balance_gradients(features, self.gradient_ratio)
        plain = self._plain(features)
        factor = self._factor(counted=True)
        own = self._context_head(seen, plain, offsets, factor)
        oracle_head = None
        if self.oracle_design != "none":
            oracle_head = self._oracle_head(seen, labels, offsets, self.oracle_scope)
        context, oracle = self._similarities(seen, own, oracle_head, offsets, factor)
        taught = None
        if self.distillation_gradient < 1.0 and context is not None:
            seen, guess = (functional.scale_gradient(one, self.distillation_gradient) for one in (seen, plain))
            again = self._context_head(seen, guess, offsets, factor)
            taught, _ = self._similarities(seen, again, None, offsets, factor)
        context = plain if context is None else context
        return ContextLogits(context, plain, oracle, labels, offsets, self.ignore_index, taught, presence, usual_odds)

    def plain_logits(self, features: Float[Tensor, "b d *spatial"]) -> Float[Tensor, "b n *spatial"]:
        """p: what the convolution returned, dropout before it included while training."""
        check_features(features, self.in_channels, packed=features.ndim == 2)
        return self._plain(features)

    def both_logits(
        self, features: Float[Tensor, "b d *spatial"], offsets: Int[Tensor, " b_plus_1"] | None = None
    ) -> tuple[Float[Tensor, "b n *spatial"], Float[Tensor, "b n *spatial"]]:
        """p, and p_p of Eq. (6), whatever the answer is; without a context branch the plain logits twice."""
        plain, context = self.both_without_presence(features, offsets)
        return plain, self.add_presence(context, features, offsets)

    def both_without_presence(
        self, features: Float[Tensor, "b d *spatial"], offsets: Int[Tensor, " b_plus_1"] | None = None
    ) -> tuple[Float[Tensor, "b n *spatial"], Float[Tensor, "b n *spatial"]]:
        """`both_logits` without the bias of `presence`."""
        self._check(features, None, offsets)
        at_once = self._at_once(features, None) if offsets is None else None
        if at_once is not None:
            return at_once[0], at_once[1]
        plain = self._plain(features)
        factor = self._factor()
        own = self._context_head(features, plain, offsets, factor)
        context, _ = self._similarities(features, own, None, offsets, factor)
        return plain, plain if context is None else context

    def add_presence(
        self,
        context: Float[Tensor, "b n *spatial"],
        features: Float[Tensor, "b d *spatial"],
        offsets: Int[Tensor, " b_plus_1"] | None = None,
    ) -> Float[Tensor, "b n *spatial"]:
        """Context logits with the bias of `presence`, told from the features."""
        if self.presence_head is None:
            return context
        presence, usual_odds = self.presence_logits(features, offsets), self.presence_head.usual_odds()
        return functional.add_presence(context, presence, usual_odds, offsets)

    def presence_logits(
        self, features: Float[Tensor, "b d *spatial"], offsets: Int[Tensor, " b_plus_1"] | None = None
    ) -> Float[Tensor, "images n"] | None:
        """Of the classes that each image has; None without `presence`."""
        return None if self.presence_head is None else self.presence_head(features, offsets)

    def oracle_logits(
        self,
        features: Float[Tensor, "b d *spatial"],
        labels: Int[Tensor, "b *full"],
        offsets: Int[Tensor, " b_plus_1"] | None = None,
        scope: Scope = "image",
    ) -> Float[Tensor, "b n *spatial"]:
        """p_y of Eq. (3): what the classifier would answer if it knew the labels, the paper's upper bound.

        For evaluation, so by default with each image's own prototypes, whatever `oracle_scope` training has.
        """
        self._check(features, labels, offsets)
        if self.oracle_design == "none":
            raise ValueError("the classifier has no oracle: oracle_design='none', or drop_oracle() was called.")
        labels = self._fitted(labels, features.shape[2:])
        head = self._oracle_head(features, labels, offsets, scope)
        return self._similarity(features, head, offsets, self._factor())

    def drop_oracle(self) -> ContextAwareClassifier:
        """Removes the oracle branch in place, before an export: only training reads it. Returns the classifier."""
        self.oracle_projector = None
        self.oracle_design = "none"
        return self

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        head = self.presence_head
        presence = "" if head is None else f", presence={head.kind!r}, presence_gradient={head.gradient}"
        return (
            f"{self.in_channels}, {self.num_classes}{bias}, scale={self.scale}, oracle_scope={self.oracle_scope!r}, "
            f"context_design={self.context_design!r}{presence}"
        )

    def _check(self, features: Tensor, labels: Tensor | None, offsets: Tensor | None) -> None:
        check_features(features, self.in_channels, packed=offsets is not None)
        if offsets is not None:
            check_offsets(offsets, features)
            if self.reads:
                raise ValueError(f"reads is for dense batches; got a packed one, and reads={self.reads}.")
        if "place" in self.reads and features.ndim != 4:
            shape = tuple(features.shape)
            raise ValueError(f"reads 'place' needs maps, features [b, d, h, w]; got shape {shape}. Leave it out.")
        if labels is not None:
            check_labels(labels, features, self.num_classes, self.ignore_index, packed=offsets is not None)

    def _fitted(self, labels: Tensor, size: Sequence[int]) -> Tensor:
        """Labels at the features' size."""
        return ops.fit_labels(labels, size, self.num_classes, self.ignore_index, self.label_sampling)

    def _answer(self, features: Tensor, offsets: Tensor | None) -> Tensor:
        if self.answer == "plain":
            return self.plain_logits(features)
        return self._choose(*self.both_logits(features, offsets))

    def _choose(self, plain: Tensor, context: Tensor) -> Tensor:
        if self.answer == "mean":
            return functional.mean_logits(plain, context).to(context.dtype)
        return plain if self.answer == "plain" else context

    def _at_once(self, features: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """All logits from one operation, for the paper's design where a kernel can run; else None."""
        is_standard = (
            (self.plain_similarity, self.context_similarity) == ("dot", "cosine")
            and self.context_design in FUSED_DESIGNS
            and (labels is None or self.oracle_design in (self.context_design, "none"))
            and self.confidence_threshold == 0.0
            and not self._goes_beyond
            and not (self.detach_prototypes and torch.is_grad_enabled())
            and self.oracle_gradient == self.feature_gradient
            and (labels is None or (self.gradient_ratio is None and self.distillation_gradient == 1.0))
        )
        if not is_standard:
            return None
        assert self.context_projector is not None
        oracle = self.oracle_projector
        return ops.context_aware_logits(
            features,
            self.weight.flatten(1),
            self.bias,
            weights_of(self.context_projector),
            None if oracle is None else weights_of(oracle),
            labels,
            scale=self.scale,
            over_batch=self.oracle_scope == "batch",
            dropout=self.dropout if self.training else 0.0,
            residual=DESIGNS[self.context_design].residual,
            feature_gradient=self.feature_gradient,
            detach_plain=self.detach_plain,
            detach_weight=self.detach_weight,
        )

    def _plain(self, features: Tensor) -> Tensor:
        weight = self.weight.flatten(1)
        if self.dropout > 0.0 and self.training:
            features = torch.feature_dropout(features, self.dropout, True)
        if self.plain_similarity == "dot":
            return ops.plain_logits(features, weight, self.bias)
        if features.ndim == 2:  # packed: a fixed classifier needs no offsets, every row is its own image
            return ops.cosine_logits(features[..., None], weight[None], self.scale)[..., 0]
        return ops.cosine_logits(features, weight[None], self.scale)

    @property
    def _softens(self) -> bool:
        """Whether less than the whole gradient of the context branches reaches what they share with the plain one."""
        shares = self.feature_gradient, self.oracle_gradient, self.distillation_gradient
        return self.detach_weight or min(shares) < 1.0 or self.gradient_ratio is not None

    @property
    def _goes_beyond(self) -> bool:
        """Whether the context classifier has more parts than the paper's."""
        changes = self.scale_factor is not None or self.annealed_scale is not None
        return bool(self.reads) or self.context_bias or changes or self.rounds > 1 or self._drops

    @property
    def _drops(self) -> bool:
        return self.context_drop > 0.0 and self.training

    def _factor(self, *, counted: bool = False) -> Tensor | None:
        """Of the context and the oracle logits, beside `scale`."""
        return self.scale_factor if self.annealed_scale is None else self.annealed_scale(counted=counted)

    def _context_head(
        self, features: Tensor, plain: Tensor, offsets: Tensor | None, factor: Tensor | None
    ) -> Head | None:
        """A_p of Eq. (5), one classifier for each image; None without a context branch."""
        if self.context_design == "none":
            return None
        features = functional.scale_gradient(features, 0.0 if self.detach_prototypes else self.feature_gradient)
        head = self._head_by(features, plain.detach() if self.detach_plain else plain, offsets)
        for _ in range(self.rounds - 1):
            guess = self._similarity(features, head, offsets, factor)
            head = self._head_by(features, guess.detach() if self.detach_prototypes else guess, offsets)
        return head

    def _head_by(self, features: Tensor, guess: Tensor, offsets: Tensor | None) -> Head:
        """The classifier of each image from prototypes that these logits pool."""
        prototypes = facts = None
        if self.context_design != "weight":
            prototypes = ops.context_prototypes(
                features, guess, confidence_threshold=self.confidence_threshold, offsets=offsets
            )
        if self.reads:
            facts = context_facts(self.reads, features, guess)
        head = self._generate(self.context_design, self.context_projector, prototypes, facts)
        if self._drops:
            head = leave_some(head, self._generate("weight", None, None, None).rows, self.context_drop)
        return head

    def _oracle_head(self, features: Tensor, labels: Tensor, offsets: Tensor | None, scope: Scope) -> Head:
        """A_y of Eq. (2), one classifier for each image or for the batch."""
        features = functional.scale_gradient(features, self.oracle_gradient)
        prototypes = facts = None
        if self.oracle_design != "weight":
            prototypes = ops.oracle_prototypes(
                features,
                labels,
                self.weight.flatten(1),
                scope=scope,
                ignore_index=-1,
                offsets=offsets,
            )
        if self.reads:
            facts = oracle_facts(self.reads, features, labels, self.num_classes)
        return self._generate(self.oracle_design, self.oracle_projector, prototypes, facts)

    def _generate(
        self, design: DesignName, project: nn.Module | None, prototypes: Tensor | None, facts: Tensor | None
    ) -> Head:
        weight: Tensor = self.weight.flatten(1)[None]
        bias: Tensor | None = self.bias if self.context_bias else None
        if self.detach_weight:
            weight, bias = weight.detach(), None if bias is None else bias.detach()
        return generate(DESIGNS[design], project, prototypes, weight, bias, facts)

    def _similarity(self, features: Tensor, head: Head, offsets: Tensor | None, factor: Tensor | None) -> Tensor:
        if self.context_similarity == "dot":
            return finish(ops.dot_logits(features, head.rows, offsets=offsets), head, factor)
        return finish(ops.cosine_logits(features, head.rows, self.scale, offsets=offsets), head, factor)

    def _similarities(
        self, features: Tensor, own: Head | None, oracle: Head | None, offsets: Tensor | None, factor: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Both logits together where they can share work."""
        if (
            own is not None
            and oracle is not None
            and self.context_similarity == "cosine"
            and self.feature_gradient == self.oracle_gradient
        ):
            seen = functional.scale_gradient(features, self.feature_gradient)
            scores = ops.cosine_logits_of_both(seen, own.rows, oracle.rows, self.scale, offsets=offsets)
            return finish(scores[0], own, factor), finish(scores[1], oracle, factor)
        pairs = ((own, self.feature_gradient), (oracle, self.oracle_gradient))
        context, of_oracle = (
            None
            if head is None
            else self._similarity(functional.scale_gradient(features, share), head, offsets, factor)
            for head, share in pairs
        )
        return context, of_oracle

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes the state dict of the convolution alone, too."""
        complete_state(state_dict, prefix, self.state_dict(prefix=prefix))
        super()._load_from_state_dict(state_dict, prefix, *rest)
