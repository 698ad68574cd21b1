"""Writes a raster by whole blocks: a block that is written twice takes its compressed size twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cacseg.engine.tiles import Box

BLOCK = 256  # pixels a side


class BlockWriter:
    """Collects the parts of an image's only band, and writes each block when all of its pixels are there.

    In memory are the blocks that are begun: for parts that come in bands from the top, one row of blocks and one tile.
    """

    def __init__(self, file: Any, dtype: str) -> None:
        self.file, self.dtype = file, dtype
        self._begun: dict[tuple[int, int], tuple[npt.NDArray[Any], int]] = {}  # the pixels, and how many are missing

    def write(self, box: Box, values: npt.NDArray[Any]) -> None:
        for top in range(box.top // BLOCK * BLOCK, box.bottom, BLOCK):
            for left in range(box.left // BLOCK * BLOCK, box.right, BLOCK):
                self._fill(top, left, box, values)

    def _fill(self, top: int, left: int, box: Box, values: npt.NDArray[Any]) -> None:
        bottom, right = min(top + BLOCK, self.file.height), min(left + BLOCK, self.file.width)
        shape = bottom - top, right - left
        pixels, missing = self._begun.pop((top, left), None) or (np.empty(shape, self.dtype), shape[0] * shape[1])
        first, last = max(top, box.top), min(bottom, box.bottom)
        start, end = max(left, box.left), min(right, box.right)
        found = values[first - box.top : last - box.top, start - box.left : end - box.left]
        pixels[first - top : last - top, start - left : end - left] = found
        missing -= found.size
        if missing:
            self._begun[top, left] = pixels, missing
        else:
            self.file.write(pixels, 1, window=((top, bottom), (left, right)))
