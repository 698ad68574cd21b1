"""timm's HRNet, MobileNetV2 and Swin Transformer, changed to compute what the reference's do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg.models.layers import fit, missing_to_multiple

Pair = tuple[int, int]


class FusedBranches(nn.Module):
    """One of timm's exchange modules, its branches and fusing layers taken over under their own names.

    timm upsamples by nearest neighbours and by whole factors, which fits neither the reference's weights nor
    sizes that are no multiple of 32. The reference upsamples bilinearly by the whole factor, then resizes what
    came out one row or column too large.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.branches = module.branches
        self.fuse_layers = module.fuse_layers
        for layer in self.fuse_layers.modules():
            if isinstance(layer, nn.Upsample):
                layer.mode, layer.align_corners = "bilinear", False

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        maps = [branch(branch_maps) for branch, branch_maps in zip(self.branches, maps, strict=True)]
        fused = []
        for index, (layers, target) in enumerate(zip(self.fuse_layers, maps, strict=True)):
            terms = [layer(source) for layer, source in zip(layers, maps, strict=True)]
            coarser = (fit(term, target.shape[2:]) for term in terms[index + 1 :])
            terms = [*terms[: index + 1], *coarser]
            fused.append(F.relu(sum(terms[1:], terms[0])))
        return fused


def fuse_bilinearly(net: nn.Module) -> nn.Module:
    """Replaces every exchange module of a timm HRNet, in place; the names of its parameters stay."""
    for name in ("stage2", "stage3", "stage4"):
        stage: Any = net.get_submodule(name)
        for index in range(len(stage)):
            stage[index] = FusedBranches(stage[index])
    return net


