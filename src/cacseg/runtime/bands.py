"""Images of any number of bands, in the units of their files: 16 bits, floats, measurements.

They are float32 [H, W, c]. A pixel with a value that is not finite, or that its file calls no data, is NaN in that
band: its label is ignored, the network sees the mean of the band there, and its prediction is 255.
"""

from __future__ import annotations

import io
import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from cacseg.runtime.colours import Picture
from cacseg.runtime.decode import (
    MAX_PIXELS,
    NUMPY_START,
    TooLargeError,
    check_header,
    check_size,
    decode_image,
    is_opencvs,
    open_picture,
    raise_limit,
)
from cacseg.runtime.headers import TIFF_STARTS
from cacseg.runtime.opencv import cv2
from cacseg.runtime.rasters import import_rasterio, read_bands

Bands = npt.NDArray[np.float32]  # [H, W, c]
Pixels = npt.NDArray[Any]  # uint8 [H, W, 3], red, green, blue; or Bands
NO_DATA = 255  # in masks
SHOWN = (2.0, 98.0)  # percentiles of a band that are shown as black and white


def read_image(content: bytes, where: str, bands: int | None, max_pixels: int = MAX_PIXELS) -> Pixels:
    """As a model of so many bands takes it; None: red, green and blue bytes."""
    if bands is None:
        return decode_image(content, where, max_pixels)
    return decode_bands(content, where, bands, max_pixels)


def without_data(mask: npt.NDArray[np.uint8], image: Pixels) -> npt.NDArray[np.uint8]:
    """The mask, 255 where the image has no data."""
    empty = no_data(image)
    return mask if empty is None else np.where(empty, np.uint8(NO_DATA), mask)


def decode_bands(content: bytes, where: str, bands: int, max_pixels: int = MAX_PIXELS) -> Bands:
    """A TIFF, a .npy of [H, W], [H, W, c] or [c, H, W], or a picture, with exactly so many bands.

    What has more than `max_pixels` by its header, or other bands, is refused before anything is decoded.
    """
    if not content:
        raise OSError(f"{where} is empty (0 bytes). Copy it again.")
    is_array, is_tiff = content.startswith(NUMPY_START), content.startswith(TIFF_STARTS)
    size = (0, 0) if is_array or is_tiff else check_header(content, where, max_pixels)
    try:
        if is_array:
            found = _from_numpy(content, where, bands, max_pixels)
        elif is_tiff:
            found = _from_tiff(content, where, bands, max_pixels)
        else:
            found = _from_picture(content, size)
    except (ModuleNotFoundError, TooLargeError, _OtherBandsError, MemoryError):
        raise
    except Exception as error:  # of many types: those of GDAL, OpenCV and Pillow
        reason = " ".join(str(error).split())[:200]
        message = f"{where} is damaged, truncated or no image of bands ({len(content)} bytes: {reason})."
        raise OSError(f"{message} Copy it again, or remove it.") from error
    return checked_bands(found, where, bands)


def checked_bands(values: npt.NDArray[Any], where: str, bands: int) -> Bands:
    """[H, W] or [H, W, c] as float32 with so many bands; values that are not finite are NaN."""
    found = values[..., None] if values.ndim == 2 else values
    if found.ndim != 3 or 0 in found.shape or found.dtype.kind not in "biuf":
        raise ValueError(f"{where} must hold numbers [H, W, bands]; it has {values.dtype} {values.shape}.")
    _check_count(found.shape[2], where, bands)
    found = np.ascontiguousarray(found, np.float32)
    finite = np.isfinite(found)
    return found if finite.all() else np.where(finite, found, np.float32(np.nan))


class _OtherBandsError(ValueError):
    """A file with another number of bands."""


def _check_count(found: int, where: str, bands: int) -> None:
    if found != bands:
        raise _OtherBandsError(
            f"{where} has {found} band(s), and {bands} are expected (data.bands, or those of the model). Write a file "
            "with these bands, or train with the other number."
        )


