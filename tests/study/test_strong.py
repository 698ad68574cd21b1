"""What the pages say of every block dilated, and of UPerNet where nothing is shown, is what the records say."""

import statistics

import pytest

from cacseg.study.summary import mean_of
from study_pages import (
    PLANNED,
    WHOLE,
    apart,
    line_of,
    lines_of,
    pair,
    rows_of,
    scores,
    sign,
    signed_pair,
    told,
    words_of,
)
from study_strong import (
    BEFORE,
    DEEPLAB,
    HELD_OUT,
    MSRC,
    TRAININGS,
    UPERNET,
    all_runs,
    before,
    beside,
    by_seed,
    default_output,
    mean,
    of,
    over_all,
    own_records,
    training_of,
    training_rows,
)

EXPECTED = {
    "tuned": "as in confirm.csv, +0.1",
    "centred": "0.2 below",
    "released": "0.5 below",
    "plain_overlap": "as plain",
    "fixed_overlap": "as `tuned`",
    "soft": "0.6 above, its plain answers as plain",
    "frozen": "0.4 above, its plain answers as plain",
    "balanced": "0.4 above",
    "detached": "0.2 above",
    "undropped": "as `tuned`",
    "plain_undropped": "0.2 below",
}


def dilated_rows():
    """Plain and `tuned`, with the first blocks dilated and with all, and what is left of the default's gain."""
    for cell in BEFORE:
        row = [cell[0], {"fcn_all": "FCN", "deeplabv3plus_all": "DeepLabV3+"}[cell[1]], str(cell[3])]
        seeds = {arm: tuple(of(cell, arm)) for arm in ("plain", "tuned")}
        for arm, chosen in seeds.items():
            row += [f"{mean(before(cell, arm, chosen)):.1f}", f"{mean(of(cell, arm)):.1f}"]
            row.append(with_error(apart(of(cell, arm), before(cell, arm))))
        row += map(with_error, gains_of(cell))
        row.append(" and ".join(dict.fromkeys(str(len(chosen)) for chosen in seeds.values())))
        yield f"| {' | '.join(row)} |"


def gains_of(cell):
    """`tuned` beside plain with the first blocks dilated and with all, at the seeds that the latter has."""
    seeds = tuple(of(cell, "tuned"))
    yield apart(before(cell, "tuned", seeds), before(cell, "plain"))
    yield apart(of(cell, "tuned"), of(cell, "plain"))


def lost(cell):
    """How much less it gains with all of them dilated."""
    return mean_of(
        [
            (before(cell, "tuned")[seed] - before(cell, "plain")[seed]) - (of(cell, "tuned")[seed] - plain)
            for seed, plain in of(cell, "plain").items()
            if seed in of(cell, "tuned")
        ]
    )


def with_error(mean):
    return f"{mean.value:+.1f}" if mean.error is None else signed_pair(mean)


def arm_rows():
    """UPerNet: what was expected of each arm, what was found, and where in the model it is."""
    plain, runs = of(UPERNET, "plain"), over_all("plain")
    yield f"| `plain` | | | | | {runs.n} | {pair(runs)} |"
    for arm, expected in EXPECTED.items():
        own, answers = of(UPERNET, arm), of(UPERNET, arm, "plain")
        row = [f"`{arm}`", expected, signed_pair(apart(own, plain)), signed_pair(apart(answers, plain))]
        row.append(
            signed_pair(apart(own, answers)) if default_output(arm) == "context" and arm != "plain_overlap" else ""
        )
        runs = over_all(arm)
        row += [str(runs.n), pair(runs)]
        yield f"| {' | '.join(row)} |"


@pytest.mark.parametrize(
    ("page", "name", "rows"),
    [
        ("results.md", "dilated", dilated_rows),
        ("search.md", "twentyeight", arm_rows),
        ("search.md", "trainings", training_rows),
    ],
)
def test_the_rows_of_a_table_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())


