"""Labels at the size of the features, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cacseg.kernels import cdiv


@triton.jit
def _fit(labels, rows, columns, out, n, h, w, ignore_index, labels_b, labels_h, labels_w, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = tl.program_id(1).to(tl.int64)
    inside = place < h * w
    row = tl.load(rows + place // w, mask=inside, other=0).to(tl.int64)
    column = tl.load(columns + place % w, mask=inside, other=0).to(tl.int64)
    label = tl.load(labels + image * labels_b + row * labels_h + column * labels_w, mask=inside, other=-1).to(tl.int64)
    kept = (label >= 0) & (label < n) & (label != ignore_index)
    tl.store(out + image * h * w + place, tl.where(kept, label, -1), mask=inside)


def fit(labels: Tensor, rows: Tensor, columns: Tensor, num_classes: int, ignore_index: int) -> Tensor:
    """labels[:, rows][:, :, columns], -1 wherever they take no part."""
    b, h, w = labels.shape[0], rows.shape[0], columns.shape[0]
    out = torch.empty(b, h, w, dtype=torch.int64, device=labels.device)
    _fit[(cdiv(h * w, 1024), b)](
        labels,
        rows,
        columns,
        out,
        num_classes,
        h,
        w,
        ignore_index,
        *labels.stride(),
        BLOCK=1024,
    )
    return out
