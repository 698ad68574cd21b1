"""docs/search.md, round by round, is what the records say."""

import math

import pytest

from cacseg.study.results import part_of
from cacseg.study.summary import mean_of
from cacseg.study.tables import plus_minus, signed
from study_pages import (
    CELL,
    FCN,
    HALF,
    NEAR,
    PLANNED,
    RESULT_PAGES,
    apart,
    beside_both,
    beside_evened,
    by_arm,
    line_of,
    lines_of,
    records_of,
    rows_of,
    scores,
    sign,
    signed_pair,
    told_apart,
    words_of,
)

EVENED = ("evened", "two_evened")  # of round fifteen: every class counts alike in a loss of labels, without an oracle


def beside_tuned():
    """Of each arm of round seven: mIoU and pixel accuracy, `centred` subtracted, on both data sets."""
    lines = by_arm(lines_of("rest", baseline="centred"))
    arms = dict.fromkeys(arm for arm, *_ in lines if arm not in ("plain", "centred", *EVENED))
    for arm, optimiser in [*((arm, "adamw_fast") for arm in arms), ("third", "sgd")]:
        found = [lines[arm, data, FCN, optimiser, 800] for data in ("camvid_held_out", "msrc21")]
        numbers = [signed_pair(one) for line in found for one in (line.difference, line.pixel_difference)]
        yield f"`{arm}`" + (" with SGD" if optimiser == "sgd" else ""), numbers


def test_the_table_of_round_seven():
    """Its rows begin with an arm and end with what was found; between them is what was expected."""
    rows = [row.strip("| ").split(" | ") for row in rows_of("search.md", "beside")]
    assert {row[0]: row[-4:] for row in rows} == dict(beside_tuned())


def nine_rows():
    """Of round nine: mIoU beside `centred` in four cells of MSRC-21 with the DeepLabV3+ that fits, and over them."""
    lines = by_arm(lines_of("fits", baseline="centred"))
    for arm in ("fixed", "detached", "still", "bias", "slow"):
        found = [lines[arm, "msrc21", NEAR, name, steps] for name in ("adamw", "sgd") for steps in (200, 800)]
        means = [
            mean_of([line.difference.value for line in found]),
            mean_of([line.pixel_difference.value for line in found]),
        ]
        yield f"| `{arm}` | {' | '.join(signed_pair(one) for one in (*(line.difference for line in found), *means))} |"


def eleven_rows():
    """Of round eleven: `half`, and `fixed` where it ran, beside `centred`."""
    for name in ("unscaled", "fits", "scenes"):
        lines = by_arm(lines_of(name, PLANNED, baseline="centred"))
        for cell in (cell for arm, *cell in lines if arm == "half"):
            half, fixed = lines[("half", *cell)], lines.get(("fixed", *cell))
            numbers = [signed_pair(half.difference), signed_pair(half.pixel_difference)]
            numbers.append("not run" if fixed is None else signed_pair(fixed.difference))
            yield f"| {' | '.join([*map(str, cell), *numbers])} |"


def twelve_rows():
    """Of round twelve: `present` beside `centred` and beside plain."""
    for name in ("unscaled", "ends", "presets", "scenes"):
        beside = {base: by_arm(lines_of(name, PLANNED, baseline=base)) for base in ("centred", "plain")}
        for cell in (cell for arm, *cell in beside["centred"] if arm == "present"):
            from_tuned, from_plain = (beside[base][("present", *cell)] for base in ("centred", "plain"))
            found = from_tuned.difference, from_tuned.pixel_difference, from_plain.difference
            yield f"| {' | '.join([*map(str, cell), *map(signed_pair, found)])} |"


SCALED = ("msrc21", FCN, "adamw", 2000)  # of studies/unscaled.toml: the one cell of round fourteen with the first seeds


def without_bias(names=("unscaled", "ends", "presets", "scenes")):
    """Models of `relative` without their bias, which are `centred` trained once more, beside these; by cell."""
    for name in names:
        records = part_of(records_of(name), {"seeds": PLANNED})
        scores = {(*(one[axis] for axis in CELL), one["arm"], one["seed"]): one["answers"] for one in records}
        again = {}
        for (*cell, arm, seed), answers in scores.items():
            if arm == "relative":
                other = scores[(*cell, "centred", seed)]["context"]["miou"]
                again.setdefault(tuple(cell), []).append(answers["context_alone"]["miou"] - other)
        yield from ((name, cell, mean_of(differences)) for cell, differences in again.items())


