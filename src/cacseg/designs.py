"""How the prototypes of an image and the fixed weight become the image's classifier."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
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


Fact = Literal["share", "scene", "place"]
FACTS = ("share", "scene", "place")
PLACE_CODES = 4  # for each spatial dimension


def make_projector(
    design: Design, channels: int, *, inputs: int = 0, outputs: int = 0, zero_start: bool = False
) -> nn.Sequential | None:
    """theta: two linear layers with a ReLU between them, the first without bias; None where A needs none.

    `inputs` and `outputs` are further ones; such outputs start at 0, with `zero_start` all of them do.
    """
    if not design.projected:
        return None
    read, hidden = (2 * channels if design.joined == "concat" else channels), channels // 2
    first, second = nn.Linear(read + inputs, hidden, bias=False), nn.Linear(hidden, channels + outputs)
    zeros = slice(0 if zero_start else channels, None)
    with torch.no_grad():
        second.weight[zeros] = 0.0
        second.bias[zeros] = 0.0
    return nn.Sequential(first, nn.ReLU(), second)
