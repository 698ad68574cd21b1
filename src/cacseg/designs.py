"""How the prototypes of an image and the fixed weight become the image's classifier."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cacseg._checks import check_choice
from cacseg.functional._precision import no_autocast

DesignName = Literal[
    "project_concat", "prototype", "sum", "project", "project_sum", "project_concat_residual", "weight", "none"
]
Similarity = Literal["dot", "cosine"]
SIMILARITIES = ("dot", "cosine")


class Design(NamedTuple):
    """How the prototypes P of an image and the fixed weight C become its classifier A."""

    formula: str
    combined: Literal["", "sum", "concat"] = ""  # how C joins P before the projector
    projected: bool = False
    residual: bool = False  # C is added once more at the end


DESIGNS: dict[str, Design] = {
    "project_concat": Design("A = theta([P, C])", combined="concat", projected=True),  # the paper's choice
    "prototype": Design("A = P"),
    "sum": Design("A = P + C", combined="sum"),
    "project": Design("A = theta(P)", projected=True),
    "project_sum": Design("A = theta(P + C)", combined="sum", projected=True),
    "project_concat_residual": Design("A = theta([P, C]) + C", combined="concat", projected=True, residual=True),
    "weight": Design("A = C, seen through the similarity of the context branch"),
    "none": Design("no such branch"),
}
FUSED = ("project_concat", "project_concat_residual")  # that one operation can compute, where a kernel can run


def check_similarities(plain: str, context: str, bias: bool) -> None:
    check_choice("plain_similarity", plain, SIMILARITIES)
    check_choice("context_similarity", context, SIMILARITIES)
    if plain == "cosine" and bias:
        raise ValueError("plain_similarity='cosine' has no bias; got bias=True. Pass bias=False.")


def needs_prototypes(name: str) -> bool:
    return name not in ("weight", "none")


def choose_zero_start(given: bool | None, default: bool, *designs: str) -> bool:
    """Whether projectors are initialised to return 0: by default only where C is added, else nothing would learn."""
    fits = all(DESIGNS[name].residual for name in designs if DESIGNS[name].projected)
    if given and not fits:
        raise ValueError(
            "zero_start needs designs that add the weight at the end: a classifier of zeros never learns. Pass "
            f"'project_concat_residual' for both; got {' and '.join(map(repr, designs))}."
        )
    return default and fits if given is None else given


def make_projector(name: str, channels: int, zero_start: bool = False) -> nn.Sequential | None:
    """theta: two linear layers with a ReLU between them, the first without bias; None where A needs none."""
    design = DESIGNS[name]
    if not design.projected:
        return None
    inputs, hidden = (2 * channels if design.combined == "concat" else channels), channels // 2
    first, second = nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, channels)
    if zero_start:
        nn.init.zeros_(second.weight)
        nn.init.zeros_(second.bias)
    return nn.Sequential(first, nn.ReLU(), second)


def projector_weights(projector: nn.Sequential) -> list[Tensor]:
    """[first weight, second weight, second bias]; `parameters()` would search the modules, in every step."""
    first, _, second = projector
    return [cast(Tensor, one) for one in (first.weight, second.weight, second.bias)]


def make_classifier(
    name: str,
    projector: nn.Module | None,
    prototypes: Float[Tensor, "#images n d"] | None,
    weight: Float[Tensor, "n d"],
) -> Float[Tensor, "#images n d"] | None:
    """A of Eqs. (2) and (5), None with the design "none". In float32 under autocast: n rows cost nothing."""
    if prototypes is None:
        return None if name == "none" else weight[None]
    design = DESIGNS[name]
    with no_autocast(weight):
        classifier = prototypes.to(weight.dtype)
        fixed = weight.expand_as(classifier)
        if design.combined == "sum":
            classifier = classifier + fixed
        elif design.combined == "concat":
            classifier = torch.cat([classifier, fixed], dim=-1)
        if projector is not None:
            classifier = projector(classifier)
        return classifier + fixed if design.residual else classifier