def dilate_first_blocks(net: nn.Module, output_stride: int) -> None:
    """In place: a dilated MobileNetV2 as the reference has it, where only the first block of a stage dilates.

    In timm's, every block dilates by the strides that were left out before it, so that each weight reads what it read
    when it was trained: every fourth feature at a stride of 8 is a feature at a stride of 32. Here the first blocks of
    the fourth and sixth stage dilate twice as far, and most others read a finer map than they were trained on.
    """
    blocks: Any = net.get_submodule("blocks")
    for stage, stride in zip(blocks, (2, 4, 8, 16, 16, 32, 32), strict=True):  # strides without dilation
        for index, block in enumerate(stage):
            dilation = max(1, stride // output_stride) if index == 0 else 1
            if block.conv_dw.stride == (1, 1):
                block.conv_dw.dilation = block.conv_dw.padding = (dilation, dilation)


class Swin(nn.Module):
    """A timm Swin as a pyramid: images [b, c, H, W] of any size in, four maps [b, d, h, w] out.

    Takes timm's layers over under their own names, so timm's weights fit. Four things are the reference's: images
    are padded to a multiple of the patch, windows are padded first and rolled second (see `windowed_attention`),
    each map that leaves has a LayerNorm of its own, and maps leave as NCHW.

    Args:
        net: a timm `SwinTransformer`, built with `always_partition=True` so that windows keep their size.
        levels: the maps that are normalised, those that somebody reads: a normalisation that nobody reads would
            be a parameter without a gradient.
    """

    def __init__(self, net: nn.Module, levels: Collection[int] = (0, 1, 2, 3)) -> None:
        super().__init__()
        stages: Any = net.layers
        self.patch_embed: Any = net.patch_embed
        self.layers = nn.ModuleList(SwinStage(stage) for stage in stages)
        channels = [stage.blocks[0].dim for stage in stages]
        self.norms = nn.ModuleDict({str(level): nn.LayerNorm(channels[level]) for level in sorted(levels)})

    def forward(self, images: Float[Tensor, "b c H W"]) -> list[Tensor]:
        patch = self.patch_embed.patch_size
        below, right = (missing_to_multiple(side, patch[i]) for i, side in enumerate(images.shape[2:]))
        images = F.pad(images, (0, right, 0, below))
        x = self.patch_embed.norm(self.patch_embed.proj(images).permute(0, 2, 3, 1))  # [b, h, w, d] from here on
        pyramid = []
        for level, stage in enumerate(self.layers):
            x = stage(x)
            out = self.norms[str(level)](x) if str(level) in self.norms else x
            pyramid.append(out.permute(0, 3, 1, 2).contiguous())
        return pyramid


class SwinStage(nn.Module):
    """A stage of timm's Swin: patch merging, then blocks whose windows are plain and shifted in turn."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self.window: Pair = stage.blocks[0].window_size
        self.shift: Pair = (self.window[0] // 2, self.window[1] // 2)
        self.downsample = stage.downsample
        self.blocks = nn.ModuleList(SwinBlock(block) for block in stage.blocks)

    def forward(self, x: Float[Tensor, "b h w d"]) -> Float[Tensor, "b h2 w2 d2"]:
        x = x if isinstance(self.downsample, nn.Identity) else merge_patches(x, self.downsample)
        mask = shifted_window_mask(x, self.window, self.shift)
        for index, block in enumerate(self.blocks):
            x = block(x, mask if index % 2 else None)
        return x


class SwinBlock(nn.Module):
    """A block of timm's Swin: attention within windows, then an MLP, both residual."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.window: Pair = block.window_size
        self.shift: Pair = block.shift_size
        self.norm1, self.attn, self.drop_path1 = block.norm1, block.attn, block.drop_path1
        self.norm2, self.mlp, self.drop_path2 = block.norm2, block.mlp, block.drop_path2

    def forward(self, x: Float[Tensor, "b h w d"], mask: Tensor | None) -> Float[Tensor, "b h w d"]:
        x = x + self.drop_path1(windowed_attention(self.norm1(x), self.attn, self.window, self.shift, mask))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


def merge_patches(x: Float[Tensor, "b h w d"], layer: Any) -> Float[Tensor, "b h2 w2 d2"]:
    """What timm's layer computes of each 2x2 patches, an odd map padded; written so that exporters can follow it."""
    x = pad_to_multiple(x, (2, 2))
    patches = x.unflatten(2, (x.shape[2] // 2, 2)).unflatten(1, (x.shape[1] // 2, 2))  # [b, h2, 2, w2, 2, d]
    return layer.reduction(layer.norm(patches.permute(0, 1, 3, 4, 2, 5).flatten(3)))


def windowed_attention(
    x: Float[Tensor, "b h w d"], attention: nn.Module, window: Pair, shift: Pair, mask: Tensor | None
) -> Float[Tensor, "b h w d"]:
    """Attention within (shifted) windows of a map of any size: pad, roll, attend, roll back, crop.

    The order matters where the size is no multiple of the window. timm rolls and then pads, so the padding lies
    in other windows and the seam of the roll is not where the mask has it; the reference's weights were trained
    with the padding in the map before it is rolled.
    """
    b, h, w, d = x.shape
    x = pad_to_multiple(x, window)
    x = x.roll((-shift[0], -shift[1]), dims=(1, 2)) if any(shift) else x
    windows = attention(partition(x, window), mask)  # [b * windows, area, d]
    rows, columns = x.shape[1] // window[0], x.shape[2] // window[1]
    x = copied(windows.view(b, rows, columns, *window, d).transpose(2, 3)).view(x.shape)
    x = x.roll(shift, dims=(1, 2)) if any(shift) else x
    if torch.compiler.is_compiling():  # exporters cannot tell that a slice ends within the map
        return F.pad(x, (0, 0, 0, w - x.shape[2], 0, h - x.shape[1]))
    return x[:, :h, :w]


def pad_to_multiple(x: Float[Tensor, "b h w d"], multiple: Pair) -> Float[Tensor, "b h2 w2 d"]:
    """Zeros below and to the right."""
    below, right = (missing_to_multiple(side, multiple[i]) for i, side in enumerate(x.shape[1:3]))
    return F.pad(x, (0, 0, 0, right, 0, below))


def partition(x: Float[Tensor, "b h w d"], window: Pair) -> Float[Tensor, "windows area d"]:
    """The windows of a map of whole windows, row by row."""
    b, h, w, d = x.shape
    rows, columns = h // window[0], w // window[1]
    x = copied(x.view(b, rows, window[0], columns, window[1], d).transpose(2, 3))
    return x.view(b * rows * columns, window[0] * window[1], d)


def copied(x: Tensor) -> Tensor:
    """`x.contiguous()`, but without a look at the strides, which exporters would take for a condition on the size."""
    return x.clone(memory_format=torch.contiguous_format)


def shifted_window_mask(x: Float[Tensor, "b h w d"], window: Pair, shift: Pair) -> Float[Tensor, "windows area area"]:
    """0 between pixels that lie together in the map, -100 between those that only the roll brought together."""

    def band(axis: int) -> Tensor:  # 0: whole windows; 1 and 2: before and after the seam in the last window
        count = (x.shape[1 + axis] + window[axis] - 1) // window[axis]
        to_end = count * window[axis] - torch.arange(count * window[axis], device=x.device)
        return ((to_end <= window[axis]).long() + (to_end <= shift[axis]).long()).view(count, window[axis])

    rows, columns = band(0), band(1)
    region = 3 * rows[:, None, :, None] + columns[:, None]  # [rows, columns, window, window]
    region = region.view(rows.shape[0] * columns.shape[0], window[0] * window[1])
    return torch.where(region[:, :, None] == region[:, None, :], 0.0, -100.0).to(x.dtype)
