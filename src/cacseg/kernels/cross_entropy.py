"""Cross-entropy of bilinearly upsampled logits, forward and backward, without the upsampled logits.

A cell is the square between four neighbouring logits; every output pixel lies in one cell, and mixes its corners. The
forward kernel takes the pixels of a row of cells and keeps a running logsumexp over the classes: one float for each
pixel is all it writes. The backward kernel gives each thread a cell, sums softmax - target over the cell's pixels for
each corner, and adds what a logit gets from the four cells around it: the row above is carried along, the column to
the left comes from the neighbouring thread. Scores are kept in units of log 2, for exp2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
LOG_2 = tl.constexpr(0.6931471805599453)


class Axis(NamedTuple):
    """Linear interpolation along one axis, as tables."""

    start: Tensor  # [source + 1] int32: the first output position of each cell
    low: Tensor  # [output] int32: the cell of each output position
    share: Tensor  # [output] float32: how much of the cell's far end it takes
    per_cell: int  # output positions in the fullest cell


@triton.jit
def _corners(base, rows_low, rows_high, columns_low, columns_high, mask, share):  # type: ignore[no-untyped-def]
    """Both rows of a row of cells, mixed along the columns; in units of log 2."""
    other = None if mask is None else 0.0
    upper_left = tl.load(base + rows_low + columns_low, mask=mask, other=other).to(tl.float32)
    upper_right = tl.load(base + rows_low + columns_high, mask=mask, other=other).to(tl.float32)
    lower_left = tl.load(base + rows_high + columns_low, mask=mask, other=other).to(tl.float32)
    lower_right = tl.load(base + rows_high + columns_high, mask=mask, other=other).to(tl.float32)
    upper = upper_left + share * (upper_right - upper_left)
    lower = lower_left + share * (lower_right - lower_left)
    return upper * LOG2_E, lower * LOG2_E


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    logits, labels, weight, spread, lse, partial,
    row_start, row_share, column_low, column_share,
    n, h, w, height, width, ignore_index, smoothing,
    logits_b, logits_n, logits_h, logits_w, labels_b, labels_h, labels_w,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
    CLASSES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """logsumexp of each output pixel (infinite where ignored); the summed loss and weight of each program."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    cell_row = tl.program_id(1)
    image = tl.program_id(2).to(tl.int64)
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
        mean_weight = tl.load(spread)

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
        loss += tl.where(kept, cost, 0.0) * LOG_2
        counted += hard
        place = image * height * width + row.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(lse + place, tl.where(kept, pixel_lse, float("inf")), mask=pixel)
    program = tl.program_id(0) + tl.num_programs(0) * (cell_row + tl.num_programs(1) * tl.program_id(2))
    programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    tl.store(partial + program, tl.sum(loss))
    tl.store(partial + programs + program, tl.sum(counted))


@triton.jit
def _finish(  # type: ignore[no-untyped-def]
    partial, mean, pixel_share, programs, all_pixels, COUNT_ALL: tl.constexpr, BLOCK: tl.constexpr
):
    """The mean, and what a summed gradient is multiplied with; both 0 where nothing counts."""
    loss = tl.zeros([BLOCK], tl.float32)
    counted = tl.zeros([BLOCK], tl.float32)
    for block in range(0, programs, BLOCK):
        index = block + tl.arange(0, BLOCK)
        loss += tl.load(partial + index, mask=index < programs, other=0.0)
        counted += tl.load(partial + programs + index, mask=index < programs, other=0.0)
    denominator = tl.sum(counted)
    if COUNT_ALL:
        denominator = all_pixels * 1.0
    share = tl.where(denominator != 0.0, 1.0 / tl.where(denominator != 0.0, denominator, 1.0), 0.0)
    tl.store(mean, tl.where(denominator != 0.0, tl.sum(loss) * share, 0.0))
    tl.store(pixel_share, share)


