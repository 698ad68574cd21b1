"""Checks of the arguments of `create_model`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

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
        raise ValueError(f"num_classes must be at least 2; got {num_classes}. Background counts as a class.")
    if dropout is not None:
        check_dropout(dropout)
    if std is not None and not all(value > 0.0 for value in std):
        raise ValueError(f"std must be positive; got {list(std)}.")
    if head == "ocrnet" and not auxiliary:
        raise ValueError("OCRNet's first stage is its auxiliary head; got auxiliary=False. Leave it True.")


def check_names(name: str, given: Mapping[str, Any], owner: type, taken: Mapping[str, Any]) -> None:
    """Names of arguments of `owner`, but for those that `create_model` fills in itself; others get the nearest."""
    known = sorted(set(inspect.signature(owner).parameters) - set(taken) - {"in_channels", "num_classes"})
    unknown = sorted(set(given) - set(known))
    if not unknown:
        return
    nearest = [match for one in unknown for match in difflib.get_close_matches(one, known, n=1)]
    hint = f"Did you mean {' or '.join(map(repr, nearest))}?" if nearest else f"There are {', '.join(known)}."
    raise ValueError(
        f"{name} must be arguments of {owner.__name__} that create_model does not have itself; got "
        f"{', '.join(map(repr, unknown))}. {hint}"
    )


def read_numbers(name: str, values: Sequence[float] | None, count: int, what: str) -> list[float] | None:
    """As many floats as there must be, or None."""
    if values is None:
        return None
    if len(values) != count:
        raise ValueError(f"{name} must have one number for each of the {count} {what}; got {len(values)}.")
    return [float(value) for value in values]
