"""Which classes an image has, told from the image as a whole: not of the paper.

Where images differ in their classes, that is nearly all that the oracle knows beyond the plain one.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from cacseg.functional._precision import inverse_norm, no_autocast, widen
from cacseg.functional.labels import labelled
from cacseg.functional.packed import image_of_row

LEAST = 1e-4  # no class is less probable than that: the whole is never so sure that a pixel cannot object


def scene_codes(
    features: Float[Tensor, "b d *spatial"], length: float, offsets: Int[Tensor, " b_plus_1"] | None = None
) -> Float[Tensor, "images two_d"]:
    """Mean and largest value of each channel over each image, either vector brought to one length.

    length * cat([normalize(f.mean(-1)), normalize(f.amax(-1))], dim=1)
    """
    with no_autocast(features):
        values = widen(features)
        if offsets is None:
            mean, largest = values.flatten(2).mean(dim=-1), values.flatten(2).amax(dim=-1)
        else:
            image = image_of_row(offsets, len(values))[:, None].expand_as(values)
            empty = values.new_zeros(len(offsets) - 1, values.shape[1])
            mean = empty.scatter_add(0, image, values) / offsets.diff().clamp_min(1)[:, None]
            largest = empty.scatter_reduce(0, image, values, "amax", include_self=False)
        return length * torch.cat([one * inverse_norm(one, -1) for one in (mean, largest)], dim=-1)


def presence_bias(
    logits: Float[Tensor, "images n"], usual_odds: Float[Tensor, " n"] | None = None
) -> Float[Tensor, "images n"]:
    """What joins the logits of each class: the logarithm of the probability that the image has it.

        log p(z)                               p(z) = sigmoid(z) + 1e-4
        min(log p(z + u) - log p(u), 0)        with `usual_odds` u

    With the log-odds of each class in any image, the second: a class loses what the image makes it less probable than
    usual, and none gains.
    """
    logits = widen(logits)
    if usual_odds is None:
        return (logits.sigmoid() + LEAST).log()
    now, usually = ((one.sigmoid() + LEAST).log() for one in (logits + usual_odds, usual_odds))
    return (now - usually).clamp(max=0.0)


def add_presence(
    context: Float[Tensor, "b n *spatial"],
    logits: Float[Tensor, "images n"] | None,
    usual_odds: Float[Tensor, " n"] | None = None,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, "b n *spatial"]:
    """Context logits with the bias of each image; as they are where there is none."""
    if logits is None:
        return context
    bias = presence_bias(logits, usual_odds).to(context.dtype)
    if offsets is not None:
        return context + bias[image_of_row(offsets, len(context))]
    return context + bias.view(*bias.shape, *[1] * (context.ndim - 2))


def image_classes(
    labels: Int[Tensor, "b *spatial"],
    num_classes: int,
    *,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Bool[Tensor, "images n"]:
    """Which classes the labels of each image have.

    one_hot(y).amax(-1) > 0
    """
    images, n = len(labels) if offsets is None else len(offsets) - 1, num_classes
    labels = torch.where(labelled(labels, n, ignore_index), labels.long(), n)  # none addresses another image
    if offsets is None:
        place = labels.flatten(1) + torch.arange(images, device=labels.device)[:, None] * (n + 1)
    else:
        place = labels + image_of_row(offsets, len(labels)) * (n + 1)
    there = torch.zeros(images * (n + 1), dtype=torch.bool, device=labels.device).scatter(0, place.flatten(), True)
    return there.view(images, n + 1)[:, :n]


def presence_loss(
    logits: Float[Tensor, "images n"],
    labels: Int[Tensor, "b *spatial"],
    *,
    usual_odds: Float[Tensor, " n"] | None = None,
    ignore_index: int = 255,
    offsets: Int[Tensor, " b_plus_1"] | None = None,
) -> Float[Tensor, ""]:
    """Binary cross-entropy, over all classes, of those that the labels have; images without a label take no part.

    binary_cross_entropy_with_logits(z + usual_odds, one_hot(y).amax(-1))

    With `usual_odds`, the log-odds of each class in any image, the logits need only say how this one differs.
    """
    there = image_classes(labels, logits.shape[1], ignore_index=ignore_index, offsets=offsets)
    takes_part = there.any(dim=1)
    logits = widen(logits)
    if usual_odds is not None:
        logits = logits + usual_odds
    losses = F.binary_cross_entropy_with_logits(logits, there.to(logits.dtype), reduction="none").mean(dim=1)
    return losses.where(takes_part, 0.0).sum() / takes_part.sum().clamp_min(1)
