"""What Lightning knows of the processes of a run."""

from __future__ import annotations

from lightning.pytorch.utilities import rank_zero_only


def is_first_process() -> bool:
    """Whether this is rank 0, which prints and writes; known before any trainer exists."""
    rank: int = getattr(rank_zero_only, "rank", 0)
    return rank == 0
