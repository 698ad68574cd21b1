"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cacseg.recipes.config import Config


def open_recipe(text: str) -> tuple[str, Config]:
    """Name and configuration of a recipe, of an earlier run or its config.json, or of what --print-config wrote."""
    from cacseg.recipes.files import read_recipe
    from cacseg.recipes.named import RECIPES, find_recipe

    if text not in RECIPES and (text.endswith(".json") or Path(text).is_dir()):
        return read_recipe(text)
    return text, find_recipe(text)


def integers(option: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be whole numbers between commas; got {text!r}.") from None
    if len(set(values)) < len(values):
        raise ValueError(f"{option} must be different numbers; got {text!r}.")
    return values
