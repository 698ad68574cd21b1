"""Models of other libraries: where their logits are, and the sizes of images that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from cacseg.models.layers import crop, missing_to_multiple, resize

REFUSALS = (RuntimeError, ValueError, AssertionError, IndexError)  # that models raise for a size they do not take


def find_logits(output: Any) -> Tensor:
    """The logits [b, n, h, w] among what a model returns: a tensor, torchvision's "out", the logits of transformers."""
    found = output
    if isinstance(output, Mapping):
        found = next((output[key] for key in ("out", "logits") if key in output), None)
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    if isinstance(found, Tensor) and found.ndim == 4:
        return found
    arrived = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(output).__name__
    raise TypeError(
        f"a model must return logits [b, n, h, w], or a dict with them as 'out' or 'logits'; got {arrived}. Wrap it in "
        "a module that returns them."
    )


def find_multiple(
    run: Callable[..., Any],
    channels: int,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    fixed_size: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """The multiple that the sides of images must be of, tried at an odd size and up to 128; and the classes."""
    tries = [(1, (67, 93)), (32, (96, 64)), (64, (128, 64)), (128, (256, 128))]
    must = "any size, or of multiples of 32, 64 or 128"
    if fixed_size is not None:
        tries, must = [(1, fixed_size)], "the fixed size"
    error: Exception | None = None
    for multiple, size in tries:
        try:
            with torch.no_grad():
                images = torch.zeros(1, channels, *size, device=device, dtype=dtype)
                return multiple, find_logits(run(images)).shape[1]
        except REFUSALS as raised:
            error = error or raised
    tried = ", ".join(f"{width}x{height}" for _, (height, width) in tries)
    raise ValueError(
        f"a model must take images of {must}; this one takes none of {tried} ({type(error).__name__}: {error})."
    ) from error


def pad_to_multiple(images: Float[Tensor, "b c H W"], multiple: int) -> Float[Tensor, "b c H2 W2"]:
    """Normalised images with zeros, the mean colour, below and to the right."""
    below, right = (missing_to_multiple(side, multiple) for side in images.shape[2:])
    return F.pad(images, (0, right, 0, below))


def padded_logits(
    run: Callable[[Tensor], Any], images: Float[Tensor, "b c H W"], multiple: int
) -> Float[Tensor, "b n H W"]:
    """The logits at the size of the images, which the model sees padded to a multiple."""
    padded = pad_to_multiple(images, multiple)
    return crop(resize(find_logits(run(padded)).float(), padded.shape[2:]), images.shape[2:])
