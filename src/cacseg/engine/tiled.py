"""Images in memory, shown by tiles: in parts, so that no scores of a whole image are, or as any network shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from cacseg.engine.inference import Inference, Networks, Tiling, networks_of, normalise_views
from cacseg.engine.tiles import Box, Part, TiledImage
from cacseg.models.model import SegmentationModel


@dataclass(frozen=True)
class TensorSource:
    """A normalised image."""

    images: Float[Tensor, "1 c H W"]

    @property
    def height(self) -> int:
        return self.images.shape[2]

    @property
    def width(self) -> int:
        return self.images.shape[3]

    def read(self, box: Box) -> Tensor:
        return self.images[:, :, box.top : box.bottom, box.left : box.right]


@dataclass(frozen=True)
class BytesSource:
    """An image whose tiles are normalised as they are read, and moved to the device."""

    image: UInt8[Tensor, "3 H W"]
    normalised: Callable[[Tensor], Float[Tensor, "1 3 h w"]]

    @property
    def height(self) -> int:
        return self.image.shape[1]

    @property
    def width(self) -> int:
        return self.image.shape[2]

    def read(self, box: Box) -> Tensor:
        return self.normalised(self.image[:, box.top : box.bottom, box.left : box.right])


def comes_in_parts(inference: Inference, view: UInt8[Tensor, "3 h w"], size: tuple[int, int]) -> bool:
    """Whether the scores of tiles are those of the answer: neither resized nor averaged."""
    return inference.tiling is not None and not inference.averages and tuple(view.shape[1:]) == tuple(size)


def parts_of(
    model: SegmentationModel,
    view: UInt8[Tensor, "3 h w"],
    outputs: Sequence[str],
    tiling: Tiling,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    device: torch.device,
) -> Iterator[Part]:
    """The scores of the named outputs, each pixel once."""
    dtype = model.classifier.weight.dtype
    source = BytesSource(view, lambda pixels: normalise_views([[pixels]], mean, std, dtype, device)[0])
    return TiledImage(model, source, tiling, outputs).parts()


def networks_for(model: SegmentationModel, names: Sequence[str], inference: Inference) -> Networks:
    """The named outputs, by tiles where these are asked for."""
    if inference.tiling is None:
        return networks_of(model, names)
    return tiled_networks(model, names, inference.tiling)


def tiled_networks(model: SegmentationModel, names: Sequence[str], tiling: Tiling) -> Networks:
    """The named outputs of the model by tiles, in the form that `predict_each` takes: at the size of the images."""

    def logits(images: Tensor, labels: Tensor | None) -> Iterator[Tensor]:
        totals: list[Tensor] = []
        for place, image in enumerate(images.split(1)):
            for box, scores in TiledImage(model, TensorSource(image), tiling, names).parts():
                if not totals:
                    totals = [one.new_empty((len(images), one.shape[0], *images.shape[2:])) for one in scores]
                for total, one in zip(totals, scores, strict=True):
                    total[place, :, box.top : box.bottom, box.left : box.right] = one
        yield from totals

    return logits
