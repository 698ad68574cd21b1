"""Data sets read in place, and the transforms of image and labels together."""

from cacseg.data.open import DATA_SETS, open_data
from cacseg.data.sample import Sample, SegmentationData
from cacseg.data.transforms import Crop, TestTransform, TrainTransform, normalise, start_worker

__all__ = [
    "DATA_SETS",
    "Crop",
    "Sample",
    "SegmentationData",
    "TestTransform",
    "TrainTransform",
    "normalise",
    "open_data",
    "start_worker",
]
