"""How often a module was called while training: for what changes over the first calls."""

from __future__ import annotations

import torch
from torch import Tensor


def count_call(taken: Tensor) -> tuple[Tensor, Tensor]:
    """The calls before this one, and the counter after it, to be put back in its place.

    A checkpoint that computes a call once more, in the backward pass, counts none and finds what the last call
    found. The counter is changed in place, so that a CUDA graph counts when it is replayed; a compiler gets a new one,
    because its backward pass reads the old one again.
    """
    if torch.compiler.is_compiling():
        return taken, taken + 1
    if torch._C._current_graph_task_id() != -1:  # within a backward pass
        return taken - 1, taken
    before = taken.clone()
    taken += 1
    return before, taken
