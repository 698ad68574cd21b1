"""The few layers that every decoder head is made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg.functional._precision import no_autocast, widen


def resize(maps: Float[Tensor, "b d h w"], size: Sequence[int]) -> Float[Tensor, "b d h2 w2"]:
    """Resizes bilinearly with align_corners=False, as everything in the models."""
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)


def fit(maps: Float[Tensor, "b d h w"], size: Sequence[int]) -> Float[Tensor, "b d h2 w2"]:
    """`resize` where the size is another. Exported sizes are symbols and cannot be compared: there it always runs."""
    fits = not torch.compiler.is_compiling() and maps.shape[2:] == tuple(size)
    return maps if fits else resize(maps, size)


def missing_to_multiple(side: int, multiple: int) -> int:
    """-side % multiple, written so that exporters know the sum to be a multiple."""
    return multiple * ((side + multiple - 1) // multiple) - side


def crop(maps: Float[Tensor, "b d h w"], size: Sequence[int]) -> Float[Tensor, "b d h2 w2"]:
    """The upper left part of maps, of a given size."""
    height, width = size
    if not torch.compiler.is_compiling():  # exported sizes are symbols and cannot be compared
        if maps.shape[2:] == (height, width):
            return maps
        if maps.shape[2] < height or maps.shape[3] < width:
            raise ValueError(f"maps must be at least {height}x{width}; got {maps.shape[2]}x{maps.shape[3]}.")
    return F.pad(maps, (0, width - maps.shape[3], 0, height - maps.shape[2]))


def crop_to_stride(maps: Float[Tensor, "b d h w"], size: Sequence[int], stride: int) -> Float[Tensor, "b d h2 w2"]:
    """Crops maps of padded images to the image; sizes are rounded up, as by strided convolutions."""
    return crop(maps, [(side + stride - 1) // stride for side in size])


def pool(maps: Float[Tensor, "b d h w"], output_size: int | tuple[int, int]) -> Float[Tensor, "b d i j"]:
    """F.adaptive_avg_pool2d; for compilers and exporters, which need its sizes fixed, as products with two matrices."""
    if not torch.compiler.is_compiling():
        return F.adaptive_avg_pool2d(maps, output_size)
    counts = (output_size, output_size) if isinstance(output_size, int) else output_size
    with no_autocast(maps):
        values = widen(maps)
        rows, columns = (pooling_matrix(*pair, values) for pair in zip(maps.shape[2:], counts, strict=True))
        return torch.einsum("bdhw,ih,jw->bdij", values, rows, columns).to(maps.dtype)


def pooling_matrix(length: int, bins: int, like: Tensor) -> Float[Tensor, "bins length"]:
    """What each place contributes to each bin: bin i is the mean from floor(i L / bins) to ceil((i + 1) L / bins)."""
    index, place = torch.arange(bins, device=like.device)[:, None], torch.arange(length, device=like.device)
    inside = ((place + 1) * bins > index * length) & (place * bins < (index + 1) * length)
    return inside.to(like.dtype) / inside.sum(1, keepdim=True)


class ConvNormAct(nn.Module):
    """Convolution without bias that keeps the size of the map, batch normalisation, ReLU."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        padding = dilation * (kernel_size // 2)
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, maps: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d2 h w"]:
        return F.relu(self.norm(self.conv(maps)), inplace=True)


class SeparableConv(nn.Module):
    """A 3x3 convolution of each channel by itself, then a 1x1 convolution over the channels."""

    def __init__(self, in_channels: int, out_channels: int, *, dilation: int = 1) -> None:
        super().__init__()
        self.depthwise = ConvNormAct(in_channels, in_channels, 3, dilation=dilation, groups=in_channels)
        self.pointwise = ConvNormAct(in_channels, out_channels, 1)

    def forward(self, maps: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d2 h w"]:
        return self.pointwise(self.depthwise(maps))


class PooledContext(nn.Module):
    """The map averaged over a grid of bins x bins cells, convolved, and spread over the map again."""

    def __init__(self, in_channels: int, out_channels: int, bins: int) -> None:
        super().__init__()
        self.bins = bins
        self.project = ConvNormAct(in_channels, out_channels, 1)

    def forward(self, maps: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d2 h w"]:
        pooled = pool(maps, self.bins)
        norm = self.project.norm  # synchronised normalisation is another class and sees the other devices' images
        if type(norm) is nn.BatchNorm2d and norm.training and pooled.shape[0] * self.bins**2 == 1:
            raise ValueError(
                "training needs at least 2 images a batch: this head averages an image into one pixel and normalises "
                "it over the batch; got a batch of 1. Use larger batches, model.synchronise_batch_norm() on several "
                "devices, or model.eval() for inference."
            )
        return resize(self.project(pooled), maps.shape[2:])
