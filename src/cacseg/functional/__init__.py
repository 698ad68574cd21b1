"""The readable truth: one function for each equation of the paper, in plain PyTorch.

    Eq. (1)                      oracle_prototypes          C_y
    Eq. (3), Eq. (6)             cosine_logits              p_y, p_p
    Eq. (4)                      context_prototypes         C_p
    Eq. (7), Eq. (10), Eq. (11)  distillation               L_KL in its four forms, by name
    Eq. (9)                      entropy                    H
    Eq. (8)'s terms              upsampled_cross_entropy    cross-entropy at the labels' size
    not of the paper             overlap_loss               soft Jaccard, the overlap that mIoU scores

Shapes: b images, n classes, d channels, `*spatial` one to three dimensions. Features are `[b, d, *spatial]`,
logits `[b, n, *spatial]`, labels `[b, *full]` of any size. A ragged batch is packed instead: `[N, d]`,
`[N, n]`, `[N]`, with `offsets` `[b + 1]`. Half-precision inputs are accumulated and returned in float32.
`cacseg.ops` has the same names and is what runs; `distillation` is in its `pixel_losses`.
"""

from cacseg.functional.cross_entropy import upsample, upsampled_cross_entropy
from cacseg.functional.distillation import distillation, entropy, soft_cross_entropy
from cacseg.functional.labels import class_masks, fit_labels, labelled, resize_labels
from cacseg.functional.logits import cosine_logits, dot_logits, mean_logits, plain_logits
from cacseg.functional.overlap import overlap_loss
from cacseg.functional.prototypes import context_prototypes, oracle_prototypes

__all__ = [
    "class_masks",
    "context_prototypes",
    "cosine_logits",
    "distillation",
    "dot_logits",
    "entropy",
    "fit_labels",
    "labelled",
    "mean_logits",
    "oracle_prototypes",
    "overlap_loss",
    "plain_logits",
    "resize_labels",
    "soft_cross_entropy",
    "upsample",
    "upsampled_cross_entropy",
]
