"""Cross-entropy of bilinearly upsampled logits, forward and backward, without the upsampled logits.

A cell is the square between four neighbouring logits; every output pixel lies in one cell, and mixes its corners. The
forward kernel takes the pixels of a row of cells and keeps a running logsumexp over the classes: one float for each
pixel is all it writes. The backward kernel gives each thread a cell, sums softmax - target over the cell's pixels for
each corner, and adds what a logit gets from the four cells around it: the row above is carried along, the column to
the left comes from the neighbouring thread. Scores are kept in units of log 2, for exp2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cdiv, power_of_2


class Axis(NamedTuple):
    """Linear interpolation along one axis, as tables, one for each of m logits."""

    start: Tensor  # [m, source + 1] int32: the first output position of each cell
    low: Tensor  # [m, output] int32: the cell of each output position
    share: Tensor  # [m, output] float32: how much of the cell's far end it takes
    per_cell: int  # output positions in the fullest cell


@triton.jit
def _corners(base, rows_low, rows_high, columns_low, columns_high, mask, share):
    """Both rows of a row of cells, mixed along the columns; in units of log 2."""
    other = None if mask is None else 0.0
    upper_left = tl.load(base + rows_low + columns_low, mask=mask, other=other).to(tl.float32)
    upper_right = tl.load(base + rows_low + columns_high, mask=mask, other=other).to(tl.float32)
    lower_left = tl.load(base + rows_high + columns_low, mask=mask, other=other).to(tl.float32)
    lower_right = tl.load(base + rows_high + columns_high, mask=mask, other=other).to(tl.float32)
    upper = upper_left + share * (upper_right - upper_left)
    lower = lower_left + share * (lower_right - lower_left)
    log2_e: tl.constexpr = 1.4426950408889634
    return upper * log2_e, lower * log2_e


@triton.jit
def _one_of(which, first, second, third):
    """The tensor that a program works on."""
    if which == 1:
        first = second
    elif which == 2:
        first = third
    return first


@triton.jit
def _forward(
    logits, second, third, labels, weight, class_weight_mean, lse, partial,
    row_start, row_share, column_low, column_share,
    images, n, h, w, height, width, ignore_index, smoothing,
    logits_b, logits_n, logits_h, logits_w, labels_b, labels_h, labels_w,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
    CLASSES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """logsumexp of each output pixel (infinite where ignored); the summed loss and weight of each program."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    cell_row = tl.program_id(1)
    which = tl.program_id(2) // images
    image = (tl.program_id(2) % images).to(tl.int64)
    logits = _one_of(which, logits, second, third)
    row_start += which * (h + 1)
    row_share += which * height
    column_low += which * width
    column_share += which * width
    lse += which.to(tl.int64) * images * height * width
    inside = column < width
    low = tl.load(column_low + column, mask=inside, other=0)
    columns_low = low.to(tl.int64) * logits_w
    columns_high = tl.minimum(low + 1, w - 1).to(tl.int64) * logits_w
    share_x = tl.load(column_share + column, mask=inside, other=0.0)
    rows_low = cell_row.to(tl.int64) * logits_h
    rows_high = tl.minimum(cell_row + 1, h - 1).to(tl.int64) * logits_h
    base = logits + image * logits_b
    first = tl.load(row_start + cell_row)
    last = tl.load(row_start + cell_row + 1)
    if SMOOTH:
        mean_weight = tl.load(class_weight_mean)

    loss = tl.zeros([ROWS, COLUMNS], tl.float32)
    counted = tl.zeros([ROWS, COLUMNS], tl.float32)
    for row_block in range(first, last, ROWS):
        row = row_block + tl.arange(0, ROWS)
        pixel = (row < last)[:, None] & inside[None, :]
        share_y = tl.load(row_share + row, mask=row < last, other=0.0)
        largest = tl.full([ROWS, COLUMNS], float("-inf"), tl.float32)
        sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        smooth = tl.zeros([ROWS, COLUMNS], tl.float32)
        for class_block in range(0, n, CLASSES):
            k = class_block + tl.arange(0, CLASSES)
            known = (k < n)[:, None]  # the last class stands in for those beyond it, and counts nothing
            upper, lower = _corners(
                base + tl.minimum(k, n - 1).to(tl.int64)[:, None] * logits_n, rows_low, rows_high,
                columns_low[None, :], columns_high[None, :], None, share_x[None, :],
            )  # fmt: skip
            upper = tl.where(known, upper, -1e38)
            lower = tl.where(known, lower, -1e38)
            scores = upper[:, None, :] + share_y[None, :, None] * (lower - upper)[:, None, :]
            if SMOOTH:
                class_weight = (k < n).to(tl.float32)
                if HAS_WEIGHT:
                    class_weight = tl.load(weight + k, mask=k < n, other=0.0).to(tl.float32)
                smooth += tl.sum(scores * class_weight[:, None, None], axis=0)
            new_largest = tl.maximum(largest, tl.max(scores, axis=0))
            sums = sums * tl.exp2(largest - new_largest) + tl.sum(tl.exp2(scores - new_largest[None]), axis=0)
            largest = new_largest
        pixel_lse = largest + tl.log2(sums)

        where = image * labels_b + row.to(tl.int64)[:, None] * labels_h + column.to(tl.int64)[None, :] * labels_w
        label = tl.load(labels + where, mask=pixel, other=-1).to(tl.int64)
        kept = pixel & (label >= 0) & (label < n) & (label != ignore_index)
        upper, lower = _corners(
            base + label * logits_n, rows_low, rows_high, columns_low[None, :], columns_high[None, :], kept,
            share_x[None, :],
        )  # fmt: skip
        target = upper + share_y[:, None] * (lower - upper)
        hard = kept.to(tl.float32)
        if HAS_WEIGHT:
            hard = tl.load(weight + label, mask=kept, other=0.0).to(tl.float32)
        cost = hard * (pixel_lse - target)
        if SMOOTH:
            even = pixel_lse * mean_weight - smooth / n
            cost = (1.0 - smoothing) * cost + smoothing * tl.where(kept, even, 0.0)
        loss += tl.where(kept, cost, 0.0) * 0.6931471805599453  # log 2
        counted += hard
        place = image * height * width + row.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(lse + place, tl.where(kept, pixel_lse, float("inf")), mask=pixel)
    program = tl.program_id(0) + tl.num_programs(0) * (cell_row + tl.num_programs(1) * tl.program_id(2))
    programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    tl.store(partial + program, tl.sum(loss))
    tl.store(partial + programs + program, tl.sum(counted))


