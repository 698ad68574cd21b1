"""Linear interpolation along one axis, as numbers: where each output position lies between the inputs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def positions(source: int, output: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """For each output position the input below it, and how much of the next one it takes; in float64."""
    position = torch.arange(output, dtype=torch.float64)
    if align_corners:
        position = position * ((source - 1) / (output - 1)) if output > 1 else position
    else:
        position = ((position + 0.5) * (source / output) - 0.5).clamp_min(0.0)
    low = position.floor().long().clamp_max(source - 1)
    return low, torch.where(low < source - 1, position - low, 0.0)


@lru_cache(maxsize=64)  # the sizes of a training run repeat; a few KiB each
def cells(
    source: int, output: int, align_corners: tuple[bool, ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The stretches between neighbouring inputs, a row of each table for each `align_corners`.

    The first output position of each cell, [m, source + 1]; the cell of each output position and its share of the far
    end, [m, output]; and the most positions that any cell has.
    """
    tables = []
    for one in align_corners:
        low, share = positions(source, output, one)
        tables.append((torch.searchsorted(low, torch.arange(source + 1)), low, share))
    start, low, share = (torch.stack(table) for table in zip(*tables, strict=True))
    most = int(start.diff().max())
    start, low, share = (table.to(device, non_blocking=True) for table in (start.int(), low.int(), share.float()))
    return start, low, share, most
