"""What docs/training.md says of settings and recipes is so."""

import re
from pathlib import Path

from cacseg.recipes import RECIPES, find_recipe
from cacseg.recipes.config import flat
from cacseg.recipes.files import RESUMABLE_CHANGES
from cacseg.recipes.named import PAPER_DATA

TEXT = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def test_every_setting_that_is_named_exists():
    known = {key for key, _ in flat(find_recipe("folder"))}
    named = set(re.findall(r"\b((?:model|data|optimiser|schedule|training)\.[a-z_]+)\b", TEXT)) - {
        "models.md",
        "data.md",
    }
    assert len(named) > 20
    assert named <= known


def test_every_setting_that_may_change_is_named():
    (section,) = re.findall(r"<!-- may differ:.*?-->\n(.*?)<!-- /may differ -->", TEXT, re.DOTALL)
    assert set(re.findall(r"`([a-z_.]+)`", section)) == set(RESUMABLE_CHANGES)


def test_every_recipe_is_in_the_table():
    for name in (*PAPER_DATA, *(name for name in RECIPES if "/" not in name)):
        assert f"`{name}`" in TEXT
