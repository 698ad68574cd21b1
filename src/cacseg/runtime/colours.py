"""Labels in colours: palettes, overlays, index PNGs, JPEGs."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from cacseg._files import write_file
from cacseg.runtime.opencv import cv2

BACKGROUND = "background"
MAX_CLASSES = 255  # 0 to 254, in labels of 8 bits, of which one value is kept for what is ignored
Colour = tuple[int, int, int]
Picture = npt.NDArray[np.uint8]  # [H, W, 3], red, green, blue


def background_index(names: Sequence[str]) -> int | None:
    """The class that stands for what is labelled as nothing else."""
    return next((k for k, name in enumerate(names) if name.lower().strip("_") == BACKGROUND), None)


def distinct_colours(count: int) -> tuple[Colour, ...]:
    """As many colours, easy to tell apart while they are few; the same ones each time."""
    colours = []
    for k in range(count):
        hue = (k * 0.61803398875 + 0.58) % 1.0  # golden section: neighbours lie far apart
        saturation, value = (0.65, 0.90, 0.45)[k % 3], (0.95, 0.70, 0.85, 0.55, 0.62)[k % 5]
        red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return tuple(colours)


def colour(labels: npt.NDArray[np.uint8], palette: Sequence[Colour]) -> Picture:
    """[H, W] -> [H, W, 3]: each label in its colour; values outside of the palette (ignored ones) are black."""
    return _table(palette)[labels]


def overlay(image: Picture, labels: npt.NDArray[np.uint8], palette: Sequence[Colour], opacity: float = 0.5) -> Picture:
    """The image with its labels' colours over it; where the label is outside of the palette, the image alone."""
    if image.shape[:2] != labels.shape:
        raise ValueError(f"image and labels must have one size; got {image.shape[:2]} and {labels.shape}.")
    if not 0.0 <= opacity <= 1.0:
        raise ValueError(f"opacity must be in [0, 1]; got {opacity}.")
    mixed = np.asarray(Image.blend(Image.fromarray(image), Image.fromarray(colour(labels, palette)), opacity))
    return np.where((labels < len(palette))[..., None], mixed, image).astype(np.uint8, copy=False)


def save_index_png(
    path: str | Path, labels: npt.NDArray[np.uint8], palette: Sequence[Colour], *, overwrite: bool = False
) -> None:
    """Writes an index PNG (see `index_png`), atomically."""
    write_file(path, index_png(labels, palette), overwrite=overwrite)


def index_png(labels: npt.NDArray[np.uint8], palette: Sequence[Colour]) -> bytes:
    """A PNG whose pixel values are the labels and which shows as their colours."""
    if labels.dtype != np.uint8 or labels.ndim != 2:
        raise TypeError(f"labels must be uint8 [H, W]; got {labels.dtype} {labels.shape}.")
    picture = Image.fromarray(labels)  # mode L, which takes a palette
    picture.putpalette(_table(palette).tobytes())
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def jpeg(picture: Picture, quality: int = 92) -> bytes:
    """A JPEG of red, green, blue; by OpenCV where it is installed, since Pillow holds the interpreter's lock."""
    if cv2 is None:
        content = io.BytesIO()
        Image.fromarray(picture).save(content, "JPEG", quality=quality)
        return content.getvalue()
    blue_first = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    return bytes(cv2.imencode(".jpg", blue_first, [cv2.IMWRITE_JPEG_QUALITY, quality])[1])


def _table(palette: Sequence[Colour]) -> npt.NDArray[np.uint8]:
    if len(palette) > MAX_CLASSES:
        raise ValueError(f"a palette has at most {MAX_CLASSES} colours; got {len(palette)}.")
    table = np.zeros((256, 3), np.uint8)
    table[: len(palette)] = palette
    return table
