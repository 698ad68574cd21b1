"""One batched matrix product for everything between features and scores, with what follows it folded in."""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cdiv

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# A float32 product as six bfloat16 ones (three parts of either side), or three tf32 ones in an older Triton; the
# interpreter is exact.
NEW = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6)
FLOAT32 = "ieee" if INTERPRETED else "bf16x6" if NEW else "tf32x3"
BLOCK_M = 64
PROGRAMS = 528  # of a long product, at least: four for each multiprocessor of a large GPU
LONGEST_SUM = 4096


@triton.jit
def _dot(a, b, sums, PRECISION: tl.constexpr):
    """A product of half-precision operands; the interpreter cannot multiply bfloat16."""
    if PRECISION == "ieee":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    return tl.dot(a, b, sums)


# Kernels read no global constants: Triton compares each of them before every launch.
@triton.jit
def _product(
    left, right, out, second, log_row, log_inner, bias, row_scale, column_scale, other, column_factor,
    table, table_scale, labels,
    m, n, k, scale, left_images, images, table_images, table_row, classes,
    left_b, left_m, left_k, right_b, right_k, right_n, out_b, out_m, out_n,
    LEFT: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(m, BLOCK_M)
    row = (tl.program_id(0) % tiles_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (tl.program_id(0) // tiles_m) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    batch = (tl.program_id(2) % images).to(tl.int64)
    left_image = tl.minimum(tl.program_id(2), left_images - 1).to(tl.int64)
    if second is not None:
        out = out if tl.program_id(2) < images else second
    steps = tl.cdiv(tl.cdiv(k, BLOCK_K), tl.num_programs(1))
    inner = tl.arange(0, BLOCK_K)
    start = split * steps * BLOCK_K
    in_rows, in_columns = (row < m)[:, None], (column < n)[None, :]
    left += left_image * left_b + (start + inner).to(tl.int64)[None, :] * left_k
    if LEFT != "one_hot":
        left += row.to(tl.int64)[:, None] * left_m
    if LEFT == "softmax":
        row_total = tl.load(log_row + batch * m + row, mask=row < m, other=0.0)
    right += batch * right_b + (start + inner).to(tl.int64)[:, None] * right_k + column.to(tl.int64)[None, :] * right_n
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(steps):
        place = start + step * BLOCK_K + inner
        if LEFT == "one_hot":
            a = (tl.load(left, mask=(place < k)[None, :], other=-1) == row[:, None]).to(tl.float32)
        else:
            a = tl.load(left, mask=in_rows & (place < k)[None, :], other=0.0)
        if LEFT == "softmax":
            inner_total = tl.load(log_inner + batch * k + place, mask=place < k, other=float("inf"))
            a = tl.exp(a.to(tl.float32) - inner_total[None, :] - row_total[:, None])
        b = tl.load(right, mask=in_columns & (place < k)[:, None], other=0.0)
        if KIND == "float32":
            sums = tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision=PRECISION)
        elif KIND == "narrow":
            sums = _dot(a.to(b.dtype), b, sums, PRECISION)
        else:  # "right_in_three": the left one is a mask, exact in any precision
            a_mask = a.to(tl.bfloat16)
            high = b.to(tl.bfloat16)
            rest = b - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            sums = _dot(a_mask, high, sums, PRECISION)
            sums = _dot(a_mask, middle, sums, PRECISION)
            sums = _dot(a_mask, (rest - middle.to(tl.float32)).to(tl.bfloat16), sums, PRECISION)
        left += BLOCK_K * left_k
        right += BLOCK_K * right_k
    sums *= scale
    if row_scale is not None:
        sums *= tl.load(row_scale + left_image * m + row, mask=row < m, other=0.0)[:, None]
    if column_scale is not None:
        sums *= tl.load(column_scale + batch * n + column, mask=column < n, other=0.0)[None, :]
    if bias is not None:
        sums += tl.load(bias + row, mask=row < m, other=0.0).to(tl.float32)[:, None]
    place = batch * out_b + row.to(tl.int64)[:, None] * out_m + column.to(tl.int64)[None, :] * out_n
    if column_factor is not None:
        values = tl.load(other + place, mask=in_rows & in_columns, other=0.0).to(tl.float32)
        sums -= values * tl.load(column_factor + batch * n + column, mask=column < n, other=0.0)[None, :]
    if table is not None:
        label = tl.load(labels + batch * n + column, mask=column < n, other=-1)
        has_label = (label >= 0) & (label < classes)
        label += tl.minimum(batch, table_images - 1) * classes
        share = tl.load(table_scale + label, mask=has_label, other=0.0)
        where = label[None, :] * table_row + row[:, None]
        values = tl.load(table + where, mask=in_rows & has_label[None, :], other=0.0).to(tl.float32)
        sums += values * share[None, :]
    if out.dtype.element_ty == tl.float16:  # an infinity would turn every softmax after it into NaN
        sums = tl.minimum(tl.maximum(sums, -65504.0), 65504.0)
    place += split.to(tl.int64) * images * out_b
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=in_rows & in_columns)


def product(
    left: Tensor,
    right: Tensor,
    *,
    out: Tensor | None = None,
    second: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    bias: Tensor | None = None,
    row_scale: Tensor | None = None,
    column_scale: Tensor | None = None,
    minus: tuple[Tensor, Tensor] | None = None,
    by_label: tuple[Tensor, Tensor, Tensor] | None = None,
    softmax: tuple[Tensor, Tensor] | None = None,
    one_hot: int = 0,
    wide_range: bool = False,
    splits: int = 1,
) -> Tensor:
    """left [1 or b, m, k] times right [b, k, n], in float32; [b, m, n], with splits [splits, b, m, n].

        scale * row_scale[..., None] * column_scale[:, None] * (left @ right)
            + bias[:, None] - other * factor[:, None] + (table * share[..., None])[labels].T

    with other [b, m, n], strided like `out`, and factor [b, n] from `minus`; table [1 or b, classes, m] (evenly spaced
    rows), share [1 or b, classes] and labels [b, n] from `by_label`. `second` is filled like `out`, from further rows:
    left is [b + (1 or b), m, k] then, row_scale [b + (1 or b), m].
    float32 operands keep what float32 has. A float32 left operand is rounded to the right one's half precision; but
    float16 has no room for the small numbers that are `wide_range`. With `softmax` (row [b, m], inner [b, k]) the
    left operand is exp(left - row - inner); with `one_hot` m,
    left is labels [b, 1, k] and stands for their m masks. `splits` cuts the sum into equal parts, for the caller to
    add up.
    """
    (b, k, n), m = right.shape, one_hot or left.shape[1]
    if out is None:
        out = torch.empty((splits, b, m, n)[splits == 1 :], dtype=dtype, device=left.device)
    source = "softmax" if softmax is not None else "one_hot" if one_hot else "values"
    if right.dtype == torch.float32:
        kind = "right_in_three" if one_hot else "float32"
    else:
        kind = "float32" if wide_range and right.dtype == torch.float16 else "narrow"
    # Measured on an H200; see docs/speed.md.
    if kind == "narrow":
        columns, inner = 128 if splits > 1 else 64, 32 if softmax is not None else 64
    else:
        columns, inner = 64 if splits > 1 or k > 512 else 128, 64 if softmax is not None else 32
    log_row, log_inner = softmax if softmax is not None else (None, None)
    other, factor = minus if minus is not None else (None, None)
    table, share, labels = by_label if by_label is not None else (None, None, None)
    tables, classes, table_row = (0, 0, 0) if table is None else (*table.shape[:2], table.stride(1))
    _product[(cdiv(m, BLOCK_M) * cdiv(n, columns), splits, b if second is None else 2 * b)](
        left, right, out, second, log_row, log_inner, bias, row_scale, column_scale, other, factor,
        table, share, labels,
        m, n, k, scale, left.shape[0], b, tables, table_row, classes,
        *left.stride(), *right.stride(), *out.stride()[-3:],
        LEFT=source, KIND=kind, PRECISION=FLOAT32, BLOCK_M=BLOCK_M, BLOCK_N=columns, BLOCK_K=inner,
    )  # fmt: skip
    return out


def long_product(left: Tensor, right: Tensor, **arguments: Any) -> Tensor:
    """`product` in float32 over a long inner dimension, in parts that are to be added up: [parts, b, m, n].

    Parts fill the device where the result is small, and keep float32 sums short. Their number depends on the sizes
    alone, so that a result does not depend on the device.
    """
    (b, k, n), m = right.shape, arguments.get("one_hot") or left.shape[1]
    tiles = b * cdiv(m, 64) * cdiv(n, 64)
    parts = max(1, min(cdiv(PROGRAMS, tiles), k // 256))
    parts = max(parts, cdiv(k, LONGEST_SUM))
    result = product(left, right, splits=parts, **arguments)
    return result if parts > 1 else result[None]