@pytest.fixture(scope="module")
def results():
    return words_of("results.md")


def test_the_rule_for_recipes_is_met():
    """Plain is a point and two standard errors above the reference's dilation in both."""
    gains = [apart(of(cell, "plain"), before(cell, "plain")) for cell in (MSRC, HELD_OUT)]
    assert all(gain.value >= 1.0 and sign(gain) > 0 for gain in gains)
    said = f"It gives a plain FCN {pair(gains[0])} points on MSRC-21 and {pair(gains[1])} on CamVid's held-out images"
    assert said in words_of("results.md")
    assert f"a plain FCN gains {pair(gains[0])} and {pair(gains[1])} points by it" in words_of("models.md")
    assert f"{pair(gains[0])} and {pair(gains[1])} above what it was" in words_of("search.md")


def test_the_verdicts(results):
    own = {line.cell: line for line in lines_of("strong") if line.own and line.arm == "tuned"}
    assert {cell: own[cell].verdict for cell in (MSRC, HELD_OUT, UPERNET)} == {
        MSRC: "above",
        HELD_OUT: "ahead",
        UPERNET: "even",
    }
    assert not own[DEEPLAB].verdict  # one seed
    strong, held_out = own[MSRC].difference, own[HELD_OUT].difference
    assert f"{pair(strong)} above plain, of 1.9 that it was" in results
    assert f"{pair(held_out)} of 4.1 are left" in results
    assert [f"{line_of('tuned', *BEFORE[cell], 'plain').difference.value:.1f}" for cell in (MSRC, HELD_OUT)] == [
        "1.9",
        "4.1",
    ]


def test_what_was_expected(results):
    strong, held_out = (line_of("tuned", "strong", cell, "plain") for cell in (MSRC, HELD_OUT))
    for words in (
        f"`tuned` 1.0 above it | plain {mean(of(MSRC, 'plain')):.1f}; {pair(strong.difference)}, {strong.verdict} |",
        f"`tuned` 3.5 above it, ahead | plain {mean(of(HELD_OUT, 'plain')):.1f}; {pair(held_out.difference)},"
        f" {held_out.verdict} |",
        "`tuned` 4.0 above it, ahead | plain {:.1f} and {:.1f}; with one seed {:+.1f} |".format(
            *of(DEEPLAB, "plain").values(), of(DEEPLAB, "tuned")["0"] - of(DEEPLAB, "plain")["0"]
        ),
    ):
        assert words in results


def test_the_start_beside_the_classifier(results):
    better, worse = (apart(of(cell, "plain"), before(cell, "tuned")) for cell in (MSRC, HELD_OUT))
    words = f"is {told(better, 1)} above `tuned` with the reference's dilation on MSRC-21, and {told(worse, -1)} below"
    assert f"{words} it on held-out images" in results
    whole = mean(scores("recipe", WHOLE, "plain", "plain"))
    assert f"after half of the steps with which it had {whole:.1f}" in results


def test_within_the_models(results):
    said = []
    for cell in (MSRC, HELD_OUT):
        own, answers, plain = of(cell, "tuned"), of(cell, "tuned", "plain"), of(cell, "plain")
        said += [pair(apart(own, answers)), signed_pair(apart(answers, plain))]
    words = "context answers are {} above the plain answers of the same models, and these {} from plain, on held-out"
    assert f"{words} images {{}} and {{}}".format(*said) in results


def test_what_is_left_of_the_gain(results):
    less = [lost(cell) for cell in (MSRC, HELD_OUT)]
    assert not any(map(sign, less))
    said = "by {} and {}".format(*map(pair, less))
    assert f"Both are lower, {said}, which three seeds do not show" in results
    assert (
        f"{said} (and by {lost(DEEPLAB).value:.1f} in the one seed of DeepLabV3+); three seeds do not show it"
        in results
    )


