"""An image in whatever form a caller has it: a path, a picture, an array, a tensor."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cacseg.runtime.bands import Pixels, bands_of_array, read_image
from cacseg.runtime.decode import MAX_PIXELS, as_bytes, max_bytes, upright
from cacseg.runtime.files import read_file
from cacseg.runtime.result import Bytes
from cacseg.runtime.video import is_video


def as_image(image: Any, bands: int | None = None, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Red, green, blue, [H, W, 3], of whatever holds an image; or its bands, float32 [H, W, bands]."""
    if isinstance(image, str | Path):
        path = Path(image).expanduser()
        _check_path(path)
        content, _ = read_file(path, max_bytes(max_pixels, bands))
        return read_image(content, str(image), bands, max_pixels)
    if image is None:
        raise TypeError(
            "an image is a path, a PIL image, an array or a tensor; got None, as cv2.imread gives of what it cannot "
            "read. Pass the path itself."
        )
    if bands is not None:
        return bands_of_array(image, "the image", bands)
    if isinstance(image, Image.Image):
        return upright(image)
    if type(image).__module__.partition(".")[0] == "torch":
        image = _to_pixels(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(
            f"an image is a path, a PIL image, an array or a tensor; got {type(image).__name__}. Pass several as a "
            "list."
        )
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4) or 0 in image.shape:
        remedy = " Pass several as a list: list(images)." if image.ndim == 4 else ""
        if image.ndim == 3 and image.shape[0] in (1, 3, 4):
            remedy = " Put channels last: image.transpose(1, 2, 0)."
        raise ValueError(
            f"an array must be an image [H, W, 3] or [H, W] of at least 1 pixel; got {image.shape}.{remedy}"
        )
    if np.issubdtype(image.dtype, np.floating):
        if not np.isfinite(image).all() or image.min() < 0.0 or image.max() > 1.0:
            raise ValueError(
                f"floating-point pixels must be from 0 to 1; got {image.min()} to {image.max()}. Give bytes, and leave "
                "normalising to the model."
            )
        image = (image * 255.0).round().astype(np.uint8)
    if image.dtype == bool or (image.dtype.kind == "u" and image.dtype.itemsize == 2):
        image = as_bytes(image)
    if image.dtype != np.uint8:
        raise TypeError(
            f"pixels must be uint8, uint16, bool, or from 0 to 1 in floating point; got {image.dtype}. Of values up to "
            "255: image.astype(np.uint8)."
        )
    colours = image[..., :3] if image.shape[2] > 1 else np.repeat(image, 3, axis=2)
    return np.array(colours, order="C")  # a copy: the caller's own may change


def _check_path(path: Path) -> None:
    kind = "a folder" if path.is_dir() else "a video" if is_video(path) else ""
    if kind:
        raise (IsADirectoryError if path.is_dir() else ValueError)(
            f"an image must be one file; {path} is {kind}. Pass a list of files, or use `cacseg predict` or "
            f"predictor.stream({str(path)!r})."
        )
    if not os.path.lexists(path):
        listed = f"sorted(glob.glob({str(path)!r}))"
        hint = f" Of a pattern pass the list of its files: {listed}." if glob.has_magic(str(path)) else ""
        raise FileNotFoundError(f"an image must be a file that is there; there is no {path.absolute()}.{hint}")


def _to_pixels(image: Any) -> Bytes:
    """A tensor [3, H, W] (or [1, H, W]) of bytes, or of values from 0 to 1, as an image [H, W, c]."""
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4):
        remedy = " Pass several as a list: list(images)." if image.ndim == 4 else ""
        if image.ndim == 3 and image.shape[2] in (1, 3, 4):
            remedy = " Put channels first: image.permute(2, 0, 1)."
        raise ValueError(f"a tensor must be an image [3, H, W]; got {tuple(image.shape)}.{remedy}")
    image = image.detach().cpu().permute(1, 2, 0)
    return np.ascontiguousarray((image.float() if image.is_floating_point() else image).numpy())  # numpy has no bf16
