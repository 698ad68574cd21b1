"""Linear interpolation as numbers: where each output position lies between the inputs, and as small matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Elements of one upsampled tile, b * n * rows * columns. On a CPU: 2 MiB of float32, the second-level cache of a
# core. Elsewhere: 64 MiB, enough to fill a GPU, little beside one map of full resolution.
CPU_TILE_ELEMENTS = 2**19
GPU_TILE_ELEMENTS = 2**24
# Tables of so many sizes are kept: those of a training run repeat, and take a few KiB each. A recorded CUDA graph reads
# them where they lie, so it may be replayed until as many other sizes have come.
KEPT = 64
# Narrow tiles keep the interpolation matrices small: each column is mixed from a few dozen, not from all.
TILE_COLUMNS = 128


def positions(source: int, output: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """For each output position the input below it, and how much of the next one it takes; in float64."""
    position = torch.arange(output, dtype=torch.float64, device="cpu")  # whatever torch.device is the default
    if align_corners:
        position = position * ((source - 1) / (output - 1)) if output > 1 else position
    else:
        position = ((position + 0.5) * (source / output) - 0.5).clamp_min(0.0)
    low = position.floor().long().clamp_max(source - 1)
    return low, torch.where(low < source - 1, position - low, 0.0)


@lru_cache(maxsize=KEPT)
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
        tables.append((torch.searchsorted(low, torch.arange(source + 1, device="cpu")), low, share))
    start, low, share = (torch.stack(table) for table in zip(*tables, strict=True))
    most = int(start.diff().max())
    start, low, share = (table.to(device, non_blocking=True) for table in (start.int(), low.int(), share.float()))
    return start, low, share, most


class Span(NamedTuple):
    """A stretch of output positions along one axis, and the inputs it is interpolated from."""

    output: slice
    source: slice
    matrix: Tensor  # [output positions, source positions]


@lru_cache(maxsize=KEPT)
def interpolation_spans(
    source: int, output: int, step: int, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Span, ...]:
    """Linear interpolation from `source` to `output` positions, cut into spans of `step` positions."""
    low, high_share = positions(source, output, align_corners)  # on the CPU, so that slices need no synchronisation
    high = (low + 1).clamp_max(source - 1)
    spans = []
    for start in range(0, output, step):
        stop = min(start + step, output)
        first, last = int(low[start]), int(high[stop - 1])
        matrix = torch.zeros(stop - start, last + 1 - first, dtype=torch.float64, device="cpu")
        here = slice(start, stop)
        matrix.scatter_add_(1, low[here, None] - first, 1.0 - high_share[here, None])
        matrix.scatter_add_(1, high[here, None] - first, high_share[here, None])
        spans.append(Span(here, slice(first, last + 1), matrix.to(dtype).to(device, non_blocking=True)))
    return tuple(spans)


def tile_elements(device: torch.device) -> int:
    """How many elements of a map a tile should have there."""
    return CPU_TILE_ELEMENTS if device.type == "cpu" else GPU_TILE_ELEMENTS


def tile_spans(
    shape: Sequence[int], size: Sequence[int], align_corners: bool, dtype: torch.dtype, device: torch.device
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """The rows and the columns of the tiles in which logits [b, n, h, w] are upsampled to `size`."""
    b, n, h, w = shape
    elements = tile_elements(device)
    rows = max(1, elements // (b * n * min(TILE_COLUMNS, size[1])))
    return (
        interpolation_spans(h, size[0], rows, align_corners, dtype, device),
        interpolation_spans(w, size[1], TILE_COLUMNS, align_corners, dtype, device),
    )


def upsample_rows(down: Span, maps: Tensor) -> Tensor:
    """Of maps [b, n, h, w] the rows of a span, [rows, b, n, w]: one product, where a batched one is many small ones."""
    source = maps[:, :, down.source].movedim(2, 0).to(down.matrix.dtype)
    return (down.matrix @ source.reshape(len(source), -1)).view(-1, *source.shape[1:])


def add_to_rows(gradient: Tensor, down: Span, of_rows: Tensor) -> None:
    """The backward pass of `upsample_rows`: what the rows [rows, b, n, w] give to [b, n, h, w]."""
    of_source = down.matrix.T @ of_rows.reshape(len(of_rows), -1)
    gradient[:, :, down.source] += of_source.view(-1, *of_rows.shape[1:]).movedim(0, 2)
