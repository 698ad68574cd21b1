"""What the overlap of logits with labels of their size needs, a tile of rows at a time.

Three sums for each class are all that the forward pass keeps. The gradient depends on them all, so the backward pass
takes the softmax of each tile again; no float32 map of the probabilities stays until then.
"""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from cacseg.functional._precision import widen
from cacseg.ops._choice import with_gradient
from cacseg.ops.interpolation import tile_elements


def _overlap_sums(logits: Tensor, fitted: Tensor) -> Tensor:
    """For each class the probabilities on its pixels, on all pixels, and how many pixels it has: [3, n].

    logits [b, n, *spatial] and labels [b, *spatial], or points [P, n] and [P]; labels are -1 where they take no part.
    """
    tiles = _tiles(logits, fitted, *_split(logits))
    return reduce(torch.add, (sums_of(probabilities, targets, dim=1) for probabilities, targets in tiles))


def _overlap_sums_backward(of_sums: Tensor, logits: Tensor, fitted: Tensor) -> Tensor:
    """The gradient of the logits."""
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    size, rows = _split(logits)
    for of_tile, tile in zip(gradient.split(size, rows), _tiles(logits, fitted, size, rows), strict=True):
        of_tile.copy_(of_scores(of_sums, *tile, dim=1))
    return gradient


def _split(logits: Tensor) -> tuple[int, int]:
    """How many rows a tile has, and the dimension that they lie along."""
    rows = 2 if logits.ndim > 2 else 0
    return max(1, tile_elements(logits.device) * logits.shape[rows] // logits.numel()), rows


def _tiles(logits: Tensor, fitted: Tensor, size: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each tile its probabilities, 0 where ignored, and its labels, there -1."""
    dtype = widen(logits[:0]).dtype
    parts = (one.split(size, rows) for one in (logits, fitted[:, None]))
    for scores, targets in zip(*parts, strict=True):
        yield scores.softmax(dim=1, dtype=dtype).masked_fill_(targets < 0, 0.0), targets


def sums_of(probabilities: Tensor, targets: Tensor, dim: int) -> Tensor:
    """The three sums of a tile, [3, n], from probabilities that it spends. The classes are dimension `dim`.

    A pixel's value is written to its class and then summed: atomic additions would come in any order.
    """
    pixels = [one for one in range(probabilities.ndim) if one != dim]
    own = targets.clamp_min(0)
    on_own = probabilities.gather(dim, own)  # 0 where ignored
    answered = probabilities.sum(pixels)
    shared = probabilities.zero_().scatter_(dim, own, on_own).sum(pixels)
    there = probabilities.scatter_(dim, own, (targets >= 0).to(probabilities.dtype)).sum(pixels)
    return torch.stack([shared, answered, there])


def of_scores(of_sums: Tensor, probabilities: Tensor, targets: Tensor, dim: int) -> Tensor:
    """The gradient of a tile's scores, 0 where ignored, whatever the sums' gradients are.

    Where the sums' gradients give a pixel of class y the gradient g_k = of_answered_k + [k = y] of_shared_k for its
    probability q_k, its score has that of softmax, q_k (g_k - sum_j q_j g_j).
    """
    of_shared, of_answered, _ = of_sums
    own = targets.clamp_min(0)
    everywhere = of_answered.view(-1, *[1] * (probabilities.ndim - dim - 1))
    of_probabilities = everywhere.expand_as(probabilities).contiguous()
    of_probabilities.scatter_(dim, own, (of_answered + of_shared)[own])
    gradient = torch._softmax_backward_data(of_probabilities, probabilities, dim, probabilities.dtype)
    return gradient.masked_fill_(targets < 0, 0.0)


overlap_sums_operator = torch.library.custom_op("cacseg::overlap_sums", mutates_args=())(_overlap_sums)
overlap_sums_backward_operator = torch.library.custom_op("cacseg::overlap_sums_backward", mutates_args=())(
    _overlap_sums_backward
)


@overlap_sums_operator.register_fake
def _(logits: Tensor, fitted: Tensor) -> Tensor:
    return logits.new_empty(3, logits.shape[1], dtype=widen(logits[:0]).dtype)


@overlap_sums_backward_operator.register_fake
def _(of_sums: Tensor, logits: Tensor, fitted: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(run: Any, ctx: Any, of_sums: Tensor) -> tuple[Any, ...]:
    return run(of_sums, *ctx.saved_tensors), None


overlap_sums = with_gradient(
    overlap_sums_operator,
    _overlap_sums,
    _setup_context,
    _backward,
    overlap_sums_backward_operator,
    _overlap_sums_backward,
)
