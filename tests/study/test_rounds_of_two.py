"""Rounds twenty-one and twenty-two of docs/search.md, presence and overlap together, are what the records say."""

import re

import pytest

from cacseg.study.results import read_records
from cacseg.study.summary import mean_of
from cacseg.study.tables import signed
from study_pages import (
    FCN,
    NEAR,
    PLANNED,
    RESULT_PAGES,
    RESULTS,
    apart,
    beside_both,
    line_of,
    rows_of,
    scores,
    signed_pair,
    told,
    told_apart,
    words_of,
)

HELD_OUT = ("ends", ("camvid_held_out", FCN, "adamw", 1000))
UNSCALED = [("unscaled", ("msrc21_unscaled", model, "adamw", 2000)) for model in (FCN, NEAR)]
LONG = [*UNSCALED, ("further", ("msrc21", NEAR, "adamw", 2000)), HELD_OUT]
SHORT = [
    (name, ("msrc21", model, "adamw", n)) for name, model in (("presets", FCN), ("fits", NEAR)) for n in (200, 800)
]
CHOSEN = (HELD_OUT, UNSCALED[0])  # of these eight, where round nineteen had chosen
RATES = ("adamw", "adamw_fast")
TWICE = (("tuned", "joined"), ("centred", "relative"))  # either recipe, trained twice: the second without its bias


def row_of(name, cell, arm):
    """With its bias beside two trainings of `centred`, what the bias is of it, and the whole from plain."""
    line = line_of(arm, name, cell, "plain")
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
    page, results = words_of("search.md"), words_of(*RESULT_PAGES)
    met = [line_of("joined", *one, "plain").verdict == "ahead" for one in LONG]
    assert met == [True, False, False, True]
    assert "it meets the goal in two of the four long cells" in page
    short = mean_of([line_of("joined", *one, "centred").difference.value for one in SHORT])
    assert f"over the four short cells it is {short.value:.1f} above `centred`" in page
    ours, theirs = TWICE
    both = [tuple(beside_both(*one, ours, theirs)) for one in (*LONG, *SHORT)]
    over, pixels = (mean_of([one[i].value for one in both]) for i in (0, 1))
    words = f"{told(over, 1, 2)} over the eight cells, with {told(pixels, 1, 2)} more pixel accuracy"
    assert words in page
    assert words in results
    elsewhere = [one[0].value for cell, one in zip((*LONG, *SHORT), both, strict=True) if cell not in CHOSEN]
    again = mean_of([next(beside_both(*one, "joined")).value for one in (*LONG, *SHORT)])
    words = f"without these it is {told(mean_of(elsewhere), 1, 2)}"
    assert f"{words}, and its second training alone, in all eight, {told(again, 1, 2)}" in page
    assert f"without the two where it had been chosen {told(mean_of(elsewhere), 1, 2)} ([round twenty-two]" in results
    lowest = min(one[0].value for one in both)
    assert f"in none of them more than {-lowest:.1f} below" in page
    fcn, near = (
        mean_of([found[0].value for one, found in zip((*LONG, *SHORT), both, strict=True) if one[1][1] == model])
        for model in (FCN, NEAR)
    )
    assert f"{told(fcn, 1)} in the four with FCN, {told(near, 1)} in the four with DeepLabV3+" in page


def test_generated_scenes_with_both_in_words():
    page = words_of("search.md")
    again = read_records([RESULTS / "repeats/scenes.csv"])
    found, alone, twice, fine = [], [], [], []
    for rate in RATES:
        cell = ("scenes", "deeplabv3plus", rate, 150)
        runs = (one for one in again if (one["arm"], one["optimiser"]) == ("centred", rate))
        centred = {str(one["seed"]): one["answers"]["context"]["miou"] for one in runs}
        found.append(apart(scores("scenes", cell, "joined", "context"), centred))
        runs = scores("scenes", cell, "joined", "context_alone"), scores("scenes", cell, "tuned", "context")
        alone.append(apart(runs[0], centred))
        coarse = {seed: (runs[0][seed] + runs[1][seed]) / 2 for seed in centred}
        twice.append(apart(coarse, centred))
        fine += [apart(scores("scenes", cell, "overlap_fine", "context"), other) for other in (coarse, centred)]
    assert [one.n for one in found] == [3, 3]
    words = "generated scenes it is {} and, at the higher rate, {} from `centred`"
    assert words.format(*map(signed_pair, found)) in page
    words = "without its bias it is {} and, at the higher rate, {}; from `centred` on the same cores {} and {}."
    assert words.format(*(signed_pair(fine[i]) for i in (0, 2, 1, 3))) in page
    assert "both together {} and {}: there is no loss".format(*(told(one, 1) for one in twice)) in page
    assert "second training is {} and, at the higher rate, {} from `centred`".format(*map(signed_pair, alone)) in page


def test_what_was_expected_is_beside_what_was_found():
    page, results = words_of("search.md"), words_of(*RESULT_PAGES)

    def both(arm, name, cell):
        return next(beside_both(name, cell, arm, biased=True)).value, told_apart(
            name, cell, PLANNED, arm
        ).difference.value

    fcn, near = ([one for arm in ("aware", "aware_5") for one in both(arm, *cell)] for cell in UNSCALED)
    assert "| {:.1f} and {:.1f}; {:.1f} and {:.1f} |".format(*fcn) in page
    assert max(near[0], near[2]) < 0
    assert (
        "| {:.1f} *below* and {:.1f}; {:.1f} *below* and {:.1f} |".format(*(-near[0], near[1], -near[2], near[3]))
        in page
    )
    held_out = both("aware", *HELD_OUT)
    assert f"| {-held_out[0]:.1f} *below* and {held_out[1]:.1f} |" in page
    words = "beside two trainings of `centred` {:+.1f} and {:+.1f} (FCN), {:+.1f} and {:+.1f} (DeepLabV3+), `aware` on"
    assert words.format(fcn[0], fcn[2], near[0], near[2]) in results
    without = [told_apart(*one, PLANNED).difference.value for one in (*UNSCALED, HELD_OUT)]
    assert "what it gives without that gradient ({:.1f}, {:.1f} and {:.1f})".format(*without) in page
    for (name, cell), row in zip(
        LONG, ("FCN unscaled", "DeepLabV3+ unscaled", "DeepLabV3+ scaled", "held-out"), strict=True
    ):
        value = both("joined", name, cell)[0]
        shown = f"{value:.1f}" if value > 0 else f"{-value:.1f} *below*"
        plain = line_of("joined", name, cell, "plain").difference.value
        assert re.search(rf"\| {re.escape(row)}[^|]*\| {re.escape(shown)} \({plain:.1f}\) \|", page)
    short = [mean_of([line_of("joined", *one, "centred").difference.value for one in SHORT[i : i + 2]]) for i in (0, 2)]
    assert f"0.4 with DeepLabV3+ | {short[0].value:.1f} and {short[1].value:.1f} |" in page
    means = {
        (arm, answer): mean_of(list(scores(*UNSCALED[0], arm, answer).values())).value
        for arm in ("aware", "aware_5", "joined")
        for answer in ("context", "context_alone")
    }
    told_so, alone = (
        [value for (_, kind), value in means.items() if kind == one] for one in ("context", "context_alone")
    )
    words = f"twenty-one and twenty-two ({min(told_so):.1f} to {max(told_so):.1f}; without their bias"
    assert f"{words} {min(alone):.1f} to {max(alone):.1f})" in results
