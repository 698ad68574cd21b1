"""The layer that tells from a whole image which classes it has."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cacseg._checks import check_presence_gradient
from cacseg._counting import count_up
from cacseg.functional._precision import no_autocast
from cacseg.functional.gradients import scale_gradient
from cacseg.functional.presence import image_classes, scene_codes

Presence = bool | Literal["relative"]
# Of a relative layer: the length of its codes beside `scale`, by which AdamW learns faster; the weight of each class
# in the loss, by which SGD then does not, and its gradient is small beside the others where all are clipped together.
LONGER, CLASS_WEIGHT = 3.0, 0.02


class PresenceHead(nn.Linear):
    """From features to a logit for each class that the image may have; `gradient` times what it sends reaches them.

    Relative, a logit says how much more this image speaks for a class than any does: loss and answer add the log-odds
    of the class among the training images (crops) seen so far, and a class only loses by what it is below them. A
    layer that has learnt nothing says nothing.
    """

    images_with: Tensor | None  # of the labelled training images: those that have each class, and, last, all

    def __init__(
        self, channels: int, num_classes: int, scale: float, *, relative: bool = False, gradient: float = 0.0
    ) -> None:
        super().__init__(2 * channels, num_classes)
        self.gradient = gradient
        self.length = LONGER * scale if relative else scale
        self.register_buffer("images_with", torch.zeros(num_classes + 1, dtype=torch.int64) if relative else None)

    @property
    def kind(self) -> Presence:
        """What the classifier was asked for."""
        return True if self.images_with is None else "relative"

    def reset_parameters(self) -> None:
        """Zeros, without a word at first; and no random number is drawn, so that all else starts as without it."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        counts = getattr(self, "images_with", None)  # not there yet when the layer is made
        if counts is not None:
            counts.zero_()

    def forward(
        self, features: Float[Tensor, "b d *spatial"], offsets: Int[Tensor, " b_plus_1"] | None = None
    ) -> Float[Tensor, "images n"]:
        with no_autocast(features):
            codes = scene_codes(scale_gradient(features, self.gradient), self.length, offsets)
            return super().forward(codes.to(self.weight.dtype))

    def usual_odds(
        self, labels: Int[Tensor, "b *spatial"] | None = None, offsets: Int[Tensor, " b_plus_1"] | None = None
    ) -> Float[Tensor, " n"] | None:
        """The log-odds of each class in an image; a call with labels while training counts their images.

        ((with_it + 0.5) / (all - with_it + 0.5)).log()

        None where the layer is not relative. Of several processes each counts its own images; DistributedDataParallel
        gives all of them the counts of the first.
        """
        if self.images_with is None:
            return None
        if labels is not None and self.training:
            there = image_classes(labels, self.out_features, ignore_index=-1, offsets=offsets)
            seen = torch.cat([there, there.any(dim=1, keepdim=True)], dim=1).sum(dim=0)
            _, self.images_with = count_up(self.images_with, seen)
        counts = self.images_with.to(torch.promote_types(self.weight.dtype, torch.float32))
        with_it, every = counts[:-1], counts[-1]
        return ((with_it + 0.5) / (every - with_it + 0.5)).log()


def make_presence_head(
    presence: Presence, channels: int, num_classes: int, scale: float, context_design: str, *, gradient: float = 0.0
) -> PresenceHead | None:
    """None where it is not asked for."""
    if not isinstance(presence, bool) and presence != "relative":
        raise ValueError(f"presence must be True, False or 'relative'; got {presence!r}.")
    check_presence_gradient(gradient, has_presence=presence is not False)
    if presence is False:
        return None
    if context_design == "none":
        raise ValueError("presence is a bias of the context classifier, and context_design='none' has none.")
    return PresenceHead(channels, num_classes, scale, relative=presence == "relative", gradient=gradient)
