"""Rounds nineteen and twenty of docs/search.md, a loss for the overlap that mIoU scores, are what the records say."""

import re

import pytest

from cacseg.study.summary import mean_of
from cacseg.study.tables import signed
from study_pages import DOCS, FCN, NEAR, PLANNED, beside_both, by_arm, lines_of, pair, rows_of, signed_pair

HELD_OUT = ("ends", ("camvid_held_out", FCN, "adamw", 1000))
UNSCALED = ("unscaled", ("msrc21_unscaled", FCN, "adamw", 2000))
SCALED_NEAR = ("further", ("msrc21", NEAR, "adamw", 2000))
LONG = [
    ("full", ("msrc21", FCN, "adamw", 2000)),
    SCALED_NEAR,
    ("unscaled", ("msrc21_unscaled", NEAR, "adamw", 2000)),
    ("unscaled", ("msrc21_unscaled", FCN, "sgd", 2000)),
]
SHORT = [("presets", ("msrc21", FCN, rule, steps)) for rule in ("adamw", "sgd") for steps in (200, 800)]
FITS = [("fits", ("msrc21", NEAR, rule, steps)) for rule in ("adamw", "sgd") for steps in (200, 800)]
SCENES = [("scenes", ("scenes", "deeplabv3plus", rule, 150)) for rule in ("adamw", "adamw_fast")]
NEW_SEEDS = [UNSCALED, SCALED_NEAR, *SHORT[:2], ("presets", ("msrc21", "deeplabv3plus_mobilenetv2", "adamw", 800))]


def line_of(arm, name, cell, baseline, seeds=PLANNED):
    return by_arm(lines_of(name, seeds, baseline=baseline))[(arm, *cell)]


def first_rows():
    """The three arms in the two cells that they were chosen in."""
    for arm, weight in (("overlap", "1"), ("overlap_3", "3"), ("overlap_alone", "1, no distillation")):
        numbers = [signed(one) for name, cell in (HELD_OUT, UNSCALED) for one in beside_both(name, cell, arm)]
        yield f"| {' | '.join([f'`{arm}`', weight, *numbers])} |"


def rows_beside_tuned(cells, seeds=PLANNED):
    for name, cell in cells:
        beside, from_plain = (line_of("overlap_3", name, cell, base, seeds) for base in ("tuned", "plain"))
        numbers = [signed_pair(one) for one in (beside.difference, beside.pixel_difference, from_plain.difference)]
        yield f"| {' | '.join([*map(str, cell), *numbers, from_plain.verdict])} |"


def nineteen_rows():
    return rows_beside_tuned([*LONG, *SHORT, *FITS, *SCENES])


def twenty_rows():
    return rows_beside_tuned(NEW_SEEDS, ("3", "4", "5"))


def control_rows():
    """The plain classifier with the same term, and what `tuned` and `overlap_3` have beside it."""
    for name, cell in (HELD_OUT, UNSCALED):
        control = line_of("plain_overlap", name, cell, "plain")
        others = (line_of(arm, name, cell, "plain_overlap") for arm in ("tuned", "overlap_3"))
        found = [one for line in (control, *others) for one in (line.difference, line.pixel_difference)]
        yield f"| {' | '.join([*map(str, cell), *map(signed_pair, found)])} |"


@pytest.mark.parametrize(
    ("page", "name", "rows"),
    [
        ("search.md", "overlaps", first_rows),
        ("search.md", "nineteen", nineteen_rows),
        ("search.md", "twenty", twenty_rows),
        ("results.md", "control", control_rows),
    ],
)
def test_the_tables_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())


def means(cells, seeds=PLANNED):
    """Over the cells: the mean of the differences from `tuned`, with the error of the cells' means around it."""
    return mean_of([line_of("overlap_3", name, cell, "tuned", seeds).difference.value for name, cell in cells])


def words(mean, digits=1):
    return pair(mean, digits).lstrip("-")


def test_the_rounds_in_words():
    search, results, readme = (
        re.sub(r"\s+", " ", (DOCS / name).read_text()) for name in ("search.md", "results.md", "../README.md")
    )
    long, short, fits = (means(cells) for cells in (LONG, SHORT, FITS))
    again = means(NEW_SEEDS, ("3", "4", "5"))
    assert f"**Not met**: over the four long cells it is {words(long)}." in search
    assert f"0.5 in the mean of four cells | {words(short)} |" in search
    assert f"0.3 in the mean of four cells | {words(fits)} |" in search
    assert f"met: {words(again, 2)} over the five cells, in none below by more than 0.1" in search
    differences = [line_of("overlap_3", *one, "tuned", ("3", "4", "5")).difference.value for one in NEW_SEEDS]
    assert min(differences) > -0.1
    assert again.value > 2.0 * again.error
    told = f"`overlap_3` is {words(short)} above in four short cells of MSRC-21 with FCN, {words(fits)} in four with"
    assert (
        f"{told} DeepLabV3+, {words(long)} in four long ones, and with new seeds {words(again, 2)} in five" in results
    )
    slow, fast = (line_of("overlap_3", *one, "tuned").difference for one in SCENES)
    assert f"it is {words(slow)} above `tuned` and, at the higher rate, {words(fast)} below it" in search

    plain, tuned, ours = (
        [line_of(arm, *one, "plain").difference for one in (HELD_OUT, UNSCALED)]
        for arm in ("plain_overlap", "tuned", "overlap_3")
    )
    six = {arm: by_arm(lines_of("unscaled"))[(arm, *UNSCALED[1])].difference for arm in ("tuned", "overlap_3")}
    assert [one.n for one in six.values()] == [6, 6]
    told = f"has {words(plain[0])} on images held out of CamVid, long, where the default has {words(tuned[0])}, and"
    told += f" {words(plain[1])} beside {words(tuned[1])} on MSRC-21 unscaled"
    assert told in readme
    assert (
        f"has {words(ours[0])} and, with six seeds, {words(six['overlap_3'])}, but no more than the default" in readme
    )
    told = (
        f"{words(plain[0])} on CamVid's held-out images, where `tuned` has {words(tuned[0])}, and {words(plain[1])} on"
    )
    assert f"{told} MSRC-21 unscaled, where it has {words(tuned[1])}" in results
    told = f"the same term has {words(ours[0])} and {words(ours[1])} (with six seeds {words(six['overlap_3'])}, `tuned`"
    assert f"{told} {words(six['tuned'])})" in results
    beside = [line_of("tuned", *one, "plain_overlap").difference for one in (HELD_OUT, UNSCALED)]
    assert f"with that loss has {words(plain[0])}, {words(beside[0])} more than `tuned`" in results
    assert f"it has {words(plain[1])}, `tuned` {words(beside[1])} more" in results
    beside = [line_of("overlap_3", *one, "plain_overlap").difference for one in (HELD_OUT, UNSCALED)]
    assert f"`overlap_3` is {words(beside[0])} and {words(beside[1])} above it" in results
    evened = line_of("evened", *HELD_OUT, "plain")
    told = f"(`evened`: {words(evened.difference)}, and {words(evened.pixel_difference)} of pixel accuracy lost)"
    assert told in results
    assert f"Found: {words(plain[0])} and {words(plain[1])}, with as many pixels right as plain has" in search
    found = [
        next(beside_both(*one, arm)).value
        for one in (HELD_OUT, UNSCALED)
        for arm in ("overlap", "overlap_3", "overlap_alone")
    ]
    assert (
        "held-out images {:+.1f}, {:+.1f} and {:+.1f}, on MSRC-21 unscaled {:+.1f}, {:+.1f} and {:+.1f}".format(*found)
        in results
    )
