"""The training objective: three cross-entropies and a distillation, Eq. (8), and with the default an overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cacseg import _checks, ops
from cacseg.functional.cross_entropy import PixelAverage
from cacseg.functional.distillation import DISTILLATION_FORMS, DistillationForm
from cacseg.functional.labels import read_mask
from cacseg.functional.prototypes import Scope
from cacseg.outputs import ContextLogits
from cacseg.presets import PRESETS, Preset, PresetName, fill_preset

EntropySource = Literal["oracle", "context", "plain"]
ENTROPY_SOURCES = ("oracle", "context", "plain")


class ContextLoss(nn.Module):
    """`loss(outputs, labels)` returns the terms of Eq. (8) by name, and their weighted sum, "total".

        total = plain_weight CE(p) + context_weight CE(p_p) + oracle_weight CE(p_y) + kl_weight L_KL

    The default preset, "tuned", adds overlap_weight L_O, which is not in the paper. As a sum of several losses, "total"
    is larger than a cross-entropy: adapt gradient clipping and the learning rate of SGD.

    Terms are returned before their weights; a term of weight 0 is not computed and returned as 0. `outputs` are what
    the classifier returned for the same labels; the logits are upsampled to the labels' size. A batch whose pixels are
    all ignored gives 0 and zero gradients.

    Args:
        preset: the default of every argument that is None (see `cacseg.presets`). Leave it out: it must be that of the
            classifier.
        plain_weight, context_weight, oracle_weight, kl_weight: the weights of the four terms of Eq. (8).
        overlap_weight: the weight of the soft Jaccard loss of the context logits (`functional.overlap_loss`) over the
            images of one call. Class weights and label smoothing do not enter.
        distillation: "classwise_entropy" (Eq. 11), "classwise", "entropy" (Eq. 10) or "vanilla" (Eq. 7).
        entropy_source: the prediction whose entropy weighs the pixels: "oracle" (p_y), "context" (p_p) or "plain" (p).
        distillation_scope: average within each "image", or over the pixels of the "batch" together.
        soft_target_weight: the share of the oracle in the target; the rest is the one-hot label.
        align_corners: how to upsample the plain and the oracle logits.
        context_align_corners: how to upsample the context logits.
        context_average: average the context cross-entropy over "labelled" pixels, or over "all".
        ignore_index: the label to ignore; must be the classifier's.
        class_weights: a weight for each class in the three cross-entropies.
        label_smoothing: label smoothing of the three cross-entropies.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        preset: PresetName | None = None,
        *,
        plain_weight: float = 1.0,
        context_weight: float = 1.0,
        oracle_weight: float = 1.0,
        kl_weight: float = 1.0,
        overlap_weight: float | None = None,
        distillation: DistillationForm = "classwise_entropy",
        entropy_source: EntropySource = "oracle",
        distillation_scope: Scope | None = None,
        soft_target_weight: float | None = None,
        align_corners: bool | None = None,
        context_align_corners: bool | None = None,
        context_average: PixelAverage | None = None,
        ignore_index: int = 255,
        class_weights: Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.weights = {
            "plain": plain_weight,
            "context": context_weight,
            "oracle": oracle_weight,
            "distillation": kl_weight,
        }
        for name, value in self.weights.items():
            _checks.check_number(f"the weight of the {name} term", value)
        _checks.check_choice("distillation", distillation, DISTILLATION_FORMS)
        _checks.check_choice("entropy_source", entropy_source, ENTROPY_SOURCES)
        _checks.check_integer("ignore_index", ignore_index, scalars=True)
        _checks.check_label_smoothing(label_smoothing)
        if preset is not None:
            _checks.check_choice("preset", preset, tuple(PRESETS))
        self.preset = preset
        self.options = {  # by the preset of the classifier
            name: fill_preset(
                name,
                overlap_weight=overlap_weight,
                distillation_scope=distillation_scope,
                soft_target_weight=soft_target_weight,
                align_corners=align_corners,
                context_align_corners=context_align_corners,
                context_average=context_average,
            )
            for name in ([preset] if preset is not None else PRESETS)
        }
        self.distillation, self.entropy_source = distillation, entropy_source
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        if class_weights is not None:
            class_weights = _checks.read_class_weights(class_weights)
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, outputs: ContextLogits, labels: Int[Tensor, "b *full"]) -> dict[str, Float[Tensor, ""]]:
        """The terms by name: "plain", "context", "oracle", "distillation", "overlap" by a weight, and "total"."""
        if isinstance(outputs, ContextLogits) and outputs.plain.shape[1] == 2:
            labels = read_mask(labels, outputs.plain.ndim, self.ignore_index)
        options = self._check(outputs, labels)
        losses = self._cross_entropies(outputs, labels, options)
        weights = {**self.weights}
        if options.overlap_weight > 0.0:
            weights["overlap"] = options.overlap_weight
        sources = {"oracle": outputs.oracle, "context": outputs.context, "plain": outputs.plain}
        losses |= ops.pixel_losses(
            outputs.context,
            outputs.oracle if weights["distillation"] > 0.0 else None,
            outputs.labels,
            self.distillation,
            overlap="overlap" in weights,
            entropy_logits=sources[self.entropy_source],
            scope=options.distillation_scope,
            soft_target_weight=options.soft_target_weight,
            ignore_index=-1,
            offsets=outputs.offsets,
        )
        if len(losses) < len(weights):
            zero = outputs.plain.new_zeros((), dtype=torch.float32)
            losses = {name: losses.get(name, zero) for name in weights}
        terms = [_times(weight, losses[name]) for name, weight in weights.items() if weight > 0.0]
        total = torch.stack(terms).sum() if terms else losses["plain"]
        return {**{name: losses[name] for name in weights}, "total": total}

    def extra_repr(self) -> str:
        weights = ", ".join(f"{name}={weight}" for name, weight in self.weights.items())
        overlap = {name: one.overlap_weight for name, one in self.options.items()}
        return (
            f"preset={self.preset!r}, {weights}, overlap={overlap}, {self.distillation!r}, ignore={self.ignore_index}"
        )

    def _check(self, outputs: ContextLogits, labels: Tensor) -> Preset:
        """What must hold of the outputs and labels; the options that go with the classifier's preset."""
        if not isinstance(outputs, ContextLogits):
            raise TypeError(
                f"outputs must be ContextLogits; got {type(outputs).__name__}. Call the classifier with the "
                "labels: classifier(features, labels)."
            )
        num_classes, packed = outputs.plain.shape[1], outputs.offsets is not None
        _checks.check_labels(labels, outputs.plain, num_classes, self.ignore_index, packed=packed, read_values=False)
        if outputs.preset not in self.options:
            raise ValueError(
                f"classifier and loss must have one preset; the classifier has {outputs.preset!r}, the loss "
                f"{self.preset!r}. Leave it out of the loss: cacseg.ContextLoss()."
            )
        if outputs.ignore_index != self.ignore_index:
            raise ValueError(
                f"classifier and loss must ignore the same label; the classifier ignores {outputs.ignore_index}, the "
                f"loss {self.ignore_index}. Give both the same ignore_index."
            )
        for name in ("oracle", "distillation"):
            if outputs.oracle is None and self.weights[name] > 0.0:
                raise ValueError(
                    f"the {name} term has weight {self.weights[name]}, but the classifier has no oracle "
                    "(oracle_design='none', or drop_oracle() was called). Give it one, or the term the weight 0."
                )
        if self.class_weights is not None:
            _checks.check_class_weights(self.class_weights, num_classes)
        return self.options[outputs.preset]

    def _cross_entropies(self, outputs: ContextLogits, labels: Tensor, options: Preset) -> dict[str, Tensor]:
        """Those that have a weight, by name."""
        rows = {
            "plain": (outputs.plain, options.align_corners, "labelled"),
            "context": (outputs.context, options.context_align_corners, options.context_average),
            "oracle": (outputs.oracle, options.align_corners, "labelled"),
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


def _times(weight: float, loss: Tensor) -> Tensor:
    """A factor of 1 is no launch."""
    return loss if weight == 1.0 else weight * loss
