"""What docs/results.md says of the default, `tuned`, is what the records say."""

from collections import Counter

import pytest

from cacseg.study.summary import mean_of
from study_pages import (
    CELLS,
    NUMBERS,
    PHOTOGRAPHS,
    PLANNED,
    SIX,
    WHOLE,
    lines_of,
    own_lines,
    own_of,
    rows_of,
    scores,
    sign,
    signed_pair,
    told,
    where_it_is,
    words_of,
)

WITH_CONTROL = [name for name in CELLS if any(line.arm == "plain_overlap" for line in lines_of(name))]


def beside(base, names):
    """`tuned` beside another arm, where both have all seeds."""
    lines = (line for name in names for line in own_lines(lines_of(name, PLANNED, baseline=base)))
    return [line for line in lines if line.arm == "tuned" and line.difference and line.difference.n == len(PLANNED)]


def named(number):
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def in_words(counts):
    """Such as "ahead in 38, even in 3 and behind in none"."""
    named = [f"{one} in {counts[one] or 'none'}" for one in ("ahead", "above", "even", "behind")]
    kept = [text for text in named if not text.startswith("above in none")]
    return f"{', '.join(kept[:-1])} and {kept[-1]}"


def cell_rows():
    """`tuned` in every cell, with the seeds that were planned, and `centred`."""
    values = {}
    for name in reversed(CELLS):
        values |= {(line.cell, line.arm, line.answer): line.miou.value for line in lines_of(name, PLANNED)}
    tuned, centred = ({line.cell: line for line in own_of(arm, PLANNED)} for arm in ("tuned", "centred"))
    for cell, without in centred.items():
        plain = values[cell, "plain", "plain"]
        row = [*map(str, cell), f"{plain:.1f}"]
        if cell in tuned:
            line = tuned[cell]
            row += [f"{line.miou.value:.1f}", signed_pair(line.difference), line.verdict]
            row += [signed_pair(line.pixel_difference), f"{values[cell, 'tuned', 'oracle'] - plain:+.1f}"]
        else:
            row += ["not run", *[""] * 4]
        row += [signed_pair(without.difference), without.verdict, signed_pair(without.pixel_difference)]
        row.append(f"{values[cell, 'centred', 'oracle'] - plain:+.1f}")
        yield f"| {' | '.join(row)} |"


def missed_rows():
    """Where it is not ahead; all seeds where there are more."""
    more = {line.cell: line for line in own_of("tuned", None)}
    for line in own_of("tuned", PLANNED):
        if line.verdict != "ahead" or more[line.cell].verdict != "ahead":
            name = where_it_is(line.cell, "tuned")
            plain = mean_of(list(scores(name, line.cell, "plain", "plain").values())).value
            found = [f"{plain:.1f}", f"{line.miou.value:.1f}", signed_pair(line.difference)]
            again = more[line.cell].difference
            found.append(signed_pair(again) if again.n > len(PLANNED) else "")
            yield f"| {' | '.join([*map(str, line.cell), *found])} |"


@pytest.mark.parametrize(
    ("page", "name", "rows"),
    [("results.md", "cells", cell_rows), ("results.md", "missed", missed_rows)],
)
def test_the_rows_of_a_table_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())


