"""What a classifier reads and what it hands to its loss."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from cacseg.presets import DEFAULT, PresetName

Features = Float[Tensor, "b d *spatial"]
Logits = Float[Tensor, "b n *spatial"]
Labels = Int[Tensor, "b *full"]
Offsets = Int[Tensor, " b_plus_1"]


class ContextLogits(NamedTuple):
    """What a classifier returns when it is given labels: all that `ContextLoss` needs."""

    context: Logits  # p_p, the answer at inference
    plain: Logits  # p, of the fixed classifier
    oracle: Logits | None  # p_y, from the labels; None with oracle_design="none"
    labels: Int[Tensor, "b *spatial"]  # at the size of the features, -1 where they take no part
    offsets: Offsets | None = None  # of a packed batch
    ignore_index: int = 255  # of the full labels
    preset: PresetName = DEFAULT  # of the classifier
