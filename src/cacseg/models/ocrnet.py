"""OCRNet: every pixel looks at one vector for each class, gathered by a first, coarse segmentation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg.models.layers import ConvNormAct, concatenate_levels


class OCRNet(nn.Module):
    """Object-contextual representations (Yuan et al., 2020): pyramid and region logits in, features out.

    Unlike the other heads it needs the logits of a first stage, its soft object regions, at inference too.

    Args:
        in_channels: channels of each level of the pyramid; all are resized to the finest and concatenated.
        channels: channels d of the features.
        key_channels: channels in which pixels and regions are compared.
    """

    def __init__(self, in_channels: Sequence[int], channels: int = 512, *, key_channels: int = 256) -> None:
        super().__init__()
        self.reduce = ConvNormAct(sum(in_channels), channels, 3)
        self.query = nn.Sequential(ConvNormAct(channels, key_channels, 1), ConvNormAct(key_channels, key_channels, 1))
        self.key = nn.Sequential(ConvNormAct(channels, key_channels, 1), ConvNormAct(key_channels, key_channels, 1))
        self.value = ConvNormAct(channels, key_channels, 1)
        self.expand = ConvNormAct(key_channels, channels, 1)
        self.fuse = ConvNormAct(2 * channels, channels, 1)

    def forward(self, pyramid: Sequence[Tensor], region_logits: Float[Tensor, "b n h w"]) -> Float[Tensor, "b d h w"]:
        pixels = self.reduce(concatenate_levels(pyramid))
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
