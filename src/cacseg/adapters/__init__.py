"""Models of other libraries with a context-aware classifier.

model = convert(smp.Unet("resnet34", classes=19))
logits = model(images)                   # as before, from the context logits
losses = model.loss(images, labels)      # named terms and their "total"
model = restore(model)
"""

from cacseg.adapters.supported import SUPPORTED
from cacseg.adapters.swap import convert, restore

__all__ = ["SUPPORTED", "convert", "restore"]