# A stride of 1 stays unknown here: then a thread owns a column in every tensor, and no layout has to be converted.
@triton.jit(do_not_specialize=["logits_w", "labels_w", "gradient_w"])
def _backward(  # type: ignore[no-untyped-def]
    logits, labels, weight, spread, lse, pixel_share, of_loss, gradient,
    row_start, row_share, column_start, column_share,
    n, h, w, height, width, smoothing, columns_per_cell,
    logits_b, logits_n, logits_h, logits_w, labels_b, labels_h, labels_w,
    gradient_b, gradient_n, gradient_h, gradient_w,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, HALO: tl.constexpr,
    CLASSES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of CLASSES x ROWS x COLUMNS logits. With a halo, the first column only helps the second."""
    class_blocks = tl.cdiv(n, CLASSES)
    k = (tl.program_id(0) % class_blocks) * CLASSES + tl.arange(0, CLASSES)
    lane = tl.arange(0, COLUMNS)
    column = (tl.program_id(0) // class_blocks) * (COLUMNS - HALO) - HALO + lane
    first_row = tl.program_id(1) * ROWS
    image = tl.program_id(2).to(tl.int64)
    real = (column >= 0) & (column < w)
    known = (k < n)[:, None] & real[None, :]
    start = tl.load(column_start + column, mask=real, other=0)
    stop = tl.load(column_start + column + 1, mask=real, other=0)
    base = logits + image * logits_b + k.to(tl.int64)[:, None] * logits_n
    left_offset = column.to(tl.int64)[None, :] * logits_w
    right_offset = tl.minimum(column + 1, w - 1).to(tl.int64)[None, :] * logits_w
    scale = tl.load(pixel_share) * tl.load(of_loss).to(tl.float32)
    wide = tl.full([], 0, tl.int64)  # added to a loop's index, which may be narrow
    neighbour = tl.broadcast_to(tl.maximum(lane - 1, 0)[None, :], [CLASSES, COLUMNS])
    if SMOOTH:
        even = tl.load(spread) * smoothing
        soft = (k < n).to(tl.float32) * (smoothing / n)
        if HAS_WEIGHT:
            soft = soft * tl.load(weight + k, mask=k < n, other=0.0).to(tl.float32)

    carried_left = tl.zeros([CLASSES, COLUMNS], tl.float32)  # from the cells above
    carried_right = tl.zeros([CLASSES, COLUMNS], tl.float32)
    for cell_row in range(tl.maximum(first_row - 1, 0), tl.minimum(first_row + ROWS, h)):
        rows_low = (wide + cell_row) * logits_h
        rows_high = tl.minimum(wide + cell_row + 1, h - 1) * logits_h
        left_top = tl.load(base + rows_low + left_offset, mask=known, other=0.0).to(tl.float32) * LOG2_E
        right_top = tl.load(base + rows_low + right_offset, mask=known, other=0.0).to(tl.float32) * LOG2_E
        left_drop = tl.load(base + rows_high + left_offset, mask=known, other=0.0).to(tl.float32) * LOG2_E - left_top
        right_drop = tl.load(base + rows_high + right_offset, mask=known, other=0.0).to(tl.float32) * LOG2_E - right_top
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
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    rows: Axis,
    columns: Axis,
    ignore_index: int,
    smoothing: float,
    count_all: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean loss, what a summed gradient is multiplied with, and the logsumexp [b, H, W] in units of log 2."""
    b, n, h, w = logits.shape
    height, width = labels.shape[1:]
    block = min(128, max(16, triton.next_power_of_2(width)))
    grid = (triton.cdiv(width, block), h, b)
    programs = grid[0] * grid[1] * grid[2]
    partial = torch.empty(2, programs, dtype=torch.float32, device=logits.device)
    loss = torch.empty((), dtype=torch.float32, device=logits.device)
    share = torch.empty_like(loss)
    lse = torch.empty(b, height, width, dtype=torch.float32, device=logits.device)
    per_cell = min(4, triton.next_power_of_2(max(1, height // h)))
    _forward[grid](
        logits, labels, weight, mean_weight(weight, smoothing, logits), lse, partial,
        rows.start, rows.share, columns.low, columns.share,
        n, h, w, height, width, ignore_index, smoothing, *logits.stride(), *labels.stride(),
        HAS_WEIGHT=weight is not None, SMOOTH=smoothing > 0.0,
        CLASSES=8, ROWS=per_cell, COLUMNS=block, num_warps=max(1, block // 32),
    )  # fmt: skip
    _finish[(1,)](partial, loss, share, programs, labels.numel(), COUNT_ALL=count_all, BLOCK=1024, num_warps=8)
    return loss, share, lse


def backward(
    of_loss: Tensor,
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    share: Tensor,
    lse: Tensor,
    rows: Axis,
    columns: Axis,
    smoothing: float,
    **meta: Any,
) -> Tensor:
    """The gradient with respect to the logits, in their dtype."""
    b, n, h, w = logits.shape
    gradient = torch.empty_like(logits)
    block = min(128, max(16, triton.next_power_of_2(w)))
    halo = int(w > block)
    choice = {"CLASSES": 16, "ROWS": 8, "num_warps": max(1, block // 32)} | meta
    grid = (
        triton.cdiv(n, choice["CLASSES"]) * triton.cdiv(w, block - halo),
        triton.cdiv(h, choice["ROWS"]),
        b,
    )
    _backward[grid](
        logits, labels, weight, mean_weight(weight, smoothing, logits), lse, share, of_loss, gradient,
        rows.start, rows.share, columns.start, columns.share,
        n, h, w, *labels.shape[1:], smoothing, columns.per_cell,
        *logits.stride(), *labels.stride(), *gradient.stride(),
        HAS_WEIGHT=weight is not None, SMOOTH=smoothing > 0.0, HALO=halo, COLUMNS=block, **choice,
    )  # fmt: skip
    return gradient


def mean_weight(weight: Tensor | None, smoothing: float, like: Tensor) -> Tensor | None:
    """What label smoothing spreads over the classes, on average; None where nobody asks."""
    if smoothing == 0.0:
        return None
    return torch.ones(1, device=like.device) if weight is None else weight.float().mean()
