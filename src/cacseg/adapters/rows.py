"""What is known of an architecture of another library: where its seam is, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

AUXILIARY_WEIGHT = 0.4  # torchvision's, mmsegmentation's and transformers' own


class Row(NamedTuple):
    """One class of another library, recognised by package and name, without importing it."""

    package: str  # the first part of the class's module
    architecture: str  # the name of the class
    seam: str = ""  # the name of the convolution; "" where it is refused
    dropout: str = ""  # the name of a dropout right before it, where that is not the module before it in a Sequential
    auxiliary: str = ""  # the name of the auxiliary classifier's convolution, where a model has one
    ignore_index: str = ""  # the entry of the model's config that holds it
    auxiliary_weight: str = ""  # the entry of the model's config that holds it
    refusal: str = ""  # why there is no seam
    remark: str = ""  # for the documentation
    align_corners: bool = False  # of the upsampling of its scores, where no module shows it


class Parts(NamedTuple):
    """The parts of one model that a conversion touches, as its row and the model itself say."""

    seam: str = ""  # "" where it has to be found
    dropout: str = ""
    # The convolution of each auxiliary classifier, and the weight of its loss.
    auxiliaries: Mapping[str, float] = MappingProxyType({})
    ignore_index: int | None = None
    refusal: str = ""
    aligned: frozenset[str] = frozenset()  # convolutions whose scores are upsampled so, where no module shows it


def read_row(row: Row, model: Any) -> Parts:
    """A row, with what its entries of the model's config say."""
    weight = getattr(model.config, row.auxiliary_weight) if row.auxiliary_weight else AUXILIARY_WEIGHT
    names = dict(model.named_modules())
    return Parts(
        seam=row.seam,
        dropout=row.dropout,
        auxiliaries={row.auxiliary: weight} if row.auxiliary and row.auxiliary in names else {},
        ignore_index=getattr(model.config, row.ignore_index) if row.ignore_index else None,
        refusal=row.refusal,
        aligned=frozenset({row.seam}) if row.align_corners else frozenset(),
    )
