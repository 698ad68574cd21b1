"""How the prototypes of an image and the fixed weight become the image's classifier."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import nn

DesignName = Literal[
    "project_concat",
    "prototype",
    "sum",
    "project",
    "project_sum",
    "project_concat_residual",
    "weight",
    "none",
]


class Design(NamedTuple):
    """How the prototypes P of an image and the fixed weight C become its classifier A."""

    formula: str
    joined: Literal["", "sum", "concat"] = ""  # how C joins P before the projector
    projected: bool = False
    residual: bool = False  # C is added once more at the end


DESIGNS: dict[str, Design] = {
    "project_concat": Design("A = theta([P, C])", joined="concat", projected=True),  # the paper's choice
    "prototype": Design("A = P"),
    "sum": Design("A = P + C", joined="sum"),
    "project": Design("A = theta(P)", projected=True),
    "project_sum": Design("A = theta(P + C)", joined="sum", projected=True),
    "project_concat_residual": Design("A = theta([P, C]) + C", joined="concat", projected=True, residual=True),
    "weight": Design("A = C, seen through the similarity of the context branch"),
    "none": Design("no such branch"),
}


def make_projector(
    design: Design, channels: int, *, reads_share: bool = False, zero_start: bool = False
) -> nn.Sequential | None:
    """theta: two linear layers with a ReLU between them, the first without bias; None where A needs none.

    With `reads_share` it has one input more, how much of the image a class takes, and one output more, a bias of the
    class, which starts at 0. With `zero_start` all of its outputs do.
    """
    if not design.projected:
        return None
    inputs, hidden = (2 * channels if design.joined == "concat" else channels), channels // 2
    first = nn.Linear(inputs + reads_share, hidden, bias=False)
    second = nn.Linear(hidden, channels + reads_share)
    if reads_share:
        nn.init.zeros_(second.weight[-1:])
        nn.init.zeros_(second.bias[-1:])
    if zero_start:
        nn.init.zeros_(second.weight)
        nn.init.zeros_(second.bias)
    return nn.Sequential(first, nn.ReLU(), second)
