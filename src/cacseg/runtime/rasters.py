"""Windows of TIFF files: as red, green and blue bytes, or band by band in the units of the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def import_rasterio() -> Any:
    try:
        import rasterio
    except ModuleNotFoundError as error:
        message = "bands of TIFF files, and their tiles, need rasterio, which is not installed: pip install rasterio"
        raise ModuleNotFoundError(message, name=error.name) from error
    return rasterio


def check_colours(dataset: Any) -> None:
    kinds = set(dataset.dtypes)
    if kinds != {"uint8"} or dataset.count == 2:
        raise ValueError(
            f"{dataset.name} has {dataset.count} band(s) of {', '.join(sorted(kinds))}; the model takes bytes in one "
            "band (grey, or colours of a palette) or in three (red, green, blue). Convert it, or train a model with "
            f"data.bands={dataset.count}."
        )


def read_colours(dataset: Any, window: Any = None) -> npt.NDArray[np.uint8]:
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


def read_bands(dataset: Any, window: Any = None) -> npt.NDArray[np.float32]:
    """[c, h, w], values as stored; NaN where the file says that a pixel has no data.

    That is its no-data value, band by band, or its mask; a band called alpha holds values like the others.
    """
    from rasterio.enums import MaskFlags

    values = dataset.read(window=window)
    if values.dtype.kind == "c":
        raise ValueError(f"{dataset.name} has complex numbers ({values.dtype}). Write their parts as bands.")
    found = np.asarray(values, np.float32)
    for band, flags in enumerate(dataset.mask_flag_enums):
        if MaskFlags.nodata in flags:
            found[band, values[band] == dataset.nodatavals[band]] = np.nan
        elif MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags:
            found[band, dataset.read_masks(band + 1, window=window) == 0] = np.nan
    found[~np.isfinite(found)] = np.nan
    return found
