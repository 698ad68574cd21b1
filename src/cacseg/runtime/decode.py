"""Decodes the bytes of a file into an image; an OSError names a file that cannot be read."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from cacseg.runtime.opencv import cv2

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".npy")
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")  # Pillow's names of the same

NUMPY_START = b"\x93NUMPY"
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

_limit_lock = threading.Lock()


class TooLargeError(OSError):
    """An image with more pixels than are allowed."""


def decode_image(content: bytes, where: str) -> npt.NDArray[np.uint8]:
    """Red, green, blue, [H, W, 3], turned upright where the file says how it was held (EXIF).

    16 bits are cut to the upper 8, grey is repeated, transparency is dropped. OpenCV reads it where it is installed,
    else Pillow, to the same values.
    """
    if not content:
        raise OSError(f"{where} is empty (0 bytes). Copy it again.")
    if cv2 is None:
        return _decode_with_pillow(content, where)
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:  # more pixels than OpenCV takes
        raise OSError(f"{where} cannot be read ({error.err or error}).") from error
    if image is None:
        raise OSError(_unreadable(content, where))
    return np.asarray(image, np.uint8)


def _unreadable(content: bytes, where: str) -> str:
    if content.startswith((NUMPY_START, *TIFF_STARTS)):
        return (
            f"{where} is damaged, truncated, or has no 8-bit colours ({len(content)} bytes). Floats, 16 bits and other "
            "bands need a model trained with data.bands=NUMBER (see `cacseg data check --bands NUMBER`)."
        )
    return f"{where} is damaged, truncated or no image ({len(content)} bytes). Copy it again, or remove it."


def _decode_with_pillow(content: bytes, where: str) -> npt.NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(content), formats=IMAGE_FORMATS) as picture:
            return upright(picture)
    except Image.DecompressionBombError as error:
        width, height = _read_size(io.BytesIO(content))
        raise OSError(
            f"{where} is too large: {width}x{height} pixels, and Pillow decodes at most "
            f"{2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6:.0f} megapixels. Install OpenCV (pip install "
            "opencv-python-headless), or make it a tiled TIFF and use --tile."
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise OSError(_unreadable(content, where)) from error


def upright(picture: Image.Image) -> npt.NDArray[np.uint8]:
    """A picture of Pillow's as `decode_image` gives it."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # 16 bits, for which Pillow has no conversion
        values = (np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8)
        return np.repeat(values[..., None], 3, axis=2)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return np.ascontiguousarray(np.asarray(picture)[..., :3])
    return np.array(picture.convert("RGB"))


def count_pixels(path: Path) -> int:
    """By the header, however many they are; 0 where it cannot be read."""
    try:
        with path.open("rb") as file:
            width, height = _read_size(file)
    except (OSError, SyntaxError, ValueError):
        return 0
    return width * height


def check_pixels(content: bytes, where: str, limit: int) -> None:
    """Refuses what is no image, or by its header has more than `limit` pixels, before anything is decoded."""
    try:
        width, height = _read_size(io.BytesIO(content))
    except (OSError, SyntaxError, ValueError) as error:
        known = ", ".join(IMAGE_FORMATS)
        raise OSError(f"{where} is damaged or no image ({len(content)} bytes). Give one of {known}.") from error
    check_size(width, height, where, limit)


def check_size(width: int, height: int, where: str, limit: int) -> None:
    if width * height > limit:
        message = f"{where} has {width}x{height} pixels, more than {limit / 1e6:g} megapixels. Make it smaller."
        raise TooLargeError(message)


def _read_size(file: IO[bytes]) -> tuple[int, int]:
    """Width and height by the header. Pillow's limit, which is one for all threads, is lifted while it is read."""
    with _limit_lock:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            with Image.open(file, formats=IMAGE_FORMATS) as picture:
                return picture.size
        finally:
            Image.MAX_IMAGE_PIXELS = limit
