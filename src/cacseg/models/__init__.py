"""The paper's segmentation models, and any of their heads on any hierarchical backbone of timm.

model = create_model("upernet_swin_tiny", num_classes=150)
logits = model(images)                     # [b, n, H, W]
losses = model.loss(images, labels)        # named terms and their "total"
model.save("model.safetensors")
model = load("model.safetensors")
"""

from cacseg.models.model import SegmentationModel
from cacseg.models.saved import load
from cacseg.models.zoo import MODELS, create_model

__all__ = ["MODELS", "SegmentationModel", "create_model", "load"]
