"""UPerNet: pooled context on the coarsest level, then a feature pyramid down to the finest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cacseg.models.layers import ConvNormAct, PooledContext, concatenate_levels, resize


class UPerNet(nn.Module):
    """Unified perceptual parsing (Xiao et al., 2018): pyramid in, features at the finest level's size out.

    Args:
        in_channels: channels of each level of the pyramid; every level is read.
        channels: channels d of the features.
        bins: the sides of the grids that the coarsest level is averaged over.
    """

    def __init__(self, in_channels: Sequence[int], channels: int = 512, *, bins: Sequence[int] = (1, 2, 3, 6)) -> None:
        super().__init__()
        *finer, coarsest = in_channels
        self.pools = nn.ModuleList(PooledContext(coarsest, channels, side) for side in bins)
        self.bottleneck = ConvNormAct(coarsest + len(bins) * channels, channels, 3)
        self.laterals = nn.ModuleList(ConvNormAct(inputs, channels, 1) for inputs in finer)
        self.smooth = nn.ModuleList(ConvNormAct(channels, channels, 3) for _ in finer)
        self.fuse = ConvNormAct(len(in_channels) * channels, channels, 3)

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        *finer, coarsest = pyramid
        top = self.bottleneck(torch.cat([coarsest, *(pool(coarsest) for pool in self.pools)], dim=1))
        levels = [top]  # coarsest first: each finer level adds what stands above it
        for lateral, level in zip(reversed(self.laterals), reversed(finer), strict=True):
            levels.append(lateral(level) + resize(levels[-1], level.shape[2:]))
        smoothed = [smooth(level) for smooth, level in zip(self.smooth, reversed(levels[1:]), strict=True)]
        return self.fuse(concatenate_levels([*smoothed, top]))
