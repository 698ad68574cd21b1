"""Data sets read in place, and the transforms of image and labels together."""

from cacseg.data.sample import Colour, Sample, SegmentationData

__all__ = ["Colour", "Sample", "SegmentationData"]