def test_upernet_again(results):
    plain, tuned = over_all("plain"), over_all("tuned")
    assert (plain.n, tuned.n) == (9, 9)
    difference = beside(tuned, plain)
    assert abs(difference.value) < 2 * difference.error
    assert f"over nine runs of each {told(difference, -1)} below plain" in results
    first, second, third = (apart(*reversed(training_of(path))) for path in TRAININGS)
    assert sign(third) < 0
    words = f"Trained twice more with UPerNet it is {signed_pair(second)} and {signed_pair(third)} from plain, behind"
    assert words in results
    words = f"`tuned` is {signed_pair(first)} from plain in studies/confirm.toml, {signed_pair(second)} here, and"
    assert f"{words} {signed_pair(third)}, behind," in results
    seeds = apart(by_seed("tuned"), by_seed("plain"))
    assert f"(paired by seeds, whose means happen to agree, {told(seeds, -1, 2)})" in results


def test_no_arm_is_asked_further():
    """Of those with a context-aware classifier none is 0.4 and two standard errors above `tuned`."""
    search, tuned = words_of("search.md"), of(UPERNET, "tuned")
    found = {arm: apart(of(UPERNET, arm), tuned) for arm in EXPECTED if arm != "tuned"}
    asked = [arm for arm, one in found.items() if one.value >= 0.4 and sign(one) > 0]
    assert asked == ["plain_overlap"]
    again = {arm: beside(over_all(arm), over_all("tuned")) for arm in found}
    assert not any(one.value >= 0.4 and sign(one) > 0 for one in again.values())
    assert f"{pair(found['plain_overlap'], 2)} above `tuned` with three seeds" in search
    assert f"(with all runs {pair(again['plain_overlap'], 2)})" in search
    words = f"`soft`, the highest of the others, is {pair(again['soft'], 2)} above `tuned` with all runs, and"
    assert f"{words} {pair(found['soft'], 2)} with the three seeds" in search
    words = "beside `tuned`, {}, {} and {}:".format(
        *(signed_pair(again[arm]) for arm in ("soft", "frozen", "balanced"))
    )
    assert words in words_of("results.md")


def test_runs_of_upernet_do_not_repeat():
    first = {(one["arm"], one["seed"]): one for one in own_records("strong.csv", UPERNET)}
    apart_by = []
    for one in own_records("repeats/strong.csv", UPERNET):
        answer, other = default_output(one["arm"]), first[(one["arm"], one["seed"])]
        assert one["digest"] == other["digest"]
        apart_by.append(abs(one["answers"][answer]["miou"] - other["answers"][answer]["miou"]))
    page = words_of("search.md")
    said = f"The {len(apart_by)} that were run twice differ by {statistics.fmean(apart_by):.1f} on average"
    assert f"{said} and by {max(apart_by):.1f} at most" in page


def test_what_less_of_the_gradient_does():
    search, plain = words_of("search.md"), over_all("plain")
    arms = ("soft", "frozen", "tuned")
    left = [signed_pair(beside(over_all(arm, "plain"), plain)) for arm in arms]
    given = [pair(mean_of([one["context"] - one["plain"] for _, one in all_runs(arm)])) for arm in arms]
    words = "plain answers are {} and {} from plain with all runs, those of `tuned` {}; but context answers"
    assert words.format(*left) in search
    assert "are then {} and {} above these, not {}: as if".format(*given) in search


def test_the_control_with_upernet(results):
    control = line_of("plain_overlap", "strong", UPERNET, "plain", PLANNED)
    assert control.verdict == "above"
    words = f"A plain classifier with the loss for overlap is {pair(control.difference)} above plain with three seeds,"
    assert f"{words} {pair(beside(over_all('plain_overlap'), over_all('plain')))} with all five runs" in results


def test_what_training_says():
    page = words_of("training.md")
    strong = line_of("tuned", "strong", MSRC, "plain")
    assert f"with half of its steps, it is {pair(strong.difference)}" in page
    assert f"a plain FCN has {mean(of(MSRC, 'plain')):.1f} after 2000" in page
