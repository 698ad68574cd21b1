"""FCN: convolutions on one level of the pyramid. Also the body of every auxiliary head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cacseg.models.layers import ConvNormAct, concatenate_levels


class FCN(nn.Module):
    """Fully convolutional head (Long et al., 2015): pyramid in, features [b, channels, h, w] out.

    Args:
        in_channels: channels of each level of the pyramid.
        channels: channels d of the features.
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
