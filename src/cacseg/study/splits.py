"""Which images a job trains on, and which its answers are compared on."""

from __future__ import annotations

from typing import NamedTuple

BLOCK = 50  # files


class Shares(NamedTuple):
    """Indices into the training split."""

    train: list[int]
    held_out: list[int]


def hold_out(length: int, share: float, block: int = BLOCK) -> Shares:
    """The last `share` of each block of `block` consecutive files is held out, the rest trains.

    Not at random: neighbours in a video are near copies, and one of each pair on either side would make the held-out
    images too easy. Not the end of the list alone either, which would hold out one place and one time of day.
    """
    train: list[int] = []
    held_out: list[int] = []
    for first in range(0, length, block):
        last = min(first + block, length)
        edge = last - int(share * (last - first) + 0.5)
        train += range(first, edge)
        held_out += range(edge, last)
    if not train or not held_out:
        raise ValueError(
            f"a share of {share:g} of {length} images leaves {len(train)} to train on and holds out {len(held_out)}; "
            "both must have some. Change held_out."
        )
    return Shares(train, held_out)
