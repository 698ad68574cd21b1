"""An image in whatever form a caller has it: a path, a picture, an array, a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cacseg.runtime.bands import Pixels, bands_of_array, read_image
from cacseg.runtime.decode import MAX_PIXELS, max_bytes, upright
from cacseg.runtime.files import read_file
from cacseg.runtime.result import Bytes


def as_image(image: Any, bands: int | None = None, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Red, green, blue, [H, W, 3], of whatever holds an image; or its bands, float32 [H, W, bands]."""
    if isinstance(image, str | Path):
        content, _ = read_file(Path(image).expanduser(), max_bytes(max_pixels, bands))
        return read_image(content, str(image), bands, max_pixels)
    if bands is not None:
        return bands_of_array(image, "the image", bands)
    if isinstance(image, Image.Image):
        return upright(image)
    if type(image).__module__.partition(".")[0] == "torch":
        image = _to_pixels(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(f"an image is a path, a PIL image, an array or a tensor; got {type(image).__name__}.")
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4) or 0 in image.shape:
        raise ValueError(f"an array must be an image [H, W, 3] or [H, W] of at least 1 pixel; got {image.shape}.")
    if np.issubdtype(image.dtype, np.floating):
        if not np.isfinite(image).all() or image.min() < 0.0 or image.max() > 1.0:
            raise ValueError(
                f"floating-point pixels must be from 0 to 1; got {image.min()} to {image.max()}. Give bytes, and leave "
                "normalising to the model."
            )
        image = (image * 255.0).round().astype(np.uint8)
    if image.dtype != np.uint8:
        raise TypeError(f"pixels must be bytes (uint8), or from 0 to 1 in floating point; got {image.dtype}.")
    image = image[..., :3] if image.shape[2] > 1 else np.repeat(image, 3, axis=2)
    return np.ascontiguousarray(image)


def _to_pixels(image: Any) -> Bytes:
    """A tensor [3, H, W] (or [1, H, W]) of bytes, or of values from 0 to 1, as an image [H, W, c]."""
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4):
        raise ValueError(f"a tensor must be an image [3, H, W]; got {tuple(image.shape)}.")
    image = image.detach().cpu().permute(1, 2, 0)
    return np.ascontiguousarray((image.float() if image.is_floating_point() else image).numpy())  # numpy has no bf16
