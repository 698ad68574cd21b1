"""timm's HRNet with the reference's way of bringing coarse branches up to finer ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg.models.layers import resize


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
        return [
            self._fuse(layers, maps, target.shape[2:]) for layers, target in zip(self.fuse_layers, maps, strict=True)
        ]

    def _fuse(self, layers: nn.ModuleList, maps: list[Tensor], size: torch.Size) -> Tensor:
        terms = [layer(source) for layer, source in zip(layers, maps, strict=True)]
        terms = [term if term.shape[2:] == size else resize(term, size) for term in terms]
        return F.relu(sum(terms[1:], terms[0]))


def fuse_bilinearly(net: nn.Module) -> nn.Module:
    """Replaces every exchange module of a timm HRNet, in place; the names of its parameters stay."""
    for name in ("stage2", "stage3", "stage4"):
        stage: Any = net.get_submodule(name)
        for index in range(len(stage)):
            stage[index] = FusedBranches(stage[index])
    return net
