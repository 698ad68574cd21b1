"""Decodes the bytes of a file into an image or raw label values; an OSError names a file that cannot be read."""

from __future__ import annotations

import io
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile

from cacseg.runtime.decode import MAX_PIXELS, TooLargeError, check_size, is_opencvs, open_picture
from cacseg.runtime.headers import PNG_START, has_whole_chunks, size_of

LABEL_SUFFIXES = (".png", ".bmp", ".tif", ".tiff")  # what keeps values exactly

RAISE_LABELS = (
    "Raise the limit with --max-pixels (data.max_pixels of a run), or cut image and labels into smaller ones."
)


class Labels(NamedTuple):
    """Raw values of a label file: one of the two. `palette` is that of a palette file, whose indices are the values."""

    indices: npt.NDArray[np.integer] | None = None  # [H, W]
    colours: npt.NDArray[np.uint8] | None = None  # [H, W, 3]
    palette: npt.NDArray[np.uint8] | None = None  # [256, 3] or less


def decode_labels(content: bytes, where: str, max_pixels: int = MAX_PIXELS) -> Labels:
    """Label values exactly as stored: palette files by index, low bit depths unscaled.

    What has more than `max_pixels` by its header is refused before it is decoded.
    """
    if not content:
        raise OSError(f"{where} is empty (0 bytes). Copy it again.")
    size = size_of(content) or (0, 0)  # of a format that labels should not have Pillow says it
    check_size(size, where, max_pixels, RAISE_LABELS)
    try:
        if content.startswith(PNG_START) and not has_whole_chunks(content):
            raise OSError(_damaged(content, where, ": it is cut off"))
        return _decode(content, where, max_pixels, is_opencvs(size))
    except (OSError, ValueError, MemoryError):
        raise
    except Exception as error:  # of many types, those of OpenCV and Pillow
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"{where} is damaged ({reason}). Copy it again, or remove it and its image.") from error


def _decode(content: bytes, where: str, max_pixels: int, by_opencv: bool) -> Labels:
    bits, kind = content[24:26] if content.startswith(PNG_START) and len(content) > 26 else (0, 0)
    if by_opencv and bits >= 8 and kind == 0:  # grey: OpenCV is the faster reader
        read = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
        if read is not None and read.ndim == 2:
            return Labels(indices=np.asarray(read, np.uint8 if bits == 8 else np.uint16))
    elif by_opencv and bits == 8 and kind == 2:  # red, green, blue
        read = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
        if read is not None:
            return Labels(colours=np.asarray(read, np.uint8))
    try:
        with open_picture(io.BytesIO(content), None) as picture:
            check_size(picture.size, where, max_pixels, RAISE_LABELS)
            if isinstance(picture, TiffImageFile):
                bits = max(picture.tag_v2.get(BITSPERSAMPLE, (1,)))
            picture.load()
            if picture.mode == "P":
                stored = np.array(picture.getpalette("RGB") or [], np.uint8).reshape(-1, 3)
                return Labels(indices=np.array(picture), palette=stored)
            if picture.mode == "1":
                return Labels(indices=np.asarray(picture).astype(np.uint8))
            if picture.mode in ("L", "I", "I;16", "I;16B", "I;16L"):
                values = np.array(picture)  # of its own: what Pillow shows cannot be written to
                # Grey of 2 or 4 bits is stretched to 0..255 on reading; the values are what was stored.
                stretch = {2: 85, 4: 17}.get(bits, 1) if kind == 0 else 1
                return Labels(indices=values if stretch == 1 else values // stretch)
            # Of 16 bits in several channels Pillow keeps the upper 8: all but the largest labels would read as 0.
            if picture.mode == "LA" and bits <= 8:
                return Labels(indices=np.array(picture)[..., 0].copy())
            if picture.mode in ("RGB", "RGBA") and bits <= 8:
                return Labels(colours=np.asarray(picture.convert("RGB")))
            mode = f"mode {picture.mode}" + (f" with {bits} bits a channel" if bits > 8 else "")
    except TooLargeError:
        raise
    except (OSError, SyntaxError, ValueError) as error:
        said = "" if isinstance(error, UnidentifiedImageError) else f": {error}"  # which names an address in memory
        raise OSError(_damaged(content, where, said)) from error
    raise ValueError(
        f"labels are grey or palette files, or RGB of 8 bits; {where} has {mode}. Convert it to an index PNG."
    )


def _damaged(content: bytes, where: str, said: str) -> str:
    return (
        f"{where} is damaged, truncated or no image ({len(content)} bytes{said}). Copy it again, or remove it and its "
        "image."
    )
