"""The measured tables of README.md and docs are those of the records."""

import sys
from pathlib import Path

import pytest

from cacseg.models import MODELS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
try:
    import result_tables
    import tables
    import time_tables
finally:
    sys.path.pop(0)


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_page_has_the_tables_of_the_records(page):
    """If this fails: make tables."""
    assert (ROOT / page).read_text() == tables.rendered(page)


def test_a_mean_of_fewer_than_three_seeds_is_not_shown():
    rows = result_tables.shipped()
    few = rows[(rows["arm"] != "tuned") | (rows["seed"] < 2)]
    (camvid, *_), (fewer, *_) = (
        result_tables.gains(one, result_tables.DATA, ("plain", "tuned")) for one in (rows, few)
    )
    assert camvid[:4] == fewer[:4]
    assert camvid[4]
    assert not fewer[4]


def test_every_model_of_the_paper_was_exported():
    """If this fails: python benchmarks/export_models.py -o benchmarks/results/export_models.json, which goes on."""
    found = time_tables.timed("export_models")["models"]
    assert set(found) == set(MODELS)
    for name, one in found.items():
        assert len(one["checks"]) == 2, name
        assert all(check["difference"] <= check["allowed"] for check in one["checks"]), name
