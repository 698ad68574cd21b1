"""What runs: the names of `cacseg.functional`, each with the best implementation for where its tensors are.

`impl="auto"` takes Triton kernels for float32, float16 and bfloat16 tensors on an NVIDIA device (from Ampere on), plain
PyTorch for everything else; "torch" and "triton" insist. Logits come in the precision of the model (`functional` widens
them to float32); everything that sums over pixels accumulates in float32 in both. The kernels give the same bits for
the same inputs and are differentiable once. `distillation` is in `pixel_losses`.
"""

from cacseg.functional import context_prototypes, oracle_prototypes
from cacseg.ops.classifier import context_aware_logits
from cacseg.ops.cross_entropy import upsampled_cross_entropies, upsampled_cross_entropy
from cacseg.ops.labels import fit_labels
from cacseg.ops.logits import cosine_logits, cosine_logits_of_all, dot_logits, plain_logits
from cacseg.ops.pixel_losses import overlap_loss, pixel_losses

__all__ = [
    "context_aware_logits",
    "context_prototypes",
    "cosine_logits",
    "cosine_logits_of_all",
    "dot_logits",
    "fit_labels",
    "oracle_prototypes",
    "overlap_loss",
    "pixel_losses",
    "plain_logits",
    "upsampled_cross_entropies",
    "upsampled_cross_entropy",
]
