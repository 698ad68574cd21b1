"""The measured tables of README.md and docs are those of the records."""

import importlib.util
from pathlib import Path

import pytest

from cacseg.models import MODELS

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("tables", ROOT / "tools" / "tables.py")
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_page_has_the_tables_of_the_records(page):
    """If this fails: make tables."""
    assert (ROOT / page).read_text() == tables.rendered(page)


def test_a_mean_of_fewer_than_three_seeds_is_not_shown():
    rows = tables.shipped()
    few = rows[(rows["arm"] != "tuned") | (rows["seed"] < 2)]
    (camvid, *_), (fewer, *_) = (tables.gains(one, tables.DATA, ("plain", "tuned")) for one in (rows, few))
    assert camvid[:4] == fewer[:4]
    assert camvid[4]
    assert not fewer[4]


def test_every_model_of_the_paper_was_exported():
    """If this fails: python benchmarks/export_models.py -o benchmarks/results/export_models.json, which goes on."""
    found = tables.timed("export_models")["models"]
    assert set(found) == set(MODELS)
    for name, one in found.items():
        assert len(one["checks"]) == 2, name
        assert all(check["difference"] <= check["allowed"] for check in one["checks"]), name
