"""How the equations run on ragged batches, such as point clouds: `[N, d]` with offsets.

All images (clouds) of a batch lie one after the other in N rows; `offsets`, integers `[b + 1]`, say where:
image i is `features[offsets[i]:offsets[i + 1]]`. The functions of `cacseg.functional` come here when they
are given offsets; with images of equal size the result is that of the dense form.

The matrix products run over blocks of at most `BLOCK` rows that never straddle two images. Their number
depends on N and b alone, so nothing waits for the values of the offsets and nothing loops over images.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg.functional._precision import no_autocast, widen
from cacseg.functional.labels import labelled

BLOCK = 1024


def image_of_row(offsets: Int[Tensor, " b_plus_1"], rows: int) -> Int[Tensor, " N"]:
    """Which image each row belongs to."""
    return torch.searchsorted(offsets[1:].contiguous(), torch.arange(rows, device=offsets.device), right=True)


class Blocks(NamedTuple):
    """A packed batch cut into blocks of one image each."""

    row: Int[Tensor, "t k"]  # the row that stands at each place; 0 where the place is padding
    real: Float[Tensor, "t k"]  # 1 where the place holds a row, 0 where it is padding
    image: Int[Tensor, " t"]  # the image each block belongs to; blocks of padding alone: the last image
    place: Int[Tensor, " N"]  # where each row went, as an index into t * k


def cut_into_blocks(offsets: Int[Tensor, " b_plus_1"], rows: int, block: int = BLOCK) -> Blocks:
    """At most rows // block + b blocks: every image is cut on its own, its last block padded."""
    images = offsets.shape[0] - 1
    block = min(block, rows)
    total = rows // block + images
    ends = ((offsets.diff() + block - 1) // block).cumsum(0)  # of each image, counted in blocks
    index = torch.arange(total, device=offsets.device)
    image = torch.searchsorted(ends, index, right=True).clamp_max(images - 1)
    first = torch.cat([ends.new_zeros(1), ends])[image]  # the first block of the block's image
    start = offsets[image] + (index - first) * block
    row = start[:, None] + torch.arange(block, device=offsets.device)
    real = row < offsets[image + 1][:, None]

    image_rows = image_of_row(offsets, rows)
    within = torch.arange(rows, device=offsets.device) - offsets[image_rows]
    place = torch.cat([ends.new_zeros(1), ends])[image_rows] * block + within
    return Blocks(torch.where(real, row, 0), real.float(), image, place)


def oracle_prototypes(
    features: Float[Tensor, "N d"],
    labels: Int[Tensor, " N"],
    weight: Float[Tensor, "n d"],
    offsets: Int[Tensor, " b_plus_1"],
    *,
    pool_batch: bool,
    ignore_index: int,
) -> Float[Tensor, "images n d"]:
    """Eq. (1): means of the rows of each image and label, by adding each row to its group."""
    num_classes = weight.shape[0]
    labels, kept = labels.long(), labelled(labels, num_classes, ignore_index)
    groups = 1 if pool_batch else offsets.shape[0] - 1
    image = torch.zeros_like(labels) if pool_batch else image_of_row(offsets, features.shape[0])
    # One more group takes what has no label.
    group = torch.where(kept, image * num_classes + labels, groups * num_classes)
    with no_autocast(features):
        values = widen(features)
        sums = values.new_zeros(groups * num_classes + 1, features.shape[1]).index_add(0, group, values)
        counts = values.new_zeros(groups * num_classes + 1).index_add(0, group, torch.ones_like(values[:, 0]))
        sums, counts = sums[:-1].view(groups, num_classes, -1), counts[:-1].view(groups, num_classes, 1)
        return torch.where(counts > 0, sums / counts.clamp_min(1.0), weight.detach().to(sums.dtype))


def context_prototypes(
    features: Float[Tensor, "N d"],
    plain_logits: Float[Tensor, "N n"],
    offsets: Int[Tensor, " b_plus_1"],
    *,
    epsilon: float,
) -> Float[Tensor, "images n d"]:
    """Eq. (4): a softmax over the rows of each image, then one matrix product a block; 0 for an empty image."""
    images, rows = offsets.shape[0] - 1, features.shape[0]
    image = image_of_row(offsets, rows)
    with no_autocast(features):
        values = widen(features)
        log_probability = widen(plain_logits).log_softmax(dim=-1)
        share = _softmax_over_rows(log_probability, image, images, epsilon)
        blocks = cut_into_blocks(offsets, rows)
        share = share[blocks.row] * blocks.real[..., None].to(share.dtype)  # [t, k, n]
        sums = torch.einsum("tkn,tkd->tnd", share, values[blocks.row])
        return sums.new_zeros(images, *sums.shape[1:]).index_add(0, blocks.image, sums)


def _softmax_over_rows(scores: Tensor, image: Tensor, images: int, epsilon: float) -> Tensor:
    """exp(scores) / (sum over the rows of the same image + epsilon), column by column."""
    index = image[:, None].expand_as(scores)
    start = torch.full((images, scores.shape[1]), float("-inf"), dtype=scores.dtype, device=scores.device)
    largest = start.scatter_reduce(0, index, scores.detach(), "amax")
    powers = (scores - largest[image]).exp()
    sums = torch.zeros_like(start).index_add(0, image, powers)
    if epsilon > 0.0:
        sums = sums + epsilon * (-largest).exp()
    return powers / sums[image]


def dot_logits(
    features: Float[Tensor, "N d"], classifier: Float[Tensor, "#images n d"], offsets: Int[Tensor, " b_plus_1"]
) -> Float[Tensor, "N n"]:
    """Every row meets the classifier of its own image, one matrix product a block."""
    with no_autocast(features):
        values, rows = widen(features), widen(classifier)
        if rows.shape[0] == 1:
            return values @ rows[0].T
        blocks = cut_into_blocks(offsets, features.shape[0])
        scores = torch.einsum("tkd,tnd->tkn", values[blocks.row], rows[blocks.image])
        return scores.flatten(0, 1)[blocks.place]
