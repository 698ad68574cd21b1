"""Every row of the paper's four ablation tables, by name, as plain arguments.

    classifier, loss = cacseg.variants.build("design_d", in_channels=512, num_classes=150)

A row says only how it differs from the method itself (`loss_f` = `kl_e` = `cosine_d` = `design_#`). Figures are the
paper's mIoU on ADE20K, UPerNet with Swin-Tiny, single scale. The default preset is "paper"; "tuned" adds its
soft-Jaccard loss to all rows but those of the fixed classifier alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cacseg._checks import check_choice
from cacseg.classifier import ContextAwareClassifier
from cacseg.losses import ContextLoss
from cacseg.presets import PresetName


class Variant(NamedTuple):
    """One row: what it is, what the paper reports, and the arguments that differ from the method's."""

    text: str
    paper_miou: float
    classifier: Mapping[str, Any] = {}
    loss: Mapping[str, Any] = {}


# A fixed classifier alone: no branch beside it, no loss beside its own.
_PLAIN_CLASSIFIER = {"context_design": "none", "oracle_design": "none"}
_PLAIN_LOSS = {"context_weight": 0.0, "oracle_weight": 0.0, "kl_weight": 0.0, "overlap_weight": 0.0}
_NO_ORACLE = {"oracle_design": "none"}
_NO_ORACLE_LOSS = {"oracle_weight": 0.0, "kl_weight": 0.0}

# fmt: off
VARIANTS: dict[str, Variant] = {
    # Loss combinations.
    "loss_a": Variant("CE(p), the baseline", 44.51, _PLAIN_CLASSIFIER, _PLAIN_LOSS),
    "loss_b": Variant("CE(p_p)", 44.06, _NO_ORACLE, {"plain_weight": 0.0, **_NO_ORACLE_LOSS}),
    "loss_c": Variant("CE(p) + CE(p_p)", 45.14, _NO_ORACLE, _NO_ORACLE_LOSS),
    "loss_d": Variant("CE(p) + CE(p_p) + CE(p_y)", 45.74, {}, {"kl_weight": 0.0}),
    "loss_e": Variant("CE(p) + CE(p_p) + KL", 45.23, {"frozen_oracle": True}, {"oracle_weight": 0.0}),
    "loss_f": Variant("CE(p) + CE(p_p) + CE(p_y) + KL, the method", 46.91),
    "loss_g": Variant("CE(p) + CE(p_p) + CE(p_y) + 0.1 KL", 45.88, {}, {"kl_weight": 0.1}),
    "loss_h": Variant("CE(p) + CE(p_p) + CE(p_y) + 10 KL", 46.08, {}, {"kl_weight": 10.0}),
    # Forms of the distillation; then the source of the entropy.
    "kl_a": Variant("without KL", 45.74, {}, {"kl_weight": 0.0}),
    "kl_b": Variant("vanilla KL, Eq. (7)", 45.72, {}, {"distillation": "vanilla"}),
    "kl_c": Variant("entropy KL, Eq. (10)", 45.99, {}, {"distillation": "entropy"}),
    "kl_d": Variant("class-wise KL", 46.10, {}, {"distillation": "classwise"}),
    "kl_e": Variant("class-wise entropy KL, Eq. (11), the method", 46.91),
    "kl_1": Variant("class-wise entropy KL, entropy of p_p (Est.)", 46.58, {}, {"entropy_source": "context"}),
    "kl_2": Variant("class-wise entropy KL, entropy of p (Ori.)", 46.22, {}, {"entropy_source": "plain"}),
    # Dot products and cosines; then the scale.
    "cosine_a": Variant("original (dot), the baseline", 44.51, _PLAIN_CLASSIFIER, _PLAIN_LOSS),
    "cosine_b": Variant("original (cosine)", 43.89,
                        {**_PLAIN_CLASSIFIER, "plain_similarity": "cosine", "bias": False}, _PLAIN_LOSS),
    "cosine_c": Variant("original (dot) + context (dot)", 45.42, {"context_similarity": "dot"}),
    "cosine_d": Variant("original (dot) + context (cosine), the method", 46.91),
    "cosine_e": Variant("original (cosine) + context (cosine)", 46.39, {"plain_similarity": "cosine", "bias": False}),
    "cosine_1": Variant("the method with scale 5", 45.39, {"scale": 5.0}),
    "cosine_2": Variant("the method with scale 10", 46.78, {"scale": 10.0}),
    "cosine_3": Variant("the method with scale 20", 46.26, {"scale": 20.0}),
    # Designs of the classifiers A_p and A_y.
    "design_baseline": Variant("the fixed classifier alone", 44.51, _PLAIN_CLASSIFIER, _PLAIN_LOSS),
    "design_a": Variant("A = P", 44.08, {"context_design": "prototype", "oracle_design": "prototype"}),
    "design_b": Variant("A = P + C", 44.13, {"context_design": "sum", "oracle_design": "sum"}),
    "design_c": Variant("A = theta(P)", 46.21, {"context_design": "project", "oracle_design": "project"}),
    "design_d": Variant("A = theta(P + C)", 46.53,
                        {"context_design": "project_sum", "oracle_design": "project_sum"}),
    "design_#": Variant("A = theta([P, C]), the method", 46.91),
    "design_e": Variant("A = theta([P, C]) + C", 45.94,
                        {"context_design": "project_concat_residual", "oracle_design": "project_concat_residual"}),
    "design_f": Variant("A_y = P_y, A_p = theta([P, C])", 46.01, {"oracle_design": "prototype"}),
    "design_g": Variant("A_y = theta([P, C]), A_p = P_p", 44.55, {"context_design": "prototype"}),
    "design_h": Variant("A_y = C, A_p = theta([P, C])", 45.69, {"oracle_design": "weight"}),
    "design_i": Variant("A_y = theta([P, C]), A_p = C", 44.62, {"context_design": "weight"}),
}
# fmt: on


def build(
    name: str, in_channels: int, num_classes: int, *, preset: PresetName = "paper", ignore_index: int = 255
) -> tuple[ContextAwareClassifier, ContextLoss]:
    """The classifier and the loss of one row."""
    check_choice("name", name, tuple(VARIANTS))
    row = VARIANTS[name]
    classifier = ContextAwareClassifier(
        in_channels, num_classes, preset=preset, ignore_index=ignore_index, **row.classifier
    )
    return classifier, ContextLoss(ignore_index=ignore_index, **row.loss)