@triton.jit
def _finish(partial, mean, pixel_share, programs, all_pixels, count_all, BLOCK: tl.constexpr):
    """The mean, and what a summed gradient is multiplied with; both 0 where nothing counts."""
    which = tl.program_id(0)
    every = tl.num_programs(0) * programs
    partial += which * programs
    loss = tl.zeros([BLOCK], tl.float32)
    counted = tl.zeros([BLOCK], tl.float32)
    for block in range(0, programs, BLOCK):
        index = block + tl.arange(0, BLOCK)
        loss += tl.load(partial + index, mask=index < programs, other=0.0)
        counted += tl.load(partial + every + index, mask=index < programs, other=0.0)
    denominator = tl.where((count_all >> which) & 1 == 1, all_pixels * 1.0, tl.sum(counted))
    share = tl.where(denominator != 0.0, 1.0 / tl.where(denominator != 0.0, denominator, 1.0), 0.0)
    tl.store(mean + which, tl.where(denominator != 0.0, tl.sum(loss) * share, 0.0))
    tl.store(pixel_share + which, share)


# A stride of 1 stays unknown here: then a thread owns a column in every tensor, and no layout has to be converted.
@triton.jit(do_not_specialize=["logits_w", "labels_w", "gradient_w"])
def _backward(
    logits, second, third, of_losses, labels, weight, class_weight_mean, lse, pixel_share, gradient,
    row_start, row_share, column_start, column_share,
    images, n, h, w, height, width, smoothing, columns_per_cell,
    logits_b, logits_n, logits_h, logits_w, labels_b, labels_h, labels_w,
    of_losses_which, gradient_which, gradient_b, gradient_n, gradient_h, gradient_w,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, HALO: tl.constexpr,
    CLASSES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of CLASSES x ROWS x COLUMNS logits. With a halo, the first column only helps the second."""
    class_blocks = tl.cdiv(n, CLASSES)
    k = (tl.program_id(0) % class_blocks) * CLASSES + tl.arange(0, CLASSES)
    lane = tl.arange(0, COLUMNS)
    column = (tl.program_id(0) // class_blocks) * (COLUMNS - HALO) - HALO + lane
    first_row = tl.program_id(1) * ROWS
    which = tl.program_id(2) // images
    image = (tl.program_id(2) % images).to(tl.int64)
    logits = _one_of(which, logits, second, third)
    row_start += which * (h + 1)
    row_share += which * height
    column_start += which * (w + 1)
    column_share += which * width
    lse += which.to(tl.int64) * images * height * width
    gradient += which.to(tl.int64) * gradient_which
    real = (column >= 0) & (column < w)
    known = (k < n)[:, None] & real[None, :]
    start = tl.load(column_start + column, mask=real, other=0)
    stop = tl.load(column_start + column + 1, mask=real, other=0)
    base = logits + image * logits_b + k.to(tl.int64)[:, None] * logits_n
    left_offset = column.to(tl.int64)[None, :] * logits_w
    right_offset = tl.minimum(column + 1, w - 1).to(tl.int64)[None, :] * logits_w
    scale = tl.load(pixel_share + which) * tl.load(of_losses + which * of_losses_which).to(tl.float32)
    wide = tl.full([], 0, tl.int64)  # added to a loop's index, which may be narrow
    neighbour = tl.broadcast_to(tl.maximum(lane - 1, 0)[None, :], [CLASSES, COLUMNS])
    if SMOOTH:
        even = tl.load(class_weight_mean) * smoothing
        soft = (k < n).to(tl.float32) * (smoothing / n)
        if HAS_WEIGHT:
            soft = soft * tl.load(weight + k, mask=k < n, other=0.0).to(tl.float32)

    log2_e: tl.constexpr = 1.4426950408889634
    carried_left = tl.zeros([CLASSES, COLUMNS], tl.float32)  # from the cells above
    carried_right = tl.zeros([CLASSES, COLUMNS], tl.float32)
    for cell_row in range(tl.maximum(first_row - 1, 0), tl.minimum(first_row + ROWS, h)):
        rows_low = (wide + cell_row) * logits_h
        rows_high = tl.minimum(wide + cell_row + 1, h - 1) * logits_h
        left_top = tl.load(base + rows_low + left_offset, mask=known, other=0.0).to(tl.float32) * log2_e
        right_top = tl.load(base + rows_low + right_offset, mask=known, other=0.0).to(tl.float32) * log2_e
        left_drop = tl.load(base + rows_high + left_offset, mask=known, other=0.0).to(tl.float32) * log2_e - left_top
        right_drop = tl.load(base + rows_high + right_offset, mask=known, other=0.0).to(tl.float32) * log2_e - right_top
        top_left = carried_left
        top_right = carried_right
        bottom_left = tl.zeros([CLASSES, COLUMNS], tl.float32)
        bottom_right = tl.zeros([CLASSES, COLUMNS], tl.float32)
        for row in range(tl.load(row_start + cell_row), tl.load(row_start + cell_row + 1)):
            share_y = tl.load(row_share + row)
            left = left_top + share_y * left_drop
            across = right_top + share_y * right_drop - left
            both = tl.zeros([CLASSES, COLUMNS], tl.float32)
            right = tl.zeros([CLASSES, COLUMNS], tl.float32)
            for step in range(columns_per_cell):
                x = start + step
                pixel = x < stop
                share_x = tl.load(column_share + x, mask=pixel, other=0.0)
                place = image * height * width + (wide + row) * width + x
                pixel_lse = tl.load(lse + place, mask=pixel, other=float("inf"))
                where = image * labels_b + (wide + row) * labels_h + x.to(tl.int64) * labels_w
                kept = pixel_lse < float("inf")
                label = tl.load(labels + where, mask=pixel, other=-1).to(tl.int32)
                label = tl.where(kept, label, -1)
                probability = tl.exp2(left + share_x[None, :] * across - pixel_lse[None, :])  # 0 where ignored
                target = label[None, :] == k[:, None]
                if HAS_WEIGHT:
                    hard = tl.load(weight + label, mask=kept, other=0.0).to(tl.float32)
                    if SMOOTH:
                        hard = (1.0 - smoothing) * hard
                        change = probability * (hard + even)[None, :] - tl.where(target, hard[None, :], 0.0)
                    else:
                        change = probability * hard[None, :] - tl.where(target, hard[None, :], 0.0)
                elif SMOOTH:
                    change = probability - tl.where(target, 1.0 - smoothing, 0.0)
                else:
                    change = probability - tl.where(target, 1.0, 0.0)
                if SMOOTH:
                    change -= tl.where(kept[None, :], soft[:, None], 0.0)
                both += change
                right += share_x[None, :] * change
            lower_right = share_y * right
            lower_left = share_y * (both - right)
            bottom_right += lower_right
            bottom_left += lower_left
            top_right += right - lower_right
            top_left += both - right - lower_left
        if cell_row >= first_row:
            from_left = tl.where(lane[None, :] > 0, tl.gather(top_right, neighbour, 1), 0.0)
            value = (top_left + from_left) * scale
            target_place = image * gradient_b + k.to(tl.int64)[:, None] * gradient_n
            target_place += (wide + cell_row) * gradient_h + column.to(tl.int64)[None, :] * gradient_w
            written = known & (lane >= HALO)[None, :]
            tl.store(gradient + target_place, value.to(gradient.dtype.element_ty), mask=written)
        carried_left = bottom_left
        carried_right = bottom_right


def forward(
    logits: list[Tensor],
    labels: Tensor,
    weight: Tensor | None,
    rows: Axis,
    columns: Axis,
    ignore_index: int,
    smoothing: float,
    count_all: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean losses [m] of m = 1 to 3 logits of one shape and layout, what summed gradients are multiplied with [m],
    and the logsumexps [m, b, H, W] in units of log 2. The tables of both axes are stacked, one for each logits."""
    (b, n, h, w), count, device = logits[0].shape, len(logits), labels.device
    height, width = labels.shape[1:]
    block = min(128, max(16, power_of_2(width)))
    grid = (cdiv(width, block), h, b * count)
    programs = grid[0] * h * b
    partial = torch.empty(2, programs * count, dtype=torch.float32, device=device)
    losses = torch.empty(count, dtype=torch.float32, device=device)
    shares = torch.empty_like(losses)
    lse = torch.empty(count, b, height, width, dtype=torch.float32, device=device)
    _forward[grid](
        *_three(logits), labels, weight, mean_weight(weight, smoothing, labels), lse, partial,
        rows.start, rows.share, columns.low, columns.share,
        b, n, h, w, height, width, ignore_index, smoothing, *logits[0].stride(), *labels.stride(),
        HAS_WEIGHT=weight is not None, SMOOTH=smoothing > 0.0,
        CLASSES=8, ROWS=min(4, power_of_2(max(1, height // h))), COLUMNS=block,
        num_warps=max(1, block // 32),
    )  # fmt: skip
    flags = sum(1 << index for index, flag in enumerate(count_all) if flag)
    _finish[(count,)](partial, losses, shares, programs, labels.numel(), flags, BLOCK=1024, num_warps=8)
    return losses, shares, lse


def backward(
    of_losses: Tensor,
    logits: list[Tensor],
    labels: Tensor,
    weight: Tensor | None,
    shares: Tensor,
    lse: Tensor,
    rows: Axis,
    columns: Axis,
    smoothing: float,
) -> Tensor:
    """The gradients with respect to the logits, in their dtype: [m, b, n, h, w], strided like the logits within."""
    (b, n, h, w), count = logits[0].shape, len(logits)
    gradient = torch.empty_like(logits[0])[None] if count == 1 else logits[0].new_empty(count, b, n, h, w)
    block = min(128, max(16, power_of_2(w)))
    halo = int(w > block)
    grid = (cdiv(n, 8) * cdiv(w, block - halo), cdiv(h, 8), b * count)
    _backward[grid](
        *_three(logits), of_losses, labels, weight, mean_weight(weight, smoothing, labels), lse, shares,
        gradient, rows.start, rows.share, columns.start, columns.share,
        b, n, h, w, *labels.shape[1:], smoothing, columns.per_cell,
        *logits[0].stride(), *labels.stride(), of_losses.stride(0), *gradient.stride(),
        HAS_WEIGHT=weight is not None, SMOOTH=smoothing > 0.0, HALO=halo,
        CLASSES=8, ROWS=8, COLUMNS=block, num_warps=max(1, block // 32), maxnreg=128,
    )  # fmt: skip
    return gradient


def _three(tensors: list[Tensor]) -> list[Tensor]:
    return [*tensors, *tensors[:1] * (3 - len(tensors))]


def mean_weight(weight: Tensor | None, smoothing: float, like: Tensor) -> Tensor | None:
    """What label smoothing spreads over the classes, on average; None where nobody asks."""
    if smoothing == 0.0:
        return None
    return torch.ones(1, device=like.device) if weight is None else weight.float().mean()
