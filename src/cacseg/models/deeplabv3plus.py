"""DeepLabV3+: dilated convolutions of several reaches on the coarsest level, refined with the finest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cacseg.models.layers import ConvNormAct, PooledContext, SeparableConv, resize

DILATIONS = (12, 24, 36)  # for maps of stride 8 that are larger than the last of them


class DeepLabV3Plus(nn.Module):
    """Encoder-decoder with atrous separable convolutions (Chen et al., 2018): pyramid in, features out.

    Args:
        in_channels: channels of each level of the pyramid; the first and the last level are read.
        channels: channels d of the features.
        dilations: of the separable 3x3 convolutions beside the 1x1 convolution and the pooled image, in pixels of the
            coarsest map.
        low_level_channels: to which the finest level is reduced.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int = 512,
        *,
        dilations: Sequence[int] = DILATIONS,
        low_level_channels: int = 48,
    ) -> None:
        super().__init__()
        deep, low = in_channels[-1], in_channels[0]
        self.branches = nn.ModuleList(
            [
                PooledContext(deep, channels, bins=1),
                ConvNormAct(deep, channels, 1),
                *(SeparableConv(deep, channels, dilation=dilation) for dilation in dilations),
            ]
        )
        self.bottleneck = ConvNormAct(len(self.branches) * channels, channels, 3)
        self.low_level = ConvNormAct(low, low_level_channels, 1)
        self.refine = nn.Sequential(
            SeparableConv(channels + low_level_channels, channels), SeparableConv(channels, channels)
        )

    def forward(self, pyramid: Sequence[Tensor]) -> Tensor:
        deep = self.bottleneck(torch.cat([branch(pyramid[-1]) for branch in self.branches], dim=1))
        low = self.low_level(pyramid[0])
        return self.refine(torch.cat([resize(deep, low.shape[2:]), low], dim=1))