def thirteen_rows():
    """Of round thirteen: `relative` beside the same models' answers without it, those beside `centred`; and plain."""
    for name, cell, again in without_bias():
        if (name, cell) != ("unscaled", SCALED):
            line = told_apart(name, cell, PLANNED)
            told = signed(line.difference), signed(line.pixel_difference)
            beside = again, by_arm(lines_of(name, PLANNED))[("relative", *cell)].difference
            yield f"| {' | '.join([*map(str, cell), *told, *map(signed_pair, beside)])} |"


def fourteen_rows():
    """Of round fourteen: the same in the cells, and with the seeds, that had not been run before."""
    for cell, seeds in (
        (HALF, ("3", "4", "5")),
        (("msrc21_unscaled", NEAR, "adamw", 2000), ("3", "4", "5")),
        (SCALED, PLANNED),
    ):
        line = told_apart("unscaled", cell, seeds)
        told = signed(line.difference), signed(line.pixel_difference)
        yield f"| {' | '.join([*map(str, cell), f'{seeds[0]} to {seeds[-1]}', *told])} |"


def test_the_means_of_round_thirteen():
    page = words_of("search.md")
    found = {"long": [], "short": [], "scenes": []}
    for name, cell, _ in without_bias():
        if (name, cell) != ("unscaled", SCALED):
            kind = {"presets": "short", "scenes": "scenes"}.get(name, "long")
            found[kind].append(told_apart(name, cell, PLANNED).difference)
    assert [len(group) for group in found.values()] == [4, 8, 2]
    assert min(one.value for group in found.values() for one in group) > -0.2
    long, short = (mean_of([one.value for one in found[kind]]) for kind in ("long", "short"))
    assert f"eight short cells is {plus_minus(short)}, and that of the four long ones, {plus_minus(long)}," in page
    assert long.value < 2.0 * long.error
    assert sum(sign(one) < 0 for one in found["short"]) == 4
    assert "in four of the eight short cells it is below by more than two standard errors" in page
    adamw, sgd = (told_apart("unscaled", ("msrc21_unscaled", FCN, name, 2000)) for name in ("adamw", "sgd"))
    models = adamw.differences + sgd.differences
    assert (len(models), f"({min(models):.1f} to {max(models):.1f} in nine models of nine)" in page) == (9, True)
    words = "MSRC-21 unscaled, FCN, to the end: +{} (six seeds), with SGD +{}; from plain"
    told = (f"{line.difference.value:.1f} ± {line.difference.error:.1f}" for line in (adamw, sgd))
    assert words.format(*told) in words_of(*RESULT_PAGES)


def test_how_far_the_same_recipe_is_from_itself():
    """The spread of the means of three seeds between two trainings of one recipe, as the page has it."""
    page = words_of("search.md")
    found = [again.value for name, _, again in without_bias() if name != "scenes"]
    spread = mean_of(found)
    words = f"over the {len(found)} cells of photographs {spread.value:.1f} on average, with a standard deviation of"
    assert f"{words} {spread.error * math.sqrt(len(found)):.1f}" in page
    assert sum(sign(again) != 0 for name, _, again in without_bias() if name != "scenes") == 2
    assert "and in two of the 13 more than two standard errors from zero" in page
    both = [again for name, _, again in without_bias(("unscaled", "ends", "presets", "further", "fits"))]
    far = sum(sign(again) != 0 for again in both)
    most = max(abs(again.value) for again in both)
    words = f"in {far} of {len(both)}, and means of three seeds were up to {most:.1f} apart"
    assert words in words_of(*RESULT_PAGES)


