"""Decodes the bytes of a file into an image; an OSError names a file that cannot be read."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from cacseg.runtime.headers import PNG_START, TIFF_STARTS, TiffKind, can_hold, has_whole_chunks, size_of, tiff_kind
from cacseg.runtime.opencv import cv2

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".npy")
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")  # Pillow's names of the same

WIDE_FORMATS = ("PNG", "PPM")  # whose 16 bits are Pillow's mode I, of 32, too

NUMPY_START = b"\x93NUMPY"
MAX_PIXELS = 256_000_000  # of a file that is decoded whole, unless a caller says otherwise
OPENCV_PIXELS, OPENCV_SIDE = 2**30, 2**20  # beyond which Pillow decodes
COLOURS = (1, 3, 4)  # bands that red, green and blue are made of
BYTES = 8  # of a value of a pixel, at most

RAISE_LIMIT = "Raise the limit with --max-pixels (data.max_pixels of a run, max_pixels= in Python)."
RAISE_TIFF = f"{RAISE_LIMIT[:-1]}, or predict by windows with --tile 1024."
RAISE_WHOLE = f"{RAISE_LIMIT} To predict it, give --tile 1024 too, or save it as a TIFF, which --tile reads by windows."

_limit_lock = threading.Lock()


class TooLargeError(OSError):
    """An image with more pixels than are allowed."""


def raise_limit(where: str) -> str:
    """What to do about an image that is too large: TIFFs are read by windows, all else is decoded whole."""
    return RAISE_TIFF if where.lower().endswith((".tif", ".tiff")) else RAISE_WHOLE


def max_bytes(max_pixels: int, bands: int | None = None) -> int:
    """Of a file with so many pixels at most."""
    return BYTES * max(2, bands or 0) * max_pixels + 2**20


def decode_image(content: bytes, where: str, max_pixels: int = MAX_PIXELS) -> npt.NDArray[np.uint8]:
    """Red, green, blue, [H, W, 3], turned upright where the file says how it was held (EXIF).

    16 bits are cut to the upper 8, grey is repeated, transparency is dropped. OpenCV reads it where it is installed,
    else Pillow, to the same values. What has more than `max_pixels` by its header is refused before it is decoded.
    """
    if not content:
        raise OSError(f"{where} is empty (0 bytes). Copy it again.")
    if content.startswith(TIFF_STARTS) and (kind := tiff_kind(content)) is not None and not kind.is_colour:
        raise OSError(_other_bands(kind, where))
    if content.startswith(NUMPY_START):
        raise OSError(_unreadable(content, where))
    size = check_header(content, where, max_pixels)
    if not is_opencvs(size):
        return _decode_with_pillow(content, where)
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error as error:
        raise OSError(f"{where} cannot be read ({error.err or error}).") from error
    if image is None:
        raise OSError(_unreadable(content, where))
    return np.asarray(image, np.uint8)


def is_opencvs(size: tuple[int, int]) -> bool:
    """Whether OpenCV is there and decodes images of this size."""
    return cv2 is not None and size[0] * size[1] <= OPENCV_PIXELS and max(size) <= OPENCV_SIDE


def check_header(content: bytes, where: str, max_pixels: int) -> tuple[int, int]:
    """Width and height by the header, before anything is decoded.

    Refuses more than `max_pixels`, a JPEG with far more than its bytes can hold, and what has no size.
    """
    size = size_of(content) or _size_by_pillow(io.BytesIO(content))
    if size is None:
        raise OSError(_unreadable(content, where))
    check_size(size, where, max_pixels)
    check_chunks(content, where)
    if not can_hold(content, size[0] * size[1]):
        raise OSError(
            f"{where} claims {size[0]}x{size[1]} pixels in {len(content)} bytes, which no JPEG can hold: it is "
            "damaged or truncated. Copy it again, or remove it."
        )
    return size


def check_chunks(content: bytes, where: str) -> None:
    """Refuses a PNG that is cut off."""
    if content.startswith(PNG_START) and not has_whole_chunks(content):
        raise OSError(_unreadable(content, where))


def _unreadable(content: bytes, where: str) -> str:
    if content.startswith(NUMPY_START):
        return (
            f"{where} is an array of numbers, which needs a model trained with data.bands=NUMBER (see `cacseg data "
            "check --bands NUMBER`). Give a picture, or use such a model."
        )
    if content.startswith(TIFF_STARTS) and (kind := tiff_kind(content)) is not None and kind.bands not in COLOURS:
        return _other_bands(kind, where)
    return f"{where} is damaged, truncated or no image ({len(content)} bytes). Copy it again, or remove it."


def _other_bands(kind: TiffKind, where: str) -> str:
    return (
        f"{where} has {kind}; images of colours have 1, 3 or 4 bands of 8 or 16 bits. Convert it, or use a model "
        f"trained with data.bands={kind.bands} (see `cacseg data check --bands {kind.bands}`)."
    )


def _decode_with_pillow(content: bytes, where: str) -> npt.NDArray[np.uint8]:
    try:
        with open_picture(io.BytesIO(content)) as picture:
            return _colours(picture)  # of at most 16 bits, by the header
    except MemoryError:
        raise
    except Exception as error:  # of many types, as the damage will have it
        raise OSError(_unreadable(content, where)) from error


def upright(picture: Image.Image) -> npt.NDArray[np.uint8]:
    """A picture of Pillow's as `decode_image` gives it."""
    if picture.mode == "I" and picture.format not in WIDE_FORMATS:
        low, high = picture.getextrema()
        raise ValueError(
            f"a picture must have 8 or 16 bits; this one has 32 (mode I, {low} to {high}), whose range nobody knows. "
            "Give an array: uint8 of values up to 255, uint16 of values up to 65535."
        )
    return _colours(picture)


