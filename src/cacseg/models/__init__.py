"""The paper's segmentation models, and any of their heads on any hierarchical backbone of timm."""

from cacseg.models.model import SegmentationModel
from cacseg.models.saved import load
from cacseg.models.zoo import MODELS, create_model

__all__ = ["MODELS", "SegmentationModel", "create_model", "load"]