def test_relative_in_all_cells():
    """The counts of round seventeen, and what the bias gives, in words."""
    page, results = words_of("search.md"), words_of(*RESULT_PAGES)
    names = ("unscaled", "ends", "further", "presets", "fits", "scenes")
    cells = [(name, cell) for name, cell, _ in without_bias(names)]
    assert f"measured in {len(cells)} cells of three seeds and more" in page
    told = {(name, cell): told_apart(name, cell).difference for name, cell in cells}
    named = [("msrc21_unscaled", FCN, "adamw"), ("msrc21_unscaled", FCN, "sgd"), ("msrc21_unscaled", NEAR, "adamw")]
    largest = [("unscaled", (*cell, 2000)) for cell in named] + [("unscaled", SCALED)]
    words = "{:.1f} (AdamW) and {:.1f} (SGD) with FCN where images are not scaled, {:.1f} with DeepLabV3+ there, {:.1f}"
    assert words.format(*(told[cell].value for cell in largest)) in page
    others = [one.value for cell, one in told.items() if cell not in largest]
    assert f"and between {min(others):.1f} and {max(others):.1f} elsewhere" in page
    short = [one for (name, _), one in told.items() if name in ("presets", "fits")]
    lowest, highest = min(one.value for one in short), max(one.value for one in short)
    words = (
        f"the twelve short cells of MSRC-21 {lowest:+.2f} to {highest:+.2f}, eight of them below zero by more than two"
    )
    assert (len(short), sum(sign(one) < 0 for one in short), words in results) == (12, 8, True)
    long = [(name, cell) for name, cell in cells if name in ("unscaled", "ends", "further")]
    arms = {
        arm: sum(by_arm(lines_of(name))[(arm, *cell)].verdict == "ahead" for name, cell in long)
        for arm in ("relative", "centred")
    }
    assert (len(long), arms) == (7, {"relative": 6, "centred": 5})
    again = {(name, cell): from_plain_without_bias(name, cell) for name, cell in long}
    met = [cell for cell, one in again.items() if one.value >= 1.0 and sign(one) > 0]
    assert met == [key for key in long if by_arm(lines_of(key[0]))[("relative", *key[1])].verdict == "ahead"]
    assert "(six of seven beside five; without the bias the same six)" in results
    assert "The second time it met the goal in six of seven long cells, the first time in five." in results
    grid = ("msrc21", "deeplabv3plus_mobilenetv2")  # the model that does not fit is not of the eight
    eight = [key for key in cells if key[0] in ("presets", "fits") and key[1][:2] != grid]
    beside = [line_of("relative", name, cell, "centred").difference.value for name, cell in eight]
    assert len(eight) == 8
    assert f"over the eight short cells it is {mean_of(beside).value:.1f} above `centred`" in page


def from_plain_without_bias(name, cell):
    """The context answers of `relative` without its bias beside plain, at equal seeds."""
    records = [one for one in records_of(name) if tuple(one[axis] for axis in CELL) == cell]
    plain = {one["seed"]: one["answers"]["plain"]["miou"] for one in records if one["arm"] == "plain"}
    models = [one for one in records if one["arm"] == "relative" and one["seed"] in plain]
    return mean_of([one["answers"]["context_alone"]["miou"] - plain[one["seed"]] for one in models])


HELD_OUT = ("camvid_held_out", FCN, "adamw", 1000)  # the two long cells of round sixteen


def sixteen_rows():
    """Of rounds sixteen and seventeen: the weight of the distillation."""
    for arm, weight in (
        ("relative_01", "0.1"),
        ("relative_03", "0.3"),
        ("relative_3", "3"),
        ("entropy", "1, pixels alike"),
    ):
        numbers = [*beside_both("ends", HELD_OUT, arm)]
        numbers += [] if arm == "entropy" else beside_both("unscaled", HALF, arm)
        shown = [signed(one) for one in numbers] + ["not run"] * (4 - len(numbers))
        yield f"| {' | '.join([f'`{arm}`', weight, *shown])} |"


def test_round_sixteen_in_words():
    page, results = words_of("search.md"), words_of(*RESULT_PAGES)
    long = (("ends", HELD_OUT), ("unscaled", HALF))
    below = {
        (arm, name): -next(beside_both(name, cell, arm, ("centred",))).value
        for arm in ("relative_03", "relative_01", "relative_3")
        for name, cell in long
    }
    words = "even there ({:.1f} and {:.1f} below), while held-out images fail the rule by that measure, too ({:.1f} and"
    order = [(arm, name) for name in ("unscaled", "ends") for arm in ("relative_03", "relative_01")]
    assert f"{words} {{:.1f}} below)".format(*(below[one] for one in order)) in page
    assert [f"{-below['relative_3', name]:.1f}" for name, _ in long] == ["0.3", "0.3"]
    assert "(Beside `centred` alone it is 0.3 above in both, within the noise.)" in page
    found = [
        next(beside_both(name, cell, arm)).value
        for arm in ("relative_01", "relative_03", "relative_3")
        for name, cell in long
    ]
    words = "a tenth {:.1f} and {:.1f}, three tenths {:.1f} and {:.1f}, three times {:.1f} and {:.1f}"
    assert words.format(*found) in results
    means = {}
    for arm in ("relative_03", "relative_01"):
        cells = [("msrc21", FCN, optimiser, steps) for optimiser in ("adamw", "sgd") for steps in (200, 800)]
        means[arm] = [next(beside_both("presets", cell, arm)).value for cell in cells]
    found = (mean_of(values).value for values in means.values())
    assert "in the mean of the four short cells {:.1f} and {:.1f} below".format(*(-value for value in found)) in page
    adamw, sgd = ([mean_of(values[i : i + 2]).value for values in means.values()] for i in (0, 2))
    assert (
        "{:.1f} and {:.1f} above with AdamW, {:.1f} and {:.1f} below with SGD".format(*adamw, *(-v for v in sgd))
        in page
    )


