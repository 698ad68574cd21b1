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


@triton.jit
def inverse_of(square):
    """1 / |v| from |v|^2; 0 for a vector so short that it counts as zero and gives cosine 0 with gradient 0."""
    norm = tl.sqrt_rn(square)
    zero: tl.constexpr = 1e-12
    return tl.where(norm > zero, 1.0 / tl.maximum(norm, zero), 0.0)


@triton.jit
def _scale_branch(
    gradient, scores, inverse_rows, scaled, of_rows, pixel, place, inside, m, length, scale,
    gradient_m, gradient_l, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one classifier and image: writes G and sum_pixels(dS S) / |A|^2 of these pixels; returns sum_rows(dS S)."""
    along_rows = tl.zeros([BLOCK], tl.float32)
    for start in range(0, m, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        mask = (row < m)[:, None] & inside[None, :]
        wide_row, wide_place = row.to(tl.int64)[:, None], place.to(tl.int64)[None, :]
        of_score = tl.load(gradient + wide_row * gradient_m + wide_place * gradient_l, mask=mask, other=0.0)
        of_score = of_score.to(tl.float32)
        score = tl.load(scores + wide_row * length + wide_place, mask=mask, other=0.0)
        both = of_score * score.to(tl.float32)
        length_of_row = tl.load(inverse_rows + row, mask=row < m, other=0.0)
        along_rows += tl.sum(both, axis=0)
        tl.store(of_rows + row, tl.sum(both, axis=1) * length_of_row * length_of_row, mask=row < m)
        value = of_score * (scale * pixel)[None, :] * length_of_row[:, None]
        tl.store(scaled + wide_row * length + wide_place, value.to(scaled.dtype.element_ty), mask)
    return along_rows


@triton.jit
def _scale_gradient(
    gradient, scores, other_gradient, other_scores, inverse_pixels, inverse_rows, scaled, of_pixels, of_rows,
    m, length, scale, other_rows_b, gradient_b, gradient_m, gradient_l, other_b, other_m, other_l, scaled_b,
    BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """G, sum_rows(dS S) / |F|^2 and for each block of pixels sum_pixels(dS S) / |A|^2, of one or two classifiers."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    images = tl.num_programs(1)
    inside = place < length
    pixel = tl.load(inverse_pixels + batch * length + place, mask=inside, other=0.0)
    part = of_rows + (tl.program_id(0).to(tl.int64) * images + batch) * m
    image = scaled + batch * scaled_b
    along_rows = _scale_branch(
        gradient + batch * gradient_b, scores + batch * m * length, inverse_rows + batch * m, image, part,
        pixel, place, inside, m, length, scale, gradient_m, gradient_l, BLOCK_M, BLOCK,
    )  # fmt: skip
    if other_gradient is not None:
        along_rows += _scale_branch(
            other_gradient + batch * other_b, other_scores + batch * m * length,
            inverse_rows + images * m + batch * other_rows_b, image + m.to(tl.int64) * length,
            part + tl.num_programs(0).to(tl.int64) * images * m,
            pixel, place, inside, m, length, scale, other_m, other_l, BLOCK_M, BLOCK,
        )  # fmt: skip
    tl.store(of_pixels + batch * length + place, along_rows * pixel * pixel, mask=inside)


def scale_gradient(
    gradients: list[Tensor],
    scores: list[Tensor],
    inverse_pixels: Tensor,
    inverse_rows: Tensor,
    scaled: Tensor,
    of_pixels: Tensor,
    scale: float,
) -> Tensor:
    """Of one or two classifiers, [b, m, L] each: G into `scaled` [b, 1 or 2 m, L], sum_rows(dS S) / |F|^2 of both
    together into `of_pixels` [b, L]; returns the parts of sum_pixels(dS S) / |A|^2, [1 or 2, parts, b, m].

    The lengths of the second classifier's rows come after those of the first, [b + (1 or b), m].
    """
    b, m, length = scores[0].shape
    block = 128
    grid = (cdiv(length, block), b)
    of_rows = torch.empty(len(scores), grid[0], b, m, dtype=torch.float32, device=scaled.device)
    other_gradient, other_scores = (gradients[1], scores[1]) if len(scores) > 1 else (None, None)
    strides = (0, 0, 0) if other_gradient is None else other_gradient.stride()
    _scale_gradient[grid](
        gradients[0], scores[0], other_gradient, other_scores, inverse_pixels, inverse_rows, scaled, of_pixels, of_rows,
        m, length, scale, m * (inverse_rows.shape[0] == 2 * b), *gradients[0].stride(), *strides, scaled.stride(0),
        BLOCK_M=16, BLOCK=block,
    )  # fmt: skip
    return of_rows
