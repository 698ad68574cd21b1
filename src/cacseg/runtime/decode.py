"""Decodes the bytes of a file into an image; an OSError names a file that cannot be read."""

from __future__ import annotations

import io
import warnings

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from cacseg.runtime.opencv import cv2

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")  # Pillow's names of the same


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
        raise OSError(f"{where} is damaged, truncated or no image ({len(content)} bytes). Copy it again, or remove it.")
    return np.asarray(image, np.uint8)


def _decode_with_pillow(content: bytes, where: str) -> npt.NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(content), formats=IMAGE_FORMATS) as picture:
            return upright(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = f"{where} is damaged, truncated or no image ({len(content)} bytes). Copy it again, or remove it."
        raise OSError(reason) from error


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


def check_pixels(content: bytes, where: str, limit: int) -> None:
    """Refuses what is no image, or by its header has more than `limit` pixels, before anything is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # of another limit, Pillow's
            with Image.open(io.BytesIO(content), formats=IMAGE_FORMATS) as picture:
                width, height = picture.size
    except Image.DecompressionBombError as error:
        raise OSError(f"{where} has more than {limit / 1e6:g} megapixels. Make it smaller.") from error
    except (OSError, SyntaxError, ValueError) as error:
        known = ", ".join(IMAGE_FORMATS)
        raise OSError(f"{where} is damaged or no image ({len(content)} bytes). Give one of {known}.") from error
    if width * height > limit:
        raise OSError(f"{where} has {width}x{height} pixels, more than {limit / 1e6:g} megapixels. Make it smaller.")
