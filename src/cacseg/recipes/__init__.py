"""Named runs: functions that return a whole, typed configuration."""

from cacseg.recipes.config import Config, change
from cacseg.recipes.named import RECIPES, Recipe, find_recipe

__all__ = ["RECIPES", "Config", "Recipe", "change", "find_recipe"]
