"""What a module has seen while training: for what changes over the first calls, or with the data."""

from __future__ import annotations

import torch
from torch import Tensor


def count_up(counter: Tensor, by: int | Tensor = 1) -> tuple[Tensor, Tensor]:
    """What was counted before this call, and the counter after it, to be put back in its place.

    A checkpoint that computes a call once more, in the backward pass, counts none and finds what the last call
    found. The counter is changed in place, so that a CUDA graph counts when it is replayed; a compiler gets a new one,
    because its backward pass reads the old one again.
    """
    if torch.compiler.is_compiling():
        return counter, counter + by
    if torch._C._current_graph_task_id() != -1:  # within a backward pass
        return counter - by, counter
    before = counter.clone()
    counter += by
    return before, counter
