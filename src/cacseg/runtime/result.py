"""The prediction for one image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from cacseg._files import write_file
from cacseg.runtime.colours import Colour, Picture, index_png, jpeg, overlay

What = Literal["mask", "plain", "overlay", "confidence", "entropy"]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Result:
    """The class of each pixel of an image, and how sure the model is of it. All maps have the size of the image.

    `result.classes` is the share of each class that occurs, `result.plain` the mask of the fixed classifier, computed
    when it is first asked for; `result.overlay()` is a picture of Pillow's, `result.save("mask.png")` writes a file.
    A pickle holds no model: ask for `plain` before.
    """

    image: Picture = field(repr=False)
    mask: Bytes = field(repr=False)
    """[H, W], classes from 0 on; 255 where an image of bands has no data."""
    _confidence: Floats | None = field(repr=False)
    _entropy: Floats | None = field(repr=False)
    class_names: Sequence[str]
    palette: Sequence[Colour] = field(repr=False)
    _predict_plain: Callable[[], Bytes] = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predict_plain": _without_model}

    @property
    def confidence(self) -> Floats:
        """[H, W], the probability of the predicted class."""
        return _given(self._confidence, "confidence")

    @property
    def entropy(self) -> Floats:
        """[H, W], the entropy of the probabilities over that of a uniform guess: 0 is sure, 1 is uniform."""
        return _given(self._entropy, "entropy")

    @cached_property
    def plain(self) -> Bytes:
        return self._predict_plain()

    @property
    def classes(self) -> dict[str, float]:
        """The share of the image that each class has, the largest first; classes that do not occur are left out.

        Classes of one name count together. What has no data belongs to none.
        """
        counts = np.bincount(self.mask.ravel(), minlength=len(self.class_names))
        pixels = Counter[str]()
        for name, count in zip(self.class_names, counts.tolist(), strict=False):
            pixels[name] += count
        return {name: count / self.mask.size for name, count in pixels.most_common() if count}

    def overlay(self, opacity: float = 0.5, mask: Bytes | None = None) -> Image.Image:
        """The mask, or another one, in colours over the image."""
        return Image.fromarray(overlay(self.image, self.mask if mask is None else mask, self.palette, opacity))

    def save(self, path: str | Path, what: What | None = None, *, overwrite: bool = False) -> None:
        """Writes one picture, whole or not at all.

        Args:
            path: .png, or .jpg for overlays.
            what: "mask" or "plain" (an index PNG that shows in the palette's colours), "overlay", "confidence" or
                "entropy" (0 to 1 as 0 to 255). None is the mask for .png and the overlay for .jpg.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in (".png", ".jpg", ".jpeg"):
            raise ValueError(f"a result is saved as .png or .jpg; got {path}.")
        what = what or ("mask" if suffix == ".png" else "overlay")
        if suffix != ".png" and what != "overlay":
            raise ValueError(f"{what} is saved as .png, since JPEG changes values; got {path}.")
        if what in ("mask", "plain"):
            content = index_png(self.mask if what == "mask" else self.plain, self.palette)
        elif what == "overlay":
            picture = overlay(self.image, self.mask, self.palette)
            content = png(picture) if suffix == ".png" else jpeg(picture)
        elif what in ("confidence", "entropy"):
            content = png(to_integers(self.confidence if what == "confidence" else self.entropy))
        else:
            raise ValueError(f"what must be mask, plain, overlay, confidence or entropy; got {what!r}.")
        write_file(path, content, overwrite=overwrite)


def _without_model() -> Bytes:
    raise ValueError(
        "plain is computed by the model, which a pickle or a copy of a result does not hold. Ask for result.plain "
        "before, or predict the image again."
    )


def _given(values: Floats | None, name: str) -> Floats:
    if values is None:
        raise ValueError(
            f"the exported file gives classes alone, so there is no {name}. Export it with --output logits or "
            "probabilities."
        )
    return values


def to_integers(values: Floats, bits: int = 8) -> npt.NDArray[np.unsignedinteger]:
    """0 to 1 as 0 to the largest number of so many bits."""
    dtype = np.uint8 if bits == 8 else np.uint16
    return (np.clip(values, 0.0, 1.0) * (2**bits - 1)).round().astype(dtype)


def png(picture: npt.NDArray[np.unsignedinteger]) -> bytes:
    content = BytesIO()
    Image.fromarray(picture).save(content, "PNG")
    return content.getvalue()