SEVENTEEN = (("further", (("msrc21", NEAR, "adamw", 2000), ("msrc21", FCN, "sgd", 2000))), ("fits", None))


def seventeen_rows():
    """Of round seventeen: `relative` in the cells that it had not been run in."""
    for name, cells in SEVENTEEN:
        beside = {base: by_arm(lines_of(name, PLANNED, baseline=base)) for base in ("centred", "plain")}
        for cell in cells or [tuple(cell) for arm, *cell in beside["plain"] if arm == "relative"]:
            line = told_apart(name, cell, PLANNED)
            found = (beside[base][("relative", *cell)] for base in ("centred", "plain"))
            others = [signed_pair(one.difference) for one in found]
            verdict = beside["plain"][("relative", *cell)].verdict
            told = signed(line.difference), signed(line.pixel_difference)
            yield f"| {' | '.join([*map(str, cell), *told, *others, verdict])} |"


def test_the_shares_of_round_fifteen():
    page = words_of("search.md")
    for data in ("camvid", "msrc21"):
        words = []
        for name, model in (("presets", "FCN"), ("fits", "DeepLabV3+")):
            found = [lines for lines in beside_evened(name) if lines[0].cell.data == data]
            shares = [100 * evened.difference.value / centred.difference.value for evened, centred, _ in found]
            words.append(f"{min(shares):.0f} to {max(shares):.0f} % with {model}")
        assert f"| {', '.join(words)} |" in page


def test_generated_scenes_without_the_balance():
    """`entropy` is `centred` without it, `unsure` is `evened` without it."""
    search, page = words_of("search.md"), words_of(*RESULT_PAGES)
    cells = [("scenes", "deeplabv3plus", rate, 150) for rate in ("adamw", "adamw_fast")]
    beside = {base: by_arm(lines_of("scenes", PLANNED, baseline=base)) for base in ("plain", "centred", "evened")}

    def lower(arm, base):
        found = [beside[base][(arm, *cell)].difference for cell in cells]
        return tuple(f"{-one.value:.1f} ± {one.error:.1f}" for one in found)

    assert "{} and, at the higher rate, {} below `centred`".format(*lower("entropy", "centred")) in search
    assert "{} and {} below plain".format(*lower("unsure", "plain")) in search
    assert "{} and {} below `evened`".format(*lower("unsure", "evened")) in search
    assert "(`unsure`) give nothing, -{} and -{} from plain".format(*lower("unsure", "plain")) in page
    kept = [beside["plain"][(arm, *cell)].difference.value for cell in cells for arm in ("entropy", "centred")]
    assert "(`entropy`) keeps {:.1f} of {:.1f} and {:.1f} of {:.1f} points".format(*kept) in page


def fifteen_rows():
    """Of round fifteen: mIoU and pixel accuracy beside plain, of two arms without an oracle and two with it."""
    for name in ("rest", "ends", "unscaled"):
        lines = by_arm(lines_of(name, PLANNED))
        for cell in (cell for arm, *cell in lines if arm == "two_evened"):
            found = [lines[(arm, *cell)] for arm in (*EVENED, "fixed", "centred")]
            numbers = [f"{signed_pair(line.difference)}, {signed_pair(line.pixel_difference)}" for line in found]
            yield f"| {' | '.join([*map(str, cell), *numbers])} |"


def eighteen_rows():
    """Of round eighteen: mIoU and pixel accuracy beside `centred` on generated scenes, and how far its oracle is."""
    lines = by_arm(lines_of("scenes", PLANNED, baseline="centred"))
    for arm, weight in (("oracle_3", "3"), ("oracle_03", "0.3")):
        row = [f"`{arm}`", weight]
        for optimiser in ("adamw", "adamw_fast"):
            cell = ("scenes", "deeplabv3plus", optimiser, 150)
            line = lines[(arm, *cell)]
            oracles = (scores("scenes", cell, one, "oracle") for one in (arm, "centred"))
            row += [signed_pair(one) for one in (line.difference, line.pixel_difference, apart(*oracles))]
        yield f"| {' | '.join(row)} |"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("nine", nine_rows),
        ("eleven", eleven_rows),
        ("twelve", twelve_rows),
        ("thirteen", thirteen_rows),
        ("fourteen", fourteen_rows),
        ("fifteen", fifteen_rows),
        ("sixteen", sixteen_rows),
        ("seventeen", seventeen_rows),
        ("eighteen", eighteen_rows),
    ],
)
def test_the_rows_of_a_round_are_those_of_the_records(name, rows):
    assert rows_of("search.md", name) == list(rows())
