"""Round twenty-four of docs/search.md, by which overlap became part of the default, is what the records say."""

import pytest

from cacseg.study.summary import mean_of
from study_pages import (
    FCN,
    NEAR,
    PLANNED,
    WHOLE,
    line_of,
    lines_of,
    rows_of,
    signed_pair,
    told,
    words_of,
)

SIX = [("rates", ("camvid_held_out", FCN, rule, 800)) for rule in ("adamw", "adamw_fast", "sgd", "sgd_fast")]
SIX += [("rates", ("msrc21", FCN, rule, 800)) for rule in ("adamw_fast", "sgd_fast")]
SHORT = [
    (name, ("camvid", model, rule, steps))
    for rule in ("adamw", "sgd")
    for name, model in (("presets", FCN), ("fits", NEAR))
    for steps in (200, 800)
]
TEN = [("full", ("camvid", FCN, "adamw", 2000)), ("further", ("camvid", NEAR, "adamw", 1000)), *SHORT]
WIDE = "deeplabv3plus_mobilenetv2"
REST = [
    ("presets", (data, WIDE, rule, steps))
    for data in ("camvid", "msrc21")
    for rule in ("adamw", "sgd")
    for steps in (200, 800)
]
REST += [("recipe", WHOLE)]


def has(name, cell, arm):
    found = (line for line in lines_of(name, PLANNED) if line.own and line.arm == arm and line.cell == cell)
    return any(line.difference.n == len(PLANNED) for line in found)


def rows(cells):
    for name, cell in cells:
        beside, from_plain = (line_of("tuned", name, cell, base) for base in ("centred", "plain"))
        control = ["", ""]
        if has(name, cell, "plain_overlap"):
            control = [
                signed_pair(line_of("plain_overlap", name, cell, "plain").difference),
                signed_pair(line_of("tuned", name, cell, "plain_overlap").difference),
            ]
        numbers = map(signed_pair, (beside.difference, beside.pixel_difference, from_plain.difference))
        yield f"| {' | '.join([*map(str, cell), *numbers, from_plain.verdict, *control])} |"


def over(cells, rule, what="difference", arm="tuned", base="centred"):
    """The mean over the cells of one optimiser, at whatever rate."""
    values = [getattr(line_of(arm, *one, base), what).value for one in cells if one[1][2].startswith(rule)]
    return mean_of(values)


@pytest.mark.parametrize(
    ("page", "name", "rows"),
    [
        ("search.md", "twentyfour", lambda: rows(SIX)),
        ("search.md", "confirmed", lambda: rows(TEN)),
        ("search.md", "left", lambda: rows(REST)),
    ],
)
def test_the_tables_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())


def test_the_rule_in_words():
    page = words_of("search.md")
    adamw, sgd, pixels = over(SIX, "adamw"), over(SIX, "sgd"), over(SIX, "", "pixel_difference")
    control = over(SIX, "", arm="plain_overlap", base="tuned")
    assert f"0.6 above in the mean of three cells with AdamW | {adamw.value:.1f} |" in page
    assert f"0.2 below in the mean of three with SGD | {sgd.value:.1f} *above* |" in page
    assert f"`plain_overlap` 1.0 below it in the mean of six | {-control.value:.1f} below |" in page
    assert adamw.value >= 0.3
    assert sgd.value >= -0.3
    assert pixels.value >= -0.2
    said = f"{sgd.value:.2f} above with SGD (± {sgd.error:.2f} over the three cells)"
    assert f"{adamw.value:.2f} above with AdamW, where 0.3 was asked, {said}" in page
    assert f"and {-pixels.value:.2f} below in pixel accuracy, where 0.2 was" in page
    beside = over(SIX, "", arm="centred", base="plain_overlap")
    assert f"`centred` is {told(beside, 1)} above plain with overlap over these six" in page


def test_the_validation_split_in_words():
    page = words_of("search.md")
    adamw, sgd = over(TEN, "adamw"), over(TEN, "sgd")
    assert f"0.7 above `centred` over the six with AdamW | {adamw.value:.1f} |" in page
    assert f"0.2 below over the four with SGD | {sgd.value:.1f} *above* |" in page
    said = f"{sgd.value:.2f} above with SGD (± {sgd.error:.2f} over the four cells)"
    assert f"{adamw.value:.2f} above with AdamW, where 0.2 was asked, and {said}" in page
    assert {line_of("tuned", *one, "plain").verdict for one in TEN} == {"ahead"}
    assert adamw.value >= 0.2
    assert sgd.value >= -0.3


def test_the_cells_that_were_left_in_words():
    page = words_of("search.md")
    values = [line_of("tuned", *one, "centred").difference.value for one in REST]
    assert f"it is {signed_pair(mean_of(values))} from `centred` over these nine" in page
    whole, from_plain = (line_of("tuned", *REST[-1], base) for base in ("centred", "plain"))
    assert f"{told(whole.difference, -1)} *below* `centred`" in page
    said = f"{told(from_plain.difference, -1)} below plain, with {told(from_plain.pixel_difference, -1)} less pixel"
    assert said in page
    everywhere = SIX + TEN + REST
    assert len(everywhere) == 25
    new = mean_of([line_of("tuned", *one, "centred").difference.value for one in everywhere])
    assert f"Over the 25 cells of this round it is {told(new, 1)} above `centred`" in page
