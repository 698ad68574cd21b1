"""The bands of a TIFF file as red, green and blue, as `decode_image` gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def check_bands(dataset: Any) -> None:
    kinds = set(dataset.dtypes)
    if kinds != {"uint8"} or dataset.count == 2:
        raise ValueError(
            f"{dataset.name} has {dataset.count} band(s) of {', '.join(sorted(kinds))}; images are bytes in one band "
            "(grey, or colours of a palette) or in three (red, green, blue). Convert it first."
        )


def read_colours(dataset: Any, window: Any) -> npt.NDArray[np.uint8]:
    """[3, h, w]: grey is repeated, a palette's colours are looked up, fewer bits are scaled to eight."""
    from rasterio.enums import ColorInterp

    if dataset.count >= 3:
        return np.asarray(dataset.read((1, 2, 3), window=window), np.uint8)
    values = dataset.read(1, window=window)
    if dataset.colorinterp[0] == ColorInterp.palette:
        colours = np.zeros((256, 3), np.uint8)
        for value, colour in dataset.colormap(1).items():
            colours[value] = colour[:3]
        return np.ascontiguousarray(colours[values].transpose(2, 0, 1))
    most = 2 ** int(dataset.tags(1, ns="IMAGE_STRUCTURE").get("NBITS", 8)) - 1
    grey = (values.astype(np.uint16) * 255 // most).astype(np.uint8)
    if dataset.tags(ns="IMAGE_STRUCTURE").get("MINISWHITE") == "YES":
        grey = 255 - grey
    return np.repeat(grey[None], 3, axis=0)
