"""What is known of an architecture of another library: where its seam is, or why it has none."""

from __future__ import annotations

from typing import NamedTuple


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
