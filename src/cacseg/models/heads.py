"""The heads between backbone and classifier: a pyramid of maps in, features [b, channels, h, w] out.

`in_channels` are the channels of each level of the pyramid, the finest first; `channels` are d, those of the features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg.models.layers import ConvNormAct, PooledContext, SeparableConv, resize
from cacseg.models.levels import PyramidConvNormAct, concatenate_levels

DILATIONS = (12, 24, 36)  # of DeepLabV3+, for maps of stride 8 that are larger than the last of them
LOW_LEVEL_CHANNELS = 48  # to which DeepLabV3+ reduces the finest level
BINS = (1, 2, 3, 6)  # the sides of the grids that UPerNet averages the coarsest level over


class FCN(nn.Module):
    """Fully convolutional head (Long et al., 2015): convolutions on one level. Also the body of auxiliary heads.

    Args:
        level: the level that is read; None reads all of them, resized to the finest and concatenated.
        num_convs, kernel_size: the convolutions in a row.
        concat_input: whether one more convolution sees the input beside their output.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int = 512,
        *,
        level: int | None = 3,
        num_convs: int = 2,
        kernel_size: int = 3,
        concat_input: bool = True,
    ) -> None:
        super().__init__()
        self.level = level
        inputs = sum(in_channels) if level is None else in_channels[level]
        self.convs = nn.Sequential(
            *(ConvNormAct(channels if i else inputs, channels, kernel_size) for i in range(num_convs))
        )
        self.fuse = ConvNormAct(inputs + channels, channels, kernel_size) if concat_input else None

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        maps = concatenate_levels(pyramid) if self.level is None else pyramid[self.level]
        features = self.convs(maps)
        return features if self.fuse is None else self.fuse(torch.cat([maps, features], dim=1))


class DeepLabV3Plus(nn.Module):
    """Atrous separable convolutions (Chen et al., 2018) on the coarsest level, refined with the finest.

    Args:
        dilations: of the separable 3x3 convolutions beside the 1x1 convolution and the pooled image, in pixels of the
            coarsest map.
    """

    def __init__(
        self, in_channels: Sequence[int], channels: int = 512, *, dilations: Sequence[int] = DILATIONS
    ) -> None:
        super().__init__()
        low, deep = in_channels[0], in_channels[-1]
        dilated = (SeparableConv(deep, channels, dilation=dilation) for dilation in dilations)
        plain = [PooledContext(deep, channels, bins=1), ConvNormAct(deep, channels, 1)]
        self.branches = nn.ModuleList([*plain, *dilated])
        self.bottleneck = ConvNormAct(len(self.branches) * channels, channels, 3)
        self.low_level = ConvNormAct(low, LOW_LEVEL_CHANNELS, 1)
        self.refine = nn.Sequential(
            SeparableConv(channels + LOW_LEVEL_CHANNELS, channels), SeparableConv(channels, channels)
        )

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        deep = self.bottleneck(torch.cat([branch(pyramid[-1]) for branch in self.branches], dim=1))
        low = self.low_level(pyramid[0])
        return self.refine(torch.cat([resize(deep, low.shape[2:]), low], dim=1))


class UPerNet(nn.Module):
    """Unified perceptual parsing (Xiao et al., 2018): pooled context, then a feature pyramid to the finest level."""

    def __init__(self, in_channels: Sequence[int], channels: int = 512) -> None:
        super().__init__()
        *finer, coarsest = in_channels
        self.pools = nn.ModuleList(PooledContext(coarsest, channels, side) for side in BINS)
        self.bottleneck = ConvNormAct(coarsest + len(BINS) * channels, channels, 3)
        self.laterals = nn.ModuleList(ConvNormAct(inputs, channels, 1) for inputs in finer)
        self.smooth = nn.ModuleList(ConvNormAct(channels, channels, 3) for _ in finer)
        self.fuse = PyramidConvNormAct(len(in_channels) * channels, channels, 3)

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        *finer, coarsest = pyramid
        top = self.bottleneck(torch.cat([coarsest, *(pool(coarsest) for pool in self.pools)], dim=1))
        levels = [top]  # coarsest first: each finer level adds what stands above it
        for lateral, level in zip(reversed(self.laterals), reversed(finer), strict=True):
            levels.append(lateral(level) + resize(levels[-1], level.shape[2:]))
        smoothed = [smooth(level) for smooth, level in zip(self.smooth, reversed(levels[1:]), strict=True)]
        return self.fuse([*smoothed, top])


class OCRNet(nn.Module):
    """Object-contextual representations (Yuan et al., 2020): every pixel attends to one vector for each class.

    Unlike the other heads it needs the logits of a first stage, its soft object regions, at inference too.
    """

    def __init__(self, in_channels: Sequence[int], channels: int = 512) -> None:
        super().__init__()
        key_channels = channels // 2  # in which pixels and regions are compared
        self.reduce = PyramidConvNormAct(sum(in_channels), channels, 3)
        self.query = nn.Sequential(ConvNormAct(channels, key_channels, 1), ConvNormAct(key_channels, key_channels, 1))
        self.key = nn.Sequential(ConvNormAct(channels, key_channels, 1), ConvNormAct(key_channels, key_channels, 1))
        self.value = ConvNormAct(channels, key_channels, 1)
        self.expand = ConvNormAct(key_channels, channels, 1)
        self.fuse = ConvNormAct(2 * channels, channels, 1)

    def forward(self, pyramid: Sequence[Tensor], region_logits: Float[Tensor, "b n h w"]) -> Float[Tensor, "b d h w"]:
        pixels = self.reduce(pyramid)
        regions = gather_regions(pixels, region_logits)[..., None]  # [b, d, n, 1]: a map for the 1x1 convolutions
        context = attend(self.query(pixels), self.key(regions), self.value(regions))
        return self.fuse(torch.cat([self.expand(context), pixels], dim=1))


def gather_regions(pixels: Float[Tensor, "b d h w"], region_logits: Float[Tensor, "b n h w"]) -> Float[Tensor, "b d n"]:
    """The mean of the pixels in each soft region; a region is a softmax over space, not over classes."""
    shares = region_logits.flatten(2).softmax(dim=2).to(pixels.dtype)
    return torch.einsum("bdl,bnl->bdn", pixels.flatten(2), shares)


def attend(
    query: Float[Tensor, "b k h w"], key: Float[Tensor, "b k n 1"], value: Float[Tensor, "b k n 1"]
) -> Float[Tensor, "b k h w"]:
    """softmax(query key / sqrt(k)) value: for each pixel a mean of the regions' values."""
    pixels, keys, values = (maps.flatten(2).transpose(1, 2)[:, None] for maps in (query, key, value))  # [b, 1, :, k]
    context = F.scaled_dot_product_attention(pixels, keys, values)
    return context[:, 0].transpose(1, 2).unflatten(2, query.shape[2:])
