"""How the prototypes of an image and the fixed weight become the image's classifier."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cacseg._checks import check_choice
from cacseg.functional._precision import no_autocast
from cacseg.functional.labels import class_masks
from cacseg.functional.prototypes import context_shares, oracle_shares, pixel_shares, place_codes

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
FACTS: tuple[Fact, ...] = ("share", "scene", "place")
PLACE_CODES = 4  # for each of the two spatial dimensions


class Head(NamedTuple):
    """The classifier of each image."""

    rows: Float[Tensor, "#images n d"]
    bias: Float[Tensor, "#images n"] | Float[Tensor, " n"] | None = None
    place: Float[Tensor, "images n c"] | None = None  # of a bias that differs from pixel to pixel


def make_projectors(
    designs: Sequence[str], channels: int, *, reads: Sequence[Fact] = (), zero_start: bool = False
) -> tuple[nn.Sequential | None, nn.Sequential | None, tuple[Fact, ...]]:
    """theta of the context and of the oracle branch, None where A needs none; and what they read, in order."""
    both = [DESIGNS[design] for design in designs]
    if zero_start and not all(design.residual for design in both if design.projected):
        raise ValueError(
            "zero_start needs designs that add the weight at the end: a classifier of zeros never learns. Pass "
            f"'project_concat_residual' for both; got {' and '.join(map(repr, designs))}."
        )
    if isinstance(reads, str) or not isinstance(reads, Collection):
        listed = ", ".join(map(repr, FACTS))
        raise TypeError(f"reads must be a list of {listed}; got {reads!r}. Pass ['share'], say.")
    for fact in reads:
        check_choice("reads", fact, FACTS)
    if reads and not all(design.projected for design in both if design is not DESIGNS["none"]):
        raise ValueError(f"reads needs designs with a projector; got {' and '.join(map(repr, designs))}.")
    sizes: dict[Fact, int] = {"share": 1, "scene": channels, "place": 2 * PLACE_CODES}
    read = tuple(fact for fact in FACTS if fact in reads)
    inputs = sum(sizes[fact] for fact in read)
    outputs = (1 if read else 0) + (sizes["place"] if "place" in read else 0)
    context, oracle = (
        make_projector(design, channels, inputs=inputs, outputs=outputs, zero_start=zero_start) for design in both
    )
    return context, oracle, read


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


def weights_of(projector: nn.Sequential) -> list[Tensor]:
    """[first weight, second weight, second bias]; `parameters()` would search the modules, in every step."""
    first, _, second = projector
    return [cast(Tensor, one) for one in (first.weight, second.weight, second.bias)]


def generate(
    design: Design,
    project: nn.Module | None,
    prototypes: Float[Tensor, "#images n d"] | None,
    weight: Float[Tensor, "1 n d"],
    bias: Float[Tensor, " n"] | None = None,
    facts: Float[Tensor, "images n f"] | None = None,
) -> Head:
    """A of Eqs. (2) and (5). In float32 under autocast: n rows cost nothing."""
    if prototypes is None:
        return Head(weight, bias)
    with no_autocast(weight):
        rows = prototypes.to(weight.dtype)
        weight = weight.expand_as(rows)
        if design.joined == "sum":
            rows = rows + weight
        elif design.joined == "concat":
            rows = torch.cat([rows, weight], dim=-1)
        if facts is not None:
            images = facts.shape[0]  # the prototypes may be those of the whole batch
            weight = weight.expand(images, -1, -1)
            rows = torch.cat([rows.expand(images, -1, -1), facts.to(rows.dtype)], dim=-1)
        if project is not None:
            rows = project(rows)
        place = None
        if facts is not None:
            channels = weight.shape[-1]
            rows, own, place = rows.split([channels, 1, rows.shape[-1] - channels - 1], dim=-1)
            bias = own[..., 0] if bias is None else bias + own[..., 0]
        return Head(rows + weight if design.residual else rows, bias, place)


def leave_some(head: Head, weight: Float[Tensor, "1 n d"], probability: float) -> Head:
    """Every image's classifier is the fixed weight instead with this probability, each drawn by itself."""
    drawn = torch.rand(head.rows.shape[0], 1, 1, device=head.rows.device) < probability
    return head._replace(rows=torch.where(drawn, weight.to(head.rows.dtype), head.rows))


def context_facts(
    reads: Sequence[Fact], features: Float[Tensor, "b d *spatial"], plain: Float[Tensor, "b n *spatial"]
) -> Float[Tensor, "b n f"]:
    """What `reads` names, by the plain prediction."""
    shares = context_shares(plain) if "share" in reads else None
    pixels = pixel_shares(plain) if "place" in reads else None
    return _facts(features, plain.shape[1], shares, "scene" in reads, pixels)


def oracle_facts(
    reads: Sequence[Fact], features: Float[Tensor, "b d *spatial"], labels: Int[Tensor, "b *spatial"], num_classes: int
) -> Float[Tensor, "b n f"]:
    """What `reads` names, by the labels, -1 where they take no part."""
    shares = oracle_shares(labels, num_classes, ignore_index=-1) if "share" in reads else None
    pixels = None
    if "place" in reads:
        pixels = class_masks(labels, num_classes, -1).flatten(2)
        pixels = pixels / pixels.sum(dim=-1, keepdim=True).clamp_min(1.0)
    return _facts(features, num_classes, shares, "scene" in reads, pixels)


def _facts(
    features: Tensor, num_classes: int, shares: Tensor | None, with_scene: bool, pixels: Tensor | None
) -> Tensor:
    """`shares`: what of its image each class takes; `pixels`: what part of its class's mean each pixel is."""
    found = []
    with no_autocast(features):
        if shares is not None:
            found.append(shares[..., None])
        if with_scene:
            scene = features.flatten(2).mean(dim=-1, dtype=torch.float32)
            found.append(scene[:, None].expand(-1, num_classes, -1))
        if pixels is not None:
            codes = place_codes(features, PLACE_CODES).flatten(1)
            found.append(pixels.flatten(2).float() @ codes.T)
    return torch.cat(found, dim=-1)


def finish(scores: Float[Tensor, "b n *spatial"], head: Head, factor: Tensor | None) -> Float[Tensor, "b n *spatial"]:
    """What goes beyond the paper's cosines: a factor that learns or grows, biases, and biases of each pixel."""
    if factor is not None:
        scores = scores * factor.to(scores.dtype)
    if head.bias is not None:
        scores = scores + head.bias.to(scores.dtype).view(*head.bias.shape, *[1] * (scores.ndim - 2))
    if head.place is not None and head.place.shape[-1] > 0:
        codes = place_codes(scores, PLACE_CODES).to(scores.dtype).flatten(1)
        scores = scores + (head.place.to(scores.dtype) @ codes).view(scores.shape)
    return scores
