"""Blocks of a raster, each written once."""

import numpy as np

from cacseg.engine.blocks import BLOCK, BlockWriter
from cacseg.engine.tiles import Box


class File:
    """Takes what is written as rasterio does."""

    def __init__(self, height, width):
        self.height, self.width, self.windows = height, width, []
        self.pixels = np.zeros((height, width), np.uint8)

    def write(self, pixels, band, window):
        (top, bottom), (left, right) = window
        assert band == 1
        self.pixels[top:bottom, left:right] = pixels
        self.windows.append((top, left, bottom, right))


def test_parts_of_any_size_are_written_by_whole_blocks():
    height, width = 700, 1000
    image = np.random.default_rng(0).integers(0, 256, (height, width), np.uint8)
    file = File(height, width)
    writer = BlockWriter(file, "uint8")
    for top in range(0, height, 96):
        for left in range(0, width, 416):
            box = Box(top, left, min(top + 96, height), min(left + 416, width))
            writer.write(box, image[box.top : box.bottom, box.left : box.right])
    assert np.array_equal(file.pixels, image)
    whole = [
        (top, left, min(top + BLOCK, height), min(left + BLOCK, width))
        for top in range(0, height, BLOCK)
        for left in range(0, width, BLOCK)
    ]
    assert sorted(file.windows) == whole