def _colours(picture: Image.Image) -> npt.NDArray[np.uint8]:
    if picture.mode == "F":  # which Pillow would cut to 0 and 255
        raise ValueError("pixels in floating point are bands, no colours. Give bytes, or an array from 0 to 1.")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # 16 bits, for which Pillow has no conversion
        return np.repeat(as_bytes(np.asarray(picture).astype(np.uint16))[..., None], 3, axis=2)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return np.ascontiguousarray(np.asarray(picture)[..., :3])
    return np.array(picture.convert("RGB"))


def as_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Whole numbers of 16 bits cut to the upper 8; 255 for True."""
    return values.astype(np.uint8) * np.uint8(255) if values.dtype == bool else (values >> 8).astype(np.uint8)


def count_pixels(path: Path) -> int:
    """By the header, however many they are; 0 where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = _size_by_pillow(file)
    except OSError:
        return 0
    return 0 if size is None else size[0] * size[1]


def check_pixels(content: bytes, where: str, limit: int) -> None:
    """Refuses what is no image of the formats of `IMAGE_FORMATS`, or by its header has more than `limit` pixels."""
    size = _size_by_pillow(io.BytesIO(content), IMAGE_FORMATS)
    if size is None:
        known = ", ".join(IMAGE_FORMATS)
        raise OSError(f"{where} is damaged or no image ({len(content)} bytes). Give one of {known}.")
    check_size(size, where, limit, "Make it smaller.")
    if (decoded := size_of(content)) is not None:  # which may look elsewhere in a file that was made to deceive
        check_size(decoded, where, limit, "Make it smaller.")


def check_size(size: tuple[int, int], where: str, limit: int, remedy: str | None = None) -> None:
    """Refuses a width and a height of more than `limit` pixels; by default the remedy is that of images to predict."""
    width, height = size
    if width * height > limit:
        advice = raise_limit(where) if remedy is None else remedy
        raise TooLargeError(f"{where} has {width}x{height} pixels, more than {limit / 1e6:g} megapixels. {advice}")


def open_picture(file: IO[bytes], formats: tuple[str, ...] | None = IMAGE_FORMATS) -> Image.Image:
    """A picture of Pillow's, of any size: its limit, which is one for all threads, is lifted while it is opened."""
    with _limit_lock:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _size_by_pillow(file: IO[bytes], formats: tuple[str, ...] | None = None) -> tuple[int, int] | None:
    try:
        with open_picture(file, formats) as picture:
            return picture.size
    except MemoryError:
        raise
    except Exception:  # of many types, as the damage will have it
        return None
