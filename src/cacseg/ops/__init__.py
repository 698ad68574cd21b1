"""What runs: the names of `cacseg.functional`, each with the best implementation for where its tensors are.

Logits come in the precision of the model (`functional` widens them to float32); everything that sums over
pixels accumulates in float32 in both.
"""

from cacseg.functional import (
    classwise_distillation,
    classwise_entropy_distillation,
    context_prototypes,
    entropy_distillation,
    fit_labels,
    oracle_prototypes,
    vanilla_distillation,
)
from cacseg.ops.cross_entropy import upsampled_cross_entropy
from cacseg.ops.logits import cosine_logits, dot_logits, inverse_norms, plain_logits

__all__ = [
    "classwise_distillation",
    "classwise_entropy_distillation",
    "context_prototypes",
    "cosine_logits",
    "dot_logits",
    "entropy_distillation",
    "fit_labels",
    "inverse_norms",
    "oracle_prototypes",
    "plain_logits",
    "upsampled_cross_entropy",
    "vanilla_distillation",
]
