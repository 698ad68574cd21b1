"""Scaled cosines between features and classifiers. Lengths divide the finished products, so nothing is copied.

S = scale * A F / (|A| |F|)       with G = scale * dS / (|A| |F|)
dF = A^T G - F * sum_rows(dS S) / |F|^2
dA = G F^T - A * sum_pixels(dS S) / |A|^2
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cdiv
from cacseg.kernels.matmul import product

# Below this length a vector counts as zero and gives cosine 0 with gradient 0.
ZERO_NORM = tl.constexpr(1e-12)


@triton.jit
def _inverse_norms(values, out, d, length, values_b, values_d, values_l, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    squares = tl.zeros([BLOCK_D, BLOCK], tl.float32)
    pointer = values + batch * values_b + place.to(tl.int64)[None, :] * values_l
    for start in range(0, d, BLOCK_D):
        channel = start + tl.arange(0, BLOCK_D)
        mask = (channel < d)[:, None] & (place < length)[None, :]
        one = tl.load(pointer + channel.to(tl.int64)[:, None] * values_d, mask=mask, other=0.0).to(tl.float32)
        squares += one * one
    norm = tl.sqrt_rn(tl.sum(squares, axis=0))
    inverse = tl.where(norm > ZERO_NORM, 1.0 / tl.maximum(norm, ZERO_NORM), 0.0)
    tl.store(out + batch * length + place, inverse, mask=place < length)


@triton.jit
def _scale_gradient(
    gradient, scores, inverse_pixels, inverse_rows, scaled, of_pixels, of_rows,
    m, length, scale, rows_b,
    gradient_b, gradient_m, gradient_l, scores_b, scores_m, scores_l, scaled_b,
    ADD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """G, sum_rows(dS S) / |F|^2 and for each block of pixels sum_pixels(dS S) / |A|^2."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < length
    pixel = tl.load(inverse_pixels + batch * length + place, mask=inside, other=0.0)
    along_rows = tl.zeros([BLOCK], tl.float32)
    for start in range(0, m, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        mask = (row < m)[:, None] & inside[None, :]
        wide_row, wide_place = row.to(tl.int64)[:, None], place.to(tl.int64)[None, :]
        of_score = tl.load(
            gradient + batch * gradient_b + wide_row * gradient_m + wide_place * gradient_l, mask=mask, other=0.0
        ).to(tl.float32)
        score = tl.load(scores + batch * scores_b + wide_row * scores_m + wide_place * scores_l, mask=mask, other=0.0)
        both = of_score * score.to(tl.float32)
        length_of_row = tl.load(inverse_rows + batch * rows_b + row, mask=row < m, other=0.0)
        along_rows += tl.sum(both, axis=0)
        along_pixels = tl.sum(both, axis=1) * length_of_row * length_of_row
        part = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + batch
        tl.store(of_rows + part * m + row, along_pixels, mask=row < m)
        value = of_score * (scale * pixel)[None, :] * length_of_row[:, None]
        tl.store(scaled + batch * scaled_b + wide_row * length + wide_place, value.to(scaled.dtype.element_ty), mask)
    here = of_pixels + batch * length + place
    along_rows *= pixel * pixel
    if ADD:
        along_rows += tl.load(here, mask=inside, other=0.0)
    tl.store(here, along_rows, mask=inside)


def inverse_norms(values: Tensor) -> Tensor:
    """1 / |v| along dimension 1 of [b, d, length], in float32; 0 for a zero vector."""
    b, d, length = values.shape
    out = torch.empty(b, length, dtype=torch.float32, device=values.device)
    block = 64
    grid = (cdiv(length, block), b)
    _inverse_norms[grid](values, out, d, length, *values.stride(), BLOCK_D=32, BLOCK=block, num_warps=4)
    return out


def forward(features: Tensor, rows: Tensor, inverse_pixels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Scores [b, m, L] in the features' dtype and 1 / |A| [1 or b, m]; rows are [1 or b, m, d]."""
    inverse_rows = inverse_norms(rows.transpose(1, 2))
    scores = product(
        rows,
        features,
        dtype=features.dtype,
        scale=scale,
        row_scale=inverse_rows,
        column_scale=inverse_pixels,
    )
    return scores, inverse_rows


def scale_gradient(
    gradient: Tensor,
    scores: Tensor,
    inverse_pixels: Tensor,
    inverse_rows: Tensor,
    scaled: Tensor,
    of_pixels: Tensor,
    scale: float,
    add: bool,
) -> Tensor:
    """G into `scaled` [b, m, L], sum_rows(dS S) / |F|^2 into (or onto) `of_pixels` [b, L]; returns the parts of
    sum_pixels(dS S) / |A|^2, [parts, b, m]."""
    b, m, length = scores.shape
    block = 128
    grid = (cdiv(length, block), b)
    of_rows = torch.empty(grid[0], b, m, dtype=torch.float32, device=scores.device)
    _scale_gradient[grid](
        gradient, scores, inverse_pixels, inverse_rows, scaled, of_pixels, of_rows,
        m, length, scale, m * (inverse_rows.shape[0] > 1), *gradient.stride(), *scores.stride(), scaled.stride(0),
        ADD=add, BLOCK_M=16, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return of_rows
