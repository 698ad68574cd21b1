"""A factor of the cosines that changes while a model trains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cacseg._checks import check_integer, check_number
from cacseg._counting import count_up


class AnnealedScale(nn.Module):
    """What the cosines are multiplied with beside `scale`, so that tau goes from `start` to `scale` in a line.

        tau(t) = start + (scale - start) min(t / calls, 1)
        factor = tau(t) / scale

    t counts the training calls; one that a checkpoint computes again in the backward pass counts once.

    Args:
        scale: tau in the end.
        start_and_calls: tau at the start, and how many calls it takes to the end.
    """

    calls_taken: Tensor

    def __init__(self, scale: float, start_and_calls: Sequence[float]) -> None:
        super().__init__()
        if isinstance(start_and_calls, str) or not isinstance(start_and_calls, Sequence) or len(start_and_calls) != 2:
            raise ValueError(
                "annealed_scale must be two numbers, the scale at the start and the training calls to its end; got "
                f"{start_and_calls!r}. Pass (5.0, 800), say."
            )
        start, calls = start_and_calls
        check_integer("the calls of annealed_scale", calls)
        if calls < 1:
            raise ValueError(f"the calls of annealed_scale must be at least 1; got {calls}. Leave the argument out.")
        check_number("the start of annealed_scale", start, ends="()")
        self.scale, self.start, self.calls = scale, start, calls
        self.register_buffer("calls_taken", torch.zeros((), dtype=torch.int64))  # of integers: no precision ends it

    def forward(self, *, counted: bool = False) -> Float[Tensor, ""]:
        """The factor now; a `counted` call while training is one towards the end."""
        taken = self.calls_taken
        if counted and self.training:
            taken, self.calls_taken = count_up(taken)
        left = 1.0 - (taken / self.calls).clamp(max=1.0)
        return 1.0 + (self.start / self.scale - 1.0) * left  # exactly 1 in the end

    def extra_repr(self) -> str:
        return f"start={self.start}, calls={self.calls}"


def make_annealed_scale(
    scale: float, start_and_calls: Sequence[float] | None, *, fixed: bool, cosines: bool
) -> AnnealedScale | None:
    """For a classifier of cosines whose scale is fixed otherwise; None where it is not asked for."""
    if start_and_calls is None:
        return None
    if not fixed:
        raise ValueError("annealed_scale and learnable_scale both change the scale; got both. Leave one of them out.")
    if not cosines:
        raise ValueError("annealed_scale needs context_similarity='cosine'; got 'dot', which has no scale.")
    return AnnealedScale(scale, start_and_calls)
