"""Images and masks as Python programs hold them: pictures of Pillow, arrays of numpy, tensors of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from cacseg._checks import first_few
from cacseg.data.label_map import IGNORE
from cacseg.runtime.bands import Pixels, bands_of_array
from cacseg.runtime.decode import upright

NORMALISED = "The model normalises its images: leave Normalize and conversions to float out."


def image_array(value: Any, where: str, bands: int | None = None) -> Pixels:
    """Red, green, blue, [H, W, 3], of a picture of Pillow's, or of whole numbers 0 to 255 as [H, W, 3] or [3, H, W].

    With `bands` float32 [H, W, bands], of numbers of any kind.
    """
    if bands is not None:
        return bands_of_array(value, f"the image of {where}", bands)
    if isinstance(value, Image.Image):
        return upright(value)
    array, kind = _as_array(value, "an image", where)
    if array.dtype.kind not in "iu":
        raise TypeError(f"an image has 8 bits, uint8; that of {where} is {kind} of {array.dtype}. {NORMALISED}")
    if array.dtype != np.uint8 and array.size and (array.min() < 0 or array.max() > 255):
        raise ValueError(
            f"an image has 8 bits, 0 to 255; that of {where} is {kind} of {array.min()} to {array.max()}. Scale it."
        )
    if array.ndim == 3 and array.shape[0] == 3 and (array.shape[2] != 3 or isinstance(value, torch.Tensor)):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise ValueError(
            f"an image is [H, W, 3] or [3, H, W], red, green, blue; that of {where} is {kind} of shape {array.shape}."
        )
    return np.ascontiguousarray(array, np.uint8)


def mask_array(value: Any, where: str) -> npt.NDArray[np.integer]:
    """The numbers of a mask, [H, W]; of a palette picture its indices."""
    if isinstance(value, Image.Image):
        if value.mode not in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
            raise TypeError(
                f"a mask holds the number of each pixel's class; that of {where} is a picture of mode {value.mode}. "
                "Convert its colours to numbers first."
            )
        value = np.array(value)
    array, kind = _as_array(value, "a mask", where)
    if array.dtype.kind not in "iub":
        raise TypeError(
            f"a mask holds whole numbers; that of {where} is {kind} of {array.dtype}. Leave conversions to float out."
        )
    shape = array.shape
    if array.ndim == 3 and 1 in (shape[0], shape[2]):
        array = array[0] if shape[0] == 1 else array[..., 0]
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"a mask is [H, W], a class for each pixel; that of {where} is {kind} of shape {shape}.")
    return array.astype(np.uint8) if array.dtype.kind == "b" else array


def labels_of(mask: npt.NDArray[np.integer], classes: int, ignored: int, where: str) -> npt.NDArray[np.uint8]:
    """Classes 0 to `classes` - 1, and IGNORE where the mask holds `ignored`; any other number is an error."""
    no_class = mask >= classes if mask.dtype.kind == "u" else (mask < 0) | (mask >= classes)
    wrong = no_class & (mask != ignored)
    if wrong.any():
        raise ValueError(
            f"a mask holds the classes 0 to {classes - 1}, and {ignored} where a pixel is ignored; that of {where} has "
            f"{first_few(np.unique(mask[wrong]).tolist())} in {int(wrong.sum())} of {mask.size} pixels. Is the number "
            "of classes, or ignore_index, another?"
        )
    return np.where(no_class, IGNORE, mask).astype(np.uint8) if ignored != IGNORE else mask.astype(np.uint8)


def _as_array(value: Any, what: str, where: str) -> tuple[npt.NDArray[Any], str]:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy(), "a tensor"
    if isinstance(value, np.ndarray):
        return value, "an array"
    kind = type(value).__name__
    hint = " Of Hugging Face datasets: dataset.with_format('numpy')." if isinstance(value, list) else ""
    raise TypeError(f"{what} is a picture of Pillow's, an array or a tensor; that of {where} is a {kind}.{hint}")