def bands_of_array(image: Any, where: str, bands: int) -> Bands:
    """Of a picture, an array [H, W], [H, W, bands] or [bands, H, W], or a tensor, which has its bands first."""
    is_tensor = type(image).__module__.partition(".")[0] == "torch"
    values = image.detach().cpu().float().numpy() if is_tensor else np.asarray(image)
    if values.ndim == 3 and values.shape[0] == bands and (is_tensor or values.shape[2] != bands):
        values = values.transpose(1, 2, 0)
    found = checked_bands(values, where, bands)
    return found.copy() if np.may_share_memory(found, values) else found  # the caller's own may change


def no_data(image: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
    """[H, W], pixels without a value in some band; None where there are none."""
    if image.dtype == np.uint8:
        return None
    found = np.isnan(image).any(axis=2)
    return found if found.any() else None


def as_picture(image: npt.NDArray[Any]) -> Picture:
    """To look at: bytes as they are; of bands the first three, or the first as grey, each from dark to bright."""
    if image.dtype == np.uint8:
        return image
    shown = image[..., :3] if image.shape[2] >= 3 else image[..., :1]
    picture = np.zeros((*shown.shape[:2], 3), np.uint8)
    for band in range(3):
        values = shown[..., min(band, shown.shape[2] - 1)]
        seen = values[np.isfinite(values)]
        if seen.size:
            low, high = np.percentile(seen, SHOWN)
            scaled = (values - low) / max(float(high - low), 1e-12)
            picture[..., band] = np.nan_to_num(np.clip(scaled, 0.0, 1.0), nan=0.0) * 255.0
    return picture


def _from_numpy(content: bytes, where: str, bands: int, max_pixels: int) -> npt.NDArray[Any]:
    shape, kind = _numpy_header(content)
    is_first = len(shape) == 3 and shape[2] != bands and shape[0] == bands
    if len(shape) in (2, 3):
        height, width = shape[1:] if is_first else shape[:2]
        check_size((width, height), where, max_pixels)
    if math.prod(shape) * kind.itemsize > len(content):
        raise OSError(f"its header says {kind} {shape}, more than the file holds")
    try:
        values: npt.NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, TypeError) as error:
        raise OSError(f"numpy reads no {kind} {shape} from it") from error
    return values.transpose(1, 2, 0) if is_first else values


def _numpy_header(content: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type, from which numpy would take its memory. Its own errors advise unpickling: not passed on."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    except Exception as error:  # of many types, as the damage will have it
        raise OSError("it has no header of a .npy file") from error
    if kind.hasobject:
        raise OSError("it holds objects, no numbers")
    return shape, kind


def _from_tiff(content: bytes, where: str, bands: int, max_pixels: int) -> npt.NDArray[Any]:
    rasterio = import_rasterio()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.MemoryFile(content) as memory, memory.open(driver="GTiff") as dataset:
            check_size((dataset.width, dataset.height), where, max_pixels)
            _check_count(dataset.count, where, bands)
            if dataset.width * dataset.height * bands > max_pixels:  # of 4 bytes each
                raise TooLargeError(
                    f"{where} has {dataset.width}x{dataset.height} pixels of {bands} bands, more than "
                    f"{max_pixels / 1e6:g} million values. {raise_limit(where)}"
                )
            return read_bands(dataset).transpose(1, 2, 0)


def _from_picture(content: bytes, size: tuple[int, int]) -> npt.NDArray[Any]:
    """Of the bits and channels that the file has; red, green and blue in this order."""
    if is_opencvs(size):
        read = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
        if read is None:
            raise OSError("OpenCV does not read it")
        order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}
        return read if read.ndim == 2 else read[..., order.get(read.shape[2], list(range(read.shape[2])))]
    with open_picture(io.BytesIO(content)) as picture:
        if picture.mode in ("RGB", "RGBA") and "16" in str(getattr(picture, "tile", "")):
            raise OSError("colours of 16 bits need OpenCV: pip install opencv-python-headless")
        return np.array(picture)
