"""Rounds twenty-one and twenty-two of docs/search.md, presence and overlap together, are what the records say."""

import re

import pytest

from cacseg.study.results import read_records
from cacseg.study.summary import mean_of
from cacseg.study.tables import signed
from study_pages import (
    DOCS,
    FCN,
    NEAR,
    PLANNED,
    RESULTS,
    apart,
    beside_both,
    by_arm,
    lines_of,
    rows_of,
    scores,
    signed_pair,
    told,
    told_apart,
)

HELD_OUT = ("ends", ("camvid_held_out", FCN, "adamw", 1000))
UNSCALED = [("unscaled", ("msrc21_unscaled", model, "adamw", 2000)) for model in (FCN, NEAR)]
LONG = [*UNSCALED, ("further", ("msrc21", NEAR, "adamw", 2000)), HELD_OUT]
SHORT = [
    (name, ("msrc21", model, "adamw", n)) for name, model in (("presets", FCN), ("fits", NEAR)) for n in (200, 800)
]
RATES = ("adamw", "adamw_fast")
TWICE = (("overlap_3", "joined"), ("tuned", "relative"))  # either recipe, trained twice: the second without its bias


def beside_plain(name, cell, arm, baseline="plain"):
    return by_arm(lines_of(name, PLANNED, baseline=baseline))[(arm, *cell)]


def row_of(name, cell, arm):
    """With its bias beside two trainings of `tuned`, what the bias is of it, and the whole from plain."""
    line = beside_plain(name, cell, arm)
    numbers = [*beside_both(name, cell, arm, biased=True), told_apart(name, cell, PLANNED, arm).difference]
    return [*map(str, cell), *map(signed, numbers), signed_pair(line.difference), line.verdict]


def twenty_one_rows():
    for arm in ("aware", "aware_5"):
        for name, cell in (*UNSCALED, *([HELD_OUT] if arm == "aware" else [])):
            yield f"| {' | '.join([f'`{arm}`', *row_of(name, cell, arm)])} |"


def twenty_two_rows():
    for name, cell in (*LONG, *SHORT):
        yield f"| {' | '.join(row_of(name, cell, 'joined'))} |"


@pytest.mark.parametrize(("name", "rows"), [("twentyone", twenty_one_rows), ("twentytwo", twenty_two_rows)])
def test_the_tables_are_those_of_the_records(name, rows):
    assert rows_of("search.md", name) == list(rows())


def test_round_twenty_two_in_words():
    page, results = (re.sub(r"\s+", " ", (DOCS / name).read_text()) for name in ("search.md", "results.md"))
    met = [beside_plain(*one, "joined").verdict == "ahead" for one in LONG]
    assert met == [True, False, False, True]
    assert "It meets the goal in two of the four long cells" in page
    short = mean_of([beside_plain(*one, "joined", "tuned").difference.value for one in SHORT])
    assert f"over the four short cells it is {short.value:.1f} above `tuned`" in page
    ours, theirs = TWICE
    both = [tuple(beside_both(*one, ours, theirs)) for one in (*LONG, *SHORT)]
    over, pixels = (mean_of([one[i].value for one in both]) for i in (0, 1))
    words = f"{told(over, 1, 2)} over the eight cells, with {told(pixels, 1, 2)} more pixel accuracy"
    assert words in page
    assert words in results
    lowest = min(one[0].value for one in both)
    assert f"in none of them more than {-lowest:.1f} below" in page
    fcn, near = (
        mean_of([found[0].value for one, found in zip((*LONG, *SHORT), both, strict=True) if one[1][1] == model])
        for model in (FCN, NEAR)
    )
    assert f"{told(fcn, 1)} in the four with FCN, {told(near, 1)} in the four with DeepLabV3+" in page


def test_generated_scenes_with_both_in_words():
    page = re.sub(r"\s+", " ", (DOCS / "search.md").read_text())
    again = read_records([RESULTS / "repeats/scenes.csv"])
    found, alone = [], []
    for rate in RATES:
        cell = ("scenes", "deeplabv3plus", rate, 150)
        runs = (one for one in again if (one["arm"], one["optimiser"]) == ("tuned", rate))
        tuned = {str(one["seed"]): one["answers"]["context"]["miou"] for one in runs}
        found.append(apart(scores("scenes", cell, "joined", "context"), tuned))
        alone.append(apart(scores("scenes", cell, "joined", "context_alone"), tuned))
    assert [one.n for one in found] == [3, 3]
    assert "generated scenes it is {} and, at the higher rate, {} from `tuned`".format(*map(signed_pair, found)) in page
    assert "second training is {} and, at the higher rate, {} from `tuned`".format(*map(signed_pair, alone)) in page