def test_the_counts_in_words():
    page = words_of("results.md")
    found = own_of("tuned", PLANNED)
    counts = Counter(line.verdict for line in found)
    assert f"Over {len(found)} cells `tuned` is {in_words(counts)}" in page
    assert counts["behind"] == 0
    without = {line.cell: line for line in own_of("centred", PLANNED)}
    before = Counter(without[line.cell].verdict for line in found)
    assert f"`centred`, in the same cells, {in_words(before)}" in page
    long = [line for line in found if line.cell.steps >= 1000]
    verdicts = [Counter(one.verdict for one in lines)["ahead"] for lines in (long, [without[one.cell] for one in long])]
    assert len(long) == 11
    assert "ahead in {} of the eleven (`centred` in {})".format(*map(named, verdicts)) in page
    all_seeds = own_of("tuned", None)
    many = named(sum(line.difference.n == len(SIX) for line in all_seeds))
    assert {line.difference.n for line in all_seeds} == {len(PLANNED), len(SIX)}
    said = in_words(Counter(line.verdict for line in all_seeds))
    assert f"With all seeds, six in {many} cells, it is {said}" in page
    sure = sum(line.difference.value > 4.303 * line.difference.error for line in found)  # Student's t
    assert f"95 % intervals exclude zero in {sure} of the {len(found)} cells" in page
    shown = Counter(line.verdict for line in found if line.cell.data == "camvid")
    assert f"14 cells of CamVid's validation split it is ahead in {shown['ahead']} and even in {shown['even']}" in page
    pixels = Counter(sign(line.pixel_difference) for line in found)
    lower = [line for line in found if sign(line.pixel_difference) < 0]
    assert [line.cell for line in lower] == [WHOLE]
    assert f"higher by more than two standard errors in {pixels[1]} cells, and lower in {named(pixels[-1])}" in page
    more = [line for line in own_of("centred", None) if line.cell in {one.cell for one in found}]
    misses = [
        named(sum(line.verdict != "ahead" for line in lines))
        for lines in (found, [without[one.cell] for one in found], own_of("tuned", None), more)
    ]
    words = "in {} of them with the planned seeds, where `centred` misses {}; with all seeds in {}, `centred` in {}."
    assert words.format(*misses) in page
    missed = sum(1 for _ in missed_rows())
    assert f"it is missed in {named(missed)}" in page


def test_beside_centred_in_words():
    page = words_of("results.md")
    without = {line.cell: line for line in own_of("centred", PLANNED)}
    found = own_of("tuned", PLANNED)
    apart = {line.cell: line.difference.value - without[line.cell].difference.value for line in found}
    over = mean_of(list(apart.values()))
    higher = sum(value > 0 for value in apart.values())
    assert f"{told(over, 1)} above `centred` over the {len(apart)} cells, above it in {higher}" in page
    adamw, sgd = (
        mean_of([value for cell, value in apart.items() if cell.optimiser.startswith(rule)])
        for rule in ("adamw", "sgd")
    )
    assert f"{signed_pair(adamw)} with AdamW and {signed_pair(sgd)} with SGD" in page
    shown = {}
    for name in CELLS:
        shown |= {line.cell: sign(line.difference) for line in beside("centred", (name,)) if line.cell in apart}
    assert len(shown) == len(apart)
    signs = Counter(shown.values())
    assert f"by two standard errors of a cell above in {signs[1]} and below in {signs[-1]}." in page


def test_beside_a_plain_classifier_with_the_same_loss():
    page = words_of("results.md")
    found = beside("plain_overlap", WITH_CONTROL)
    long, short = ([line for line in found if (line.cell.steps >= 1000) == one] for one in (True, False))
    assert all(line.difference.value > 0 for line in found)
    over = [told(mean_of([line.difference.value for line in lines]), 1) for lines in (long, short)]
    words = f"`tuned` has the higher mean in all {len(found)} cells that have both: {over[0]} above over"
    assert f"{words} {named(len(long))} to the end and {over[1]} over {named(len(short))} short" in page
    assert {line.verdict for line in long} == {"even"}
    assert "In none of those to the end three seeds show it" in page
    assert [line.verdict for line in short].count("ahead") == 6
    assert "ahead in six of the short ones" in page


def test_beside_a_loss_in_which_classes_count_alike():
    page = words_of("results.md")
    found = beside("evened", PHOTOGRAPHS)
    counts = Counter(line.verdict for line in found)
    pixels = Counter(sign(line.pixel_difference) for line in found)
    said = f"in the {len(found)} cells that have both `tuned` is {in_words(counts)}, and has more pixel accuracy"
    assert f"{said} in {pixels[1]} and less in {named(pixels[-1])}" in page
    assert set(counts) == {"ahead", "even"}
