"""Convolutions of a whole pyramid, resized to its finest level and concatenated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg.models.layers import ConvNormAct, resize

# The products that resize run at about half the speed of a convolution (two Xeon cores, torch 2.13).
SLOWNESS = 2.0


class PyramidConvNormAct(ConvNormAct):
    """`ConvNormAct` of `concatenate_levels(pyramid)`; on a CPU in float32 in fewer operations."""

    always_joined = False  # True computes it as most code does, for comparisons

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size)

    def forward(self, pyramid: Sequence[Tensor]) -> Float[Tensor, "b d h w"]:  # type: ignore[override]
        if _is_eager_float32(pyramid[0]) and self._reads_weight_alone():
            maps = convolve_levels(pyramid, self.conv.weight)
        else:
            maps = self.conv(concatenate_levels(pyramid))
        return F.relu(self.norm(maps), inplace=True)

    def _reads_weight_alone(self) -> bool:
        """Whether the convolution is as it was made: not wrapped, fused with a normalisation, or watched by hooks."""
        conv = self.conv
        hooks = (conv._forward_hooks, conv._forward_pre_hooks, conv._backward_hooks, conv._backward_pre_hooks)
        return not self.always_joined and type(conv) is nn.Conv2d and conv.bias is None and not any(hooks)


def _is_eager_float32(maps: Tensor) -> bool:
    """On a CPU, and neither compiled, exported nor under autocast."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    on_cpu = maps.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return on_cpu and maps.dtype == torch.float32 and not traced


def concatenate_levels(pyramid: Sequence[Tensor]) -> Tensor:
    """All levels at the size of the first, the finest, concatenated over their channels."""
    size = pyramid[0].shape[2:]
    return torch.cat([pyramid[0], *(resize(level, size) for level in pyramid[1:])], dim=1)


def convolve_levels(pyramid: Sequence[Tensor], weight: Float[Tensor, "o d k k"]) -> Float[Tensor, "b o h w"]:
    """A convolution of the concatenated levels that keeps their size; its kernel is odd.

        F.conv2d(concatenate_levels(pyramid), weight, padding=k // 2)

    Each tap of the kernel is a 1x1 convolution. It commutes with the interpolation, so coarse levels are convolved at
    their own size, and their k * k answers resized, shifted and added. UPerNet's last convolution takes 0.37 of its
    products (512 channels, images of 512x512), those that resize included.
    """
    kernel, size = weight.shape[-1], pyramid[0].shape[2:]
    parts = weight.split([maps.shape[1] for maps in pyramid], dim=1)
    levels = list(zip(pyramid, parts, strict=True))
    apart = [_pays(maps, size, kernel) for maps in pyramid]
    if not any(apart):
        return F.conv2d(concatenate_levels(pyramid), weight, padding=kernel // 2)
    joined = [level for level, is_apart in zip(levels, apart, strict=True) if not is_apart]  # the first among them
    maps, weights = concatenate_levels([maps for maps, _ in joined]), torch.cat([part for _, part in joined], dim=1)
    total = F.conv2d(maps, weights, padding=kernel // 2).contiguous()
    for (maps, part), is_apart in zip(levels, apart, strict=True):
        if is_apart:
            _add_convolved(total, maps, part)
    return total


def _pays(maps: Tensor, size: Sequence[int], kernel: int) -> bool:
    """Whether the products saved are more than those that resize, both for each output channel and pixel."""
    (height, width), (low_height, low_width) = size, maps.shape[2:]
    saved = kernel**2 * maps.shape[1] * (1.0 - low_height * low_width / (height * width))
    return saved > SLOWNESS * (kernel**2 * low_width * low_height / height + kernel * low_height)


def _add_convolved(
    total: Float[Tensor, "b o h w"], maps: Float[Tensor, "b d h2 w2"], weight: Float[Tensor, "o d k k"]
) -> None:
    """total += F.conv2d(resize(maps, total.shape[2:]), weight, padding=k // 2), in place."""
    b, o, height, width = total.shape
    low_height, low_width = maps.shape[2:]
    kernel = weight.shape[-1]
    rows = _shifted_interpolation(low_height, height, kernel, maps).flatten(0, 1).T  # [h, k * h2]
    columns = _shifted_interpolation(low_width, width, kernel, maps)
    wide: Tensor | None = None
    for taps, matrix in zip(weight.unbind(3), columns, strict=True):  # one column of the kernel at a time
        taps = taps.transpose(1, 2).reshape(1, o * kernel, -1)
        answers = torch.bmm(taps.expand(b, -1, -1), maps.flatten(2)).view(-1, low_width)  # [b * o * k * h2, w2]
        wide = answers @ matrix if wide is None else wide.addmm_(answers, matrix)
    assert wide is not None
    total.view(b * o, height, width).baddbmm_(rows.expand(b * o, -1, -1), wide.view(b * o, kernel * low_height, width))


def _shifted_interpolation(low: int, high: int, kernel: int, like: Tensor) -> Float[Tensor, "k low high"]:
    """For each tap the matrix that resizes a line from `low` to `high` and shifts it to the tap, with zeros beyond."""
    eye = torch.eye(low, dtype=like.dtype, device=like.device)[None]
    resized = F.interpolate(eye, size=high, mode="linear", align_corners=False)[0]
    reach = kernel // 2
    return torch.stack([F.pad(resized, (reach - tap, tap - reach)) for tap in range(kernel)])
