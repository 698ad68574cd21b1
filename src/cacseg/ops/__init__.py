"""What runs: the names of `cacseg.functional`, each with the best implementation for where its tensors are.

`impl="auto"` takes Triton kernels for float32, float16 and bfloat16 tensors on an NVIDIA device (from Ampere on), plain
PyTorch for everything else; "torch" and "triton" insist. Logits come in the precision of the model (`functional` widens
them to float32); everything that sums over pixels accumulates in float32 in both. The kernels give the same bits for
the same inputs and are differentiable once.
"""

from cacseg.ops.classifier import context_aware_logits
from cacseg.ops.cross_entropy import upsampled_cross_entropies, upsampled_cross_entropy
from cacseg.ops.distillation import (
    classwise_distillation,
    classwise_entropy_distillation,
    entropy_distillation,
    vanilla_distillation,
)
from cacseg.ops.labels import fit_labels
from cacseg.ops.logits import cosine_logits, cosine_logits_of_both, dot_logits, inverse_norms, plain_logits
from cacseg.ops.overlap import overlap_loss, upsampled_overlap_loss
from cacseg.ops.prototypes import context_prototypes, oracle_prototypes

__all__ = [
    "classwise_distillation",
    "classwise_entropy_distillation",
    "context_aware_logits",
    "context_prototypes",
    "cosine_logits",
    "cosine_logits_of_both",
    "dot_logits",
    "entropy_distillation",
    "fit_labels",
    "inverse_norms",
    "oracle_prototypes",
    "overlap_loss",
    "plain_logits",
    "upsampled_cross_entropies",
    "upsampled_cross_entropy",
    "upsampled_overlap_loss",
    "vanilla_distillation",
]
