"""Rounds nineteen and twenty of docs/search.md, a loss for the overlap that mIoU scores, are what the records say."""

import pytest

from cacseg.study.summary import mean_of
from cacseg.study.tables import signed
from study_pages import FCN, NEAR, PLANNED, beside_both, by_arm, lines_of, rows_of, signed_pair

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
    for name, cell in (HELD_OUT, UNSCALED, *SCENES):
        control = line_of("plain_overlap", name, cell, "plain")
        others = (line_of(arm, name, cell, "plain_overlap") for arm in ("tuned", "overlap_3"))
        found = [one for line in (control, *others) for one in (line.difference, line.pixel_difference)]
        yield f"| {' | '.join([*map(str, cell), *map(signed_pair, found)])} |"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("overlaps", first_rows),
        ("nineteen", nineteen_rows),
        ("twenty", twenty_rows),
        ("control", control_rows),
    ],
)
def test_the_tables_are_those_of_the_records(name, rows):
    assert rows_of("search.md", name) == list(rows())


def means(cells, seeds=PLANNED):
    """Over the cells: the mean of the differences from `tuned`, with the error of the cells' means around it."""
    return mean_of([line_of("overlap_3", name, cell, "tuned", seeds).difference.value for name, cell in cells])
