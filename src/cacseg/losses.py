"""The training objective: three cross-entropies and a distillation, Eq. (8), and with the default an overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cacseg import functional, ops
from cacseg._checks import (
    check_choice,
    check_class_weights,
    check_flags,
    check_integer,
    check_label_smoothing,
    check_labels,
    check_number,
)
from cacseg._counting import count_up
from cacseg.classifier import ContextLogits
from cacseg.functional.cross_entropy import PIXEL_AVERAGES, PixelAverage
from cacseg.functional.distillation import CLASS_AVERAGES, ClassAverage
from cacseg.functional.overlap import OVERLAP_SIZES, OverlapSize
from cacseg.functional.prototypes import SCOPES, Scope
from cacseg.ops.overlap import fitted_overlap_loss
from cacseg.presence import CLASS_WEIGHT
from cacseg.presets import DEFAULT, PresetName, fill, get_preset

DistillationForm = Literal["classwise_entropy", "classwise", "entropy", "vanilla"]
EntropySource = Literal["oracle", "context", "plain"]
DISTILLATION_FORMS = ("classwise_entropy", "classwise", "entropy", "vanilla")
ENTROPY_SOURCES = ("oracle", "context", "plain")


class ContextLoss(nn.Module):
    """`loss(outputs, labels)` gives the named terms of Eq. (8) and their weighted sum, "total".

        total = plain_weight CE(p) + context_weight CE(p_p) + oracle_weight CE(p_y) + kl_weight L_KL

    and, where they have a weight, overlap_weight L_O, which "tuned" has, and relation_weight L_R; neither is of the
    paper.

    The terms are returned as they are, before their weights; a term of weight 0 is not computed and given as 0.
    `outputs` are what the classifier returned for the same labels; the logits are upsampled to the labels' size.
    A batch whose pixels are all ignored gives 0 and zero gradients.

    Args:
        preset: "tuned" (the default), "centred", "released" (the authors' code) or "paper"; fills in what is left None
            (see `cacseg.presets`).
        plain_weight, context_weight, oracle_weight, kl_weight: the weights of the four terms of Eq. (8).
        distillation: "classwise_entropy" (Eq. 11), "classwise", "entropy" (Eq. 10) or "vanilla" (Eq. 7).
        entropy_source: whose entropy weighs the pixels: "oracle" (p_y), "context" (p_p) or "plain" (p).
        distillation_scope: means within each "image", or over the pixels of the "batch" together.
        class_average: the class-wise mean over the classes "present", or over "all" n.
        soft_target_weight: the share of the oracle in the target, the rest is the one-hot label.
        align_corners: in the upsampling of the plain and the oracle logits.
        context_align_corners: in the upsampling of the context logits.
        context_average: the context cross-entropy's mean over "labelled" pixels, or over "all".
        ignore_index: the label that takes no part; the same as the classifier's.
        class_weights: a weight for each class in the three cross-entropies.
        label_smoothing: in the three cross-entropies.
        warmup_steps: the weights of all terms but "plain" and "presence" rise from 0 over so many calls while training
            (a step of accumulated gradients makes several).
        relation_weight: of a term "relation": the correlations between the classes' scores in an image should
            be the oracle's (`functional.relation_distillation`). Without a weight there is no such term.
        overlap_weight: of a term "overlap": the context probabilities of each class should cover its pixels and no
            others (`functional.overlap_loss`), summed over the images of one call. "tuned" has 3, also where other
            terms are left out; without a weight there is no such term. It knows no class weights and no smoothing.
        overlap_at: the size at which that term compares: of the "features", or, with upsampled logits, of the "labels"
            (`functional.upsampled_overlap_loss`); a packed batch has one size.
        fading: the distillation is also weighed by the context cross-entropy, where that is below 1: it teaches a
            model that has much to learn and leaves one alone that has not.
    """

    class_weights: Tensor | None
    steps_taken: Tensor | None

    def __init__(
        self,
        preset: PresetName = DEFAULT,
        *,
        plain_weight: float = 1.0,
        context_weight: float = 1.0,
        oracle_weight: float = 1.0,
        kl_weight: float = 1.0,
        distillation: DistillationForm = "classwise_entropy",
        entropy_source: EntropySource = "oracle",
        distillation_scope: Scope | None = None,
        class_average: ClassAverage | None = None,
        soft_target_weight: float | None = None,
        align_corners: bool | None = None,
        context_align_corners: bool | None = None,
        context_average: PixelAverage | None = None,
        ignore_index: int = 255,
        class_weights: Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
        warmup_steps: int = 0,
        relation_weight: float = 0.0,
        overlap_weight: float | None = None,
        overlap_at: OverlapSize = "features",
        fading: bool = False,
    ) -> None:
        super().__init__()
        check_integer("warmup_steps", warmup_steps)
        check_integer("ignore_index", ignore_index, scalars=True)
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative; got {warmup_steps}.")
        filled = get_preset(preset)
        overlap_weight = fill(overlap_weight, filled.overlap_weight)
        self.weights = {
            "plain": plain_weight,
            "context": context_weight,
            "oracle": oracle_weight,
            "distillation": kl_weight,
        }
        for name, value in (("relation", relation_weight), ("overlap", overlap_weight)):
            if value != 0.0:
                self.weights[name] = value
        for name, value in self.weights.items():
            check_number(f"the weight of the {name} term", value)
        self.distillation = distillation
        self.entropy_source = entropy_source
        self.distillation_scope = fill(distillation_scope, filled.distillation_scope)
        self.class_average = fill(class_average, filled.class_average)
        self.soft_target_weight = fill(soft_target_weight, filled.soft_target_weight)
        self.align_corners = fill(align_corners, filled.align_corners)
        self.context_align_corners = fill(context_align_corners, filled.context_align_corners)
        self.context_average = fill(context_average, filled.context_average)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        check_flags(align_corners=self.align_corners, context_align_corners=self.context_align_corners, fading=fading)
        check_choice("distillation", distillation, DISTILLATION_FORMS)
        check_choice("entropy_source", entropy_source, ENTROPY_SOURCES)
        check_choice("distillation_scope", self.distillation_scope, SCOPES)
        check_choice("class_average", self.class_average, CLASS_AVERAGES)
        check_choice("context_average", self.context_average, PIXEL_AVERAGES)
        check_choice("overlap_at", overlap_at, OVERLAP_SIZES)
        if overlap_at != "features" and overlap_weight == 0.0:
            raise ValueError(f"overlap_at={overlap_at!r} is of a term that has no weight. Give overlap_weight.")
        self.overlap_at = overlap_at
        check_number("soft_target_weight", self.soft_target_weight, 0.0, 1.0, "[]", scalars=True)
        check_label_smoothing(label_smoothing)
        if class_weights is not None:
            class_weights = torch.as_tensor(class_weights, dtype=torch.get_default_dtype())
            if class_weights.ndim != 1:
                shape = tuple(class_weights.shape)
                raise ValueError(f"class_weights must be one number for each class; got shape {shape}.")
            if not class_weights.is_meta and not (class_weights.isfinite() & (class_weights >= 0)).all():
                raise ValueError(f"class_weights must be finite and not negative; got {class_weights.tolist()}.")
        self.register_buffer("class_weights", class_weights, persistent=False)
        if fading and context_weight == 0.0:
            raise ValueError("fading weighs by the context cross-entropy, whose weight is 0. Give it one.")
        self.fading = fading
        self.warmup_steps = warmup_steps
        counter = torch.zeros((), dtype=torch.int64) if warmup_steps > 0 else None  # of integers: no precision ends it
        self.register_buffer("steps_taken", counter)

    def forward(self, outputs: ContextLogits, labels: Int[Tensor, "b *full"]) -> dict[str, Float[Tensor, ""]]:
        """The terms by name: "plain", "context", "oracle", "distillation", those that there are, and "total".

        "overlap" and "relation" are there by a weight, "presence" by the classifier's argument.
        """
        self._check(outputs, labels)
        losses = self._cross_entropies(outputs, labels)
        if self.weights["distillation"] > 0.0 and outputs.oracle is not None:
            losses["distillation"] = self._distillation(outputs, outputs.oracle)
        if "relation" in self.weights and outputs.oracle is not None:
            losses["relation"] = functional.relation_distillation(
                outputs.context, outputs.oracle, outputs.labels, ignore_index=-1
            )
        if "overlap" in self.weights:
            losses["overlap"] = self._overlap(outputs, labels)
        zero = None
        for name in self.weights:
            if name not in losses:
                zero = outputs.plain.new_zeros((), dtype=torch.float32) if zero is None else zero
                losses[name] = zero
        terms = {name: _times(weight, losses[name]) for name, weight in self.weights.items() if weight > 0.0}
        if self.fading and "distillation" in terms:
            terms["distillation"] = losses["context"].detach().clamp(max=1.0) * terms["distillation"]
        if self.steps_taken is not None:
            taken = self.steps_taken
            if self.training:
                taken, self.steps_taken = count_up(taken)
            share = (taken / self.warmup_steps).clamp(max=1.0)
            terms = {name: term if name == "plain" else share * term for name, term in terms.items()}
        names = list(self.weights)
        if outputs.presence is not None:  # it has no weight: only its layer learns, and features by `presence_gradient`
            names.append("presence")
            losses["presence"] = functional.presence_loss(
                outputs.presence,
                outputs.labels,
                usual_odds=outputs.usual_odds,
                ignore_index=-1,
                offsets=outputs.offsets,
            )
            weight = 1.0 if outputs.usual_odds is None else CLASS_WEIGHT * outputs.presence.shape[1]
            terms["presence"] = _times(weight, losses["presence"])
        total = torch.stack(list(terms.values())).sum() if terms else losses["plain"]
        return {**{name: losses[name] for name in names}, "total": total}

    def extra_repr(self) -> str:
        weights = ", ".join(f"{name}={weight}" for name, weight in self.weights.items())
        size = f", overlap_at={self.overlap_at!r}" if "overlap" in self.weights else ""
        return f"{weights}{size}, distillation={self.distillation!r}, ignore_index={self.ignore_index}"

    def _check(self, outputs: ContextLogits, labels: Tensor) -> None:
        if not isinstance(outputs, ContextLogits):
            raise TypeError(
                f"outputs must be ContextLogits; got {type(outputs).__name__}. Call the classifier with the "
                "labels: classifier(features, labels)."
            )
        num_classes, packed = outputs.plain.shape[1], outputs.offsets is not None
        check_labels(labels, outputs.plain, num_classes, self.ignore_index, packed=packed, read_values=False)
        if outputs.ignore_index != self.ignore_index:
            raise ValueError(
                f"classifier and loss must ignore the same label; the classifier ignores {outputs.ignore_index}, the "
                f"loss {self.ignore_index}. Give both the same ignore_index."
            )
        if outputs.oracle is None:
            for name in ("oracle", "distillation", "relation"):
                if self.weights.get(name, 0.0) > 0.0:
                    raise ValueError(
                        f"the {name} term has weight {self.weights[name]}, but the classifier has no oracle "
                        "(oracle_design='none', or drop_oracle() was called). Give it one, or the term the weight 0."
                    )
        if self.class_weights is not None:
            check_class_weights(self.class_weights, num_classes)

    def _cross_entropies(self, outputs: ContextLogits, labels: Tensor) -> dict[str, Tensor]:
        """Those that count, by name."""
        rows = {
            "plain": (outputs.plain, self.align_corners, "labelled"),
            "context": (outputs.context, self.context_align_corners, self.context_average),
            "oracle": (outputs.oracle, self.align_corners, "labelled"),
        }
        names = [name for name in rows if self.weights[name] > 0.0 and rows[name][0] is not None]
        if not names:
            return {}
        logits, align_corners, averages = zip(*(rows[name] for name in names), strict=True)
        losses = ops.upsampled_cross_entropies(
            logits,
            labels,
            ignore_index=self.ignore_index,
            weight=self.class_weights,
            label_smoothing=self.label_smoothing,
            align_corners=align_corners,
            averages=averages,
        )
        return dict(zip(names, losses, strict=True))

    def _overlap(self, outputs: ContextLogits, labels: Tensor) -> Tensor:
        if self.overlap_at == "features" or outputs.offsets is not None:
            return fitted_overlap_loss(outputs.context, outputs.labels)
        return ops.upsampled_overlap_loss(
            outputs.context, labels, ignore_index=self.ignore_index, align_corners=self.context_align_corners
        )

    def _distillation(self, outputs: ContextLogits, oracle: Tensor) -> Tensor:
        context = outputs.context if outputs.taught is None else outputs.taught
        labels, offsets = outputs.labels, outputs.offsets
        source = {"oracle": oracle, "context": context, "plain": outputs.plain}[self.entropy_source]
        scope, soft, average = self.distillation_scope, self.soft_target_weight, self.class_average
        common = _Common(scope=scope, soft_target_weight=soft, ignore_index=-1, offsets=offsets)
        if self.distillation == "vanilla":
            return ops.vanilla_distillation(context, oracle, labels, **common)
        if self.distillation == "entropy":
            return ops.entropy_distillation(context, oracle, labels, entropy_logits=source, **common)
        if self.distillation == "classwise":
            return ops.classwise_distillation(context, oracle, labels, class_average=average, **common)
        return ops.classwise_entropy_distillation(
            context, oracle, labels, entropy_logits=source, class_average=average, **common
        )


def _times(weight: float, loss: Tensor) -> Tensor:
    """A factor of 1 is no launch."""
    return loss if weight == 1.0 else weight * loss


class _Common(TypedDict):
    """The arguments that all four forms of the distillation share."""

    scope: Scope
    soft_target_weight: float
    ignore_index: int
    offsets: Tensor | None
