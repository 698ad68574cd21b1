"""Checks of the arguments of `create_model`."""

from __future__ import annotations

from collections.abc import Sequence

from cacseg._checks import check_choice, check_dropout, check_label_smoothing


def check_common(
    head: str,
    num_classes: int,
    classifier: str,
    auxiliary: bool,
    dropout: float | None,
    label_smoothing: float,
    std: Sequence[float] | None,
) -> None:
    """What both kinds of classifier ask of the arguments."""
    check_choice("classifier", classifier, ("context", "plain"))
    check_label_smoothing(label_smoothing)
    if num_classes < 2:
        raise ValueError(
            f"num_classes must be at least 2; got {num_classes}. Background counts as a class: binary is 2."
        )
    if dropout is not None:
        check_dropout(dropout)
    if std is not None and not all(value > 0.0 for value in std):
        raise ValueError(f"std must be positive; got {list(std)}.")
    if head == "ocrnet" and not auxiliary:
        raise ValueError("OCRNet's first stage is its auxiliary head; got auxiliary=False. Leave it True.")


def read_numbers(name: str, values: Sequence[float] | None, count: int, what: str) -> list[float] | None:
    """As many floats as there must be, or None."""
    if values is None:
        return None
    if len(values) != count:
        raise ValueError(f"{name} must have one number for each of the {count} {what}; got {len(values)}.")
    return [float(value) for value in values]
