"""The readable truth: one function for each equation of the paper, in plain PyTorch.

    Eq. (1)            oracle_prototypes                 C_y
    Eq. (3), Eq. (6)   cosine_logits                     p_y, p_p
    Eq. (4)            context_prototypes                C_p
    Eq. (7)            vanilla_distillation              L_KL, every pixel alike
    Eq. (9)            entropy                           H
    Eq. (10)           entropy_distillation              L_KL, pixels by their entropy
    Eq. (11), H = 1    classwise_distillation            L_KL, classes alike
    Eq. (11)           classwise_entropy_distillation    L_KL, the paper's choice
    Eq. (8)'s terms    upsampled_cross_entropy           cross-entropy at the labels' size
    not of the paper   relation_distillation             L_R, between classes
                       overlap_loss,
                       upsampled_overlap_loss            L_O, the overlap that mIoU scores
                       scene_codes, presence_bias, ...   which classes an image has

Shapes: b images, n classes, d channels, `*spatial` one to three dimensions. Features are `[b, d, *spatial]`,
logits `[b, n, *spatial]`, labels `[b, *full]` of any size. A ragged batch is packed instead: `[N, d]`,
`[N, n]`, `[N]`, with `offsets` `[b + 1]`. Half-precision inputs are accumulated and returned in float32.
`cacseg.ops` has the same names and is what runs.
"""

from cacseg.functional.cross_entropy import upsample, upsampled_cross_entropy
from cacseg.functional.distillation import (
    classwise_distillation,
    classwise_entropy_distillation,
    entropy,
    entropy_distillation,
    soft_cross_entropy,
    vanilla_distillation,
)
from cacseg.functional.gradients import balance_gradients, scale_gradient
from cacseg.functional.labels import class_masks, fit_labels, labelled, resize_labels
from cacseg.functional.logits import cosine_logits, dot_logits, mean_logits, plain_logits
from cacseg.functional.overlap import overlap_loss, upsampled_overlap_loss
from cacseg.functional.presence import add_presence, image_classes, presence_bias, presence_loss, scene_codes
from cacseg.functional.prototypes import (
    context_prototypes,
    context_shares,
    oracle_prototypes,
    oracle_shares,
    place_codes,
)
from cacseg.functional.relation import relation_distillation

__all__ = [
    "add_presence",
    "balance_gradients",
    "class_masks",
    "classwise_distillation",
    "classwise_entropy_distillation",
    "context_prototypes",
    "context_shares",
    "cosine_logits",
    "dot_logits",
    "entropy",
    "entropy_distillation",
    "fit_labels",
    "image_classes",
    "labelled",
    "mean_logits",
    "oracle_prototypes",
    "oracle_shares",
    "overlap_loss",
    "place_codes",
    "plain_logits",
    "presence_bias",
    "presence_loss",
    "relation_distillation",
    "resize_labels",
    "scale_gradient",
    "scene_codes",
    "soft_cross_entropy",
    "upsample",
    "upsampled_cross_entropy",
    "upsampled_overlap_loss",
    "vanilla_distillation",
]
