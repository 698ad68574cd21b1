"""Segmentation classifiers that adapt to each image.

classifier = cacseg.ContextAwareClassifier(512, 150)     # where nn.Conv2d(512, 150, 1) stood
logits = classifier(features)                            # inference: the context logits
outputs = classifier(features, labels)                   # training
losses = cacseg.ContextLoss()(outputs, labels)           # named terms and their "total"
"""

from cacseg import functional, ops, variants
from cacseg.classifier import ContextAwareClassifier, ContextLogits
from cacseg.losses import ContextLoss
from cacseg.ops import upsampled_cross_entropy

__version__ = "0.1.0"

__all__ = [
    "ContextAwareClassifier",
    "ContextLogits",
    "ContextLoss",
    "__version__",
    "functional",
    "ops",
    "upsampled_cross_entropy",
    "variants",
]
