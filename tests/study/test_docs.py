"""What docs/study.md states is true."""

import functools
import math
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest

from cacseg.study.classes import COLUMNS as CLASS_COLUMNS
from cacseg.study.classes import classes_tables, read_classes
from cacseg.study.file import parse_study, read_study, tomllib
from cacseg.study.plan import make_plan
from cacseg.study.results import AXES, COLUMNS, part_of, read_records
from cacseg.study.summary import mean_of, own_lines, pool, summarise, summarise_answers
from cacseg.study.tables import arms_table, markdown, plus_minus, pooled_table, signed, wide_table

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = Path(__file__).parents[2] / "studies" / "results"
PAGE = (DOCS / "study.md").read_text()


def test_the_study_on_the_page_can_be_planned():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    jobs = make_plan(parse_study(tomllib.loads(text)), {"camvid": "somewhere"})
    assert len(jobs) == 2 * 2 * 3
    assert {job.held_out for job in jobs} == {0.2}


def test_the_study_of_ones_own_images_is_what_the_page_says():
    """Its arms are those of the other studies, and its command is the one in the file."""
    path = RESULTS.parent / "yours.toml"
    jobs = make_plan(read_study(path), {"yours": "my_data"})
    assert {(job.config.data.name, job.config.data.root) for job in jobs} == {("folder", "my_data")}
    assert f"`--list` shows the {len(jobs)} jobs" in path.read_text()
    assert f"500 and 2000 steps of 16 crops of 256x256, three seeds, {len(jobs)} jobs" in re.sub(r"\s+", " ", PAGE)
    found = {(job.steps, job.config.training.batch, job.config.data.crop) for job in jobs}
    assert found == {(500, 16, (256, 256)), (2000, 16, (256, 256))}
    assert {job.seed for job in jobs} == {0, 1, 2}
    (command,) = re.findall(r"cacseg study run studies/yours.toml.*", path.read_text())
    assert command in PAGE
    (short,) = re.findall(r"`(cacseg study run studies/yours.toml.*?)`", (DOCS / "../README.md").read_text())
    assert command.startswith(short)
    yours, others = (read_study(file).arms for file in (path, RESULTS.parent / "unscaled.toml"))
    assert all(yours[arm] == others[arm] for arm in yours)


def test_the_columns_and_axes_on_the_page():
    assert ",".join(COLUMNS) in PAGE
    assert ",".join(CLASS_COLUMNS) in PAGE
    (axes,) = re.findall(r"a part of the grid: (.*) \|", PAGE)
    assert axes == ", ".join(f"`{axis}`" for axis in AXES)


@pytest.mark.parametrize("command", ["run", "table"])
def test_the_options_on_the_page(command, capsys, monkeypatch):
    from command_line import run

    shown = run("study", command, "--help", capsys=capsys, monkeypatch=monkeypatch).out
    there = set(re.findall(r"^  (?:-\w, )?(--[a-z]+)", shown, re.MULTILINE))
    (table,) = re.findall(rf"\| option of `{command}` \|.*?\n\n", PAGE, re.DOTALL)
    rows = re.findall(r"^\| (`-.*?) \|", table, re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"`(-[-a-z]+)", row)}
    short = {"-o": "--output", "--no-graphs": "--graphs"}
    assert {short.get(option, option) for option in named} == there - {"--help"}


@functools.cache
def records_of(name):
    return read_records([RESULTS / f"{name}.csv"])


def lines_of(name, seeds=None, arms=None, baseline="plain"):
    only = {axis: names for axis, names in (("seeds", seeds), ("arms", arms)) if names is not None}
    return summarise(part_of(records_of(name), only), baseline)


def by_arm(lines):
    """Each arm's own answer, by its name and its cell."""
    return {(line.arm, *line.cell): line for line in own_lines(lines)}


CELL = ("data", "model", "optimiser", "steps")
PLANNED = ("0", "1", "2")  # seeds; of nine cells there are more, added later
GRID = ("plain", "paper", "released", "residual", "tuned")  # arms that the page shows of it
FITS = ("plain", "paper", "released", "fixed", "tuned")
CELLS = ("presets", "fits", "full", "further", "whole", "rates", "unscaled")  # where `tuned` has three seeds


def shown(page, kind):
    """The tables of a page between comments such as <!-- table: NAME -->, by their names."""
    found = re.findall(rf"<!-- {kind}: (\w+).*?-->\n(.*?)<!-- /{kind} -->", (DOCS / page).read_text(), re.DOTALL)
    return {name: table.strip() for name, table in found}


def rows_of(page, name):
    """The rows of the one table between the comments <!-- NAME: ... --> and <!-- /NAME -->."""
    (table,) = re.findall(rf"<!-- {name}: .*?-->\n(.*?)<!-- /{name} -->", (DOCS / page).read_text(), re.DOTALL)
    return table.strip().splitlines()[2:]


WIDE = {"presets": (PLANNED, GRID), "fits": (PLANNED, FITS), "rates": (PLANNED,)}  # the seeds and arms that are shown
TABLES = {
    "table": lambda name: arms_table(lines_of(name), "plain"),
    "wide": lambda name: wide_table(lines_of(name, *WIDE.get(name, ())), "plain"),
    "pooled": lambda name: pooled_table(pool(lines_of(name), "plain")),
    # of CamVid; that of MSRC-21 is not shown
    "classes": lambda name: classes_tables(read_classes([RESULTS / "classes" / f"{name}.csv"]), "plain")[0],
}


@pytest.mark.parametrize(
    ("page", "kind", "least"),
    [
        *[("results.md", kind, least) for kind, least in (("table", 3), ("wide", 3), ("classes", 2))],
        *[("search.md", kind, least) for kind, least in (("wide", 3), ("pooled", 3), ("classes", 1))],
        ("results-tables.md", "table", len(list(RESULTS.glob("*.csv")))),
    ],
)
def test_the_tables_of_the_results_are_those_of_the_records(page, kind, least):
    found = shown(page, kind)
    assert len(found) >= least
    for name, table in found.items():
        assert table == markdown(TABLES[kind](name)).strip(), name


def own_of(arm, seeds, names=CELLS):
    """The arm's own answer in every cell with enough seeds for a verdict; of a cell in two files the first."""
    found = {}
    for name in names:
        for line in lines_of(name, seeds):
            if line.own and line.arm == arm and line.verdict:
                found.setdefault(line.cell, line)
    return list(found.values())


def cell_rows():
    """`tuned` in every cell, with the seeds that were planned."""
    scores = {}
    for name in reversed(CELLS):
        scores |= {(line.cell, line.arm, line.answer): line.miou.value for line in lines_of(name, PLANNED)}
    for line in own_of("tuned", PLANNED):
        plain = scores[line.cell, "plain", "plain"]
        numbers = [
            f"{plain:.1f}",
            f"{line.miou.value:.1f}",
            signed_pair(line.difference),
            line.verdict,
            signed_pair(line.pixel_difference),
            f"{scores[line.cell, 'tuned', 'oracle'] - plain:+.1f}",
        ]
        yield f"| {' | '.join([*map(str, line.cell), *numbers])} |"


def sign(mean):
    return 0 if abs(mean.value) <= 2.0 * mean.error else math.copysign(1, mean.value)


def test_the_counts_in_words():
    page = re.sub(r"\s+", " ", (DOCS / "results.md").read_text())
    planned, all_of_them = own_of("tuned", PLANNED), own_of("tuned", None)
    assert len(planned) == 40
    assert all(line.difference.value > 0 for line in [*planned, *all_of_them])
    counts = Counter(line.verdict for line in planned)
    words = f"ahead in {counts['ahead']} cells, above in {counts['above']}, even in {counts['even']} and behind in none"
    assert words in page
    readme = re.sub(r"\s+", " ", (DOCS / "../README.md").read_text())
    words = (
        f"over all {len(planned)} cells (data set, model, optimiser and steps) that were run it is behind plain in none"
    )
    assert f"{words}, ahead (a point and two standard errors) in {counts['ahead']}" in readme
    long = [line for line in planned if line.cell.steps in (1000, 2000)]
    ahead = [line for line in long if line.verdict == "ahead"]
    assert (len(ahead), len(long)) == (5, 9)
    assert "but only in five of the nine long ones" in readme
    assert "`tuned` is ahead in five of the nine cells to the end" in page
    assert sum(line.difference.value > 4.303 * line.difference.error for line in ahead) == 4  # Student's t
    assert "in four of them the 95 % interval of Student's t excludes zero" in page
    assert Counter(line.verdict for line in all_of_them)["ahead"] == counts["ahead"] + 3
    pixels = Counter(sign(line.pixel_difference) for line in planned)
    assert f"higher by more than two standard errors in {pixels[1]}, lower in {pixels[-1]}" in page
    validation = Counter(line.verdict for line in planned if line.cell.data == "camvid")
    assert f"ahead in {validation['ahead']} of {validation.total()}, above in 2 and even in 1" in page
    assert validation.total() == validation["ahead"] + 3
    assert f"{len(planned) - validation.total()} of the 40 cells are on images that choices were made on" in page
    at_95 = 4.303  # Student's t, two degrees of freedom
    sure = sum(line.difference.value > at_95 * line.difference.error for line in planned)
    assert f"exclude zero in {sure} of the 40 cells" in page
    for arm, words in (
        ("released", "`released` is ahead in {} of the {} cells that it was run in and behind in {}"),
        ("paper", "`paper` is ahead in {} of {} and behind in {}"),
    ):
        found = Counter(line.verdict for line in own_of(arm, PLANNED))
        assert words.format(found["ahead"], found.total(), found["behind"]) in page


def test_the_answers_of_the_same_models_in_words():
    """Context answers beside the plain answers of the very models, in every cell of `tuned`."""
    page = re.sub(r"\s+", " ", (DOCS / "results.md").read_text())
    found = {}
    for name in CELLS:
        records = part_of(records_of(name), {"arms": ["tuned"], "seeds": PLANNED})
        for line in summarise_answers(records, "plain"):
            if line.own and line.difference.n == len(PLANNED):
                found.setdefault(line.cell, line.difference)
    assert len(found) == 40
    higher, sure = (sum(what) for what in zip(*((one.value > 0, sign(one) > 0) for one in found.values()), strict=True))
    assert all(sign(one) >= 0 for one in found.values())
    words = (
        f"above their own plain answers in {higher} of the 40 cells, by more than two standard errors in {sure}, and"
    )
    assert f"{words} below by more than two in none" in page
    long = [one.value for cell, one in found.items() if cell.steps in (1000, 2000)]
    mean = mean_of(long).value
    assert f"in the nine to the end by {min(long):.1f} to {max(long):.1f}, {mean:.1f} on average" in page


FCN, NEAR = "fcn_mobilenetv2", "deeplabv3plus_near"


PARTS = {  # has a cosine, an oracle, its distillation, adapts
    "evened": ("no", "no", "of labels", "no"),
    "cosine": ("yes, alone", "no", "no", "no"),
    "two": ("yes", "no", "no", "no"),
    "two_evened": ("yes", "no", "of labels", "no"),
    "no_oracle": ("yes", "no", "no", "yes"),
    "fixed_no_kl": ("yes", "yes", "no", "no"),
    "no_kl": ("yes", "yes", "no", "yes"),
    "fixed": ("yes", "yes", "yes", "no"),
    "tuned": ("yes", "yes", "yes", "yes"),
}


def part_rows():
    """mIoU and pixel accuracy of the classifier's parts beside plain, at the seeds that all of them have."""
    lines = by_arm(lines_of("rest", ("0", "1")))
    for arm, parts in PARTS.items():
        found = [lines[arm, data, FCN, "adamw_fast", 800] for data in ("camvid_held_out", "msrc21")]
        numbers = [signed_pair(one) for line in found for one in (line.difference, line.pixel_difference)]
        yield f"| {' | '.join([f'`{arm}`', *parts, *numbers])} |"


def signed_pair(mean):
    return f"{mean.value:+.1f} ± {mean.error:.1f}"


def adapting_rows():
    """`fixed`, the same classifier for all images, beside `tuned`, in every cell that has three seeds of both."""
    for name in ("fits", "rates", "rest", "ends", "unscaled", "scenes"):
        lines = by_arm(lines_of(name, PLANNED))
        for line in own_lines(lines_of(name, PLANNED, baseline="fixed")):
            if line.arm == "tuned" and line.difference is not None and line.difference.n == 3:
                both = [lines[(arm, *line.cell)].difference for arm in ("fixed", "tuned")]
                numbers = map(signed_pair, (*both, line.difference, line.pixel_difference))
                yield f"| {' | '.join([*map(str, line.cell), *numbers])} |"


def test_the_table_of_what_misses_the_goal():
    """Of each cell the planned seeds, and all of them where there are more."""
    page = (DOCS / "results.md").read_text()
    rows = re.findall(r"^\| (?:CamVid|MSRC-21), .* \| ([\d.]+) \| ([\d.]+) \| (.*) \|$", page, re.MULTILINE)
    more = {line.cell: line for line in own_of("tuned", None)}
    expected = []
    for line in own_of("tuned", PLANNED):
        if line.verdict != "ahead":
            name, by_seed = signed_pair(line.difference), more[line.cell].difference
            if by_seed.n > 3:
                name += f"; with six seeds {signed_pair(by_seed)}"
            expected.append((f"{line.miou.value:.1f}", name.replace("+0.0", "0.0")))
    assert sorted(row[1:] for row in rows) == sorted(expected)


EVENED = ("evened", "two_evened")  # of round fifteen: every class counts alike in a loss of labels, without an oracle


def beside_tuned():
    """Of each arm of round seven: mIoU and pixel accuracy, `tuned` subtracted, on both data sets."""
    lines = by_arm(lines_of("rest", baseline="tuned"))
    arms = dict.fromkeys(arm for arm, *_ in lines if arm not in ("plain", "tuned", *EVENED))
    for arm, optimiser in [*((arm, "adamw_fast") for arm in arms), ("third", "sgd")]:
        found = [lines[arm, data, FCN, optimiser, 800] for data in ("camvid_held_out", "msrc21")]
        numbers = [signed_pair(one) for line in found for one in (line.difference, line.pixel_difference)]
        yield f"`{arm}`" + (" with SGD" if optimiser == "sgd" else ""), numbers


def test_the_table_of_round_seven():
    """Its rows begin with an arm and end with what was found; between them is what was expected."""
    rows = [row.strip("| ").split(" | ") for row in rows_of("search.md", "beside")]
    assert {row[0]: row[-4:] for row in rows} == dict(beside_tuned())


def nine_rows():
    """Of round nine: mIoU beside `tuned` in the four cells of MSRC-21 with the DeepLabV3+ that fits, and over them."""
    lines = by_arm(lines_of("fits", baseline="tuned"))
    for arm in ("fixed", "detached", "still", "bias", "slow"):
        found = [lines[arm, "msrc21", NEAR, name, steps] for name in ("adamw", "sgd") for steps in (200, 800)]
        means = [
            mean_of([line.difference.value for line in found]),
            mean_of([line.pixel_difference.value for line in found]),
        ]
        yield f"| `{arm}` | {' | '.join(signed_pair(one) for one in (*(line.difference for line in found), *means))} |"


def eleven_rows():
    """Of round eleven: `half`, and `fixed` where it ran, beside `tuned`."""
    for name in ("unscaled", "fits", "scenes"):
        lines = by_arm(lines_of(name, PLANNED, baseline="tuned"))
        for cell in (cell for arm, *cell in lines if arm == "half"):
            half, fixed = lines[("half", *cell)], lines.get(("fixed", *cell))
            numbers = [signed_pair(half.difference), signed_pair(half.pixel_difference)]
            numbers.append("not run" if fixed is None else signed_pair(fixed.difference))
            yield f"| {' | '.join([*map(str, cell), *numbers])} |"


def twelve_rows():
    """Of round twelve: `present` beside `tuned` and beside plain."""
    for name in ("unscaled", "ends", "presets", "scenes"):
        beside = {base: by_arm(lines_of(name, PLANNED, baseline=base)) for base in ("tuned", "plain")}
        for cell in (cell for arm, *cell in beside["tuned"] if arm == "present"):
            from_tuned, from_plain = (beside[base][("present", *cell)] for base in ("tuned", "plain"))
            found = from_tuned.difference, from_tuned.pixel_difference, from_plain.difference
            yield f"| {' | '.join([*map(str, cell), *map(signed_pair, found)])} |"


def told_apart(name, cell, seeds=None):
    """What the bias of `relative` gives: its line beside the same models' answers without it."""
    only = {"arms": ["relative"]} | ({} if seeds is None else {"seeds": seeds})
    lines = summarise_answers(part_of(records_of(name), only), "context_alone")
    (line,) = (line for line in lines if line.own and line.cell == cell)
    return line


SCALED = ("msrc21", FCN, "adamw", 2000)  # of studies/unscaled.toml: the one cell of round fourteen with the first seeds


def without_bias(names=("unscaled", "ends", "presets", "scenes")):
    """Models of `relative` without their bias, which are those of `tuned` trained once more, beside these; by cell."""
    for name in names:
        records = part_of(records_of(name), {"seeds": PLANNED})
        scores = {(*(one[axis] for axis in CELL), one["arm"], one["seed"]): one["answers"] for one in records}
        again = {}
        for (*cell, arm, seed), answers in scores.items():
            if arm == "relative":
                other = scores[(*cell, "tuned", seed)]["context"]["miou"]
                again.setdefault(tuple(cell), []).append(answers["context_alone"]["miou"] - other)
        yield from ((name, cell, mean_of(differences)) for cell, differences in again.items())


def thirteen_rows():
    """Of round thirteen: `relative` beside the same models' answers without it, those beside `tuned`; beside plain."""
    for name, cell, again in without_bias():
        if (name, cell) != ("unscaled", SCALED):
            line = told_apart(name, cell, PLANNED)
            told = signed(line.difference), signed(line.pixel_difference)
            beside = again, by_arm(lines_of(name, PLANNED))[("relative", *cell)].difference
            yield f"| {' | '.join([*map(str, cell), *told, *map(signed_pair, beside)])} |"


def fourteen_rows():
    """Of round fourteen: the same in the cells, and with the seeds, that had not been run before."""
    for cell, seeds in (
        (("msrc21_unscaled", FCN, "adamw", 2000), ("3", "4", "5")),
        (("msrc21_unscaled", NEAR, "adamw", 2000), ("3", "4", "5")),
        (SCALED, PLANNED),
    ):
        line = told_apart("unscaled", cell, seeds)
        told = signed(line.difference), signed(line.pixel_difference)
        yield f"| {' | '.join([*map(str, cell), f'{seeds[0]} to {seeds[-1]}', *told])} |"


def test_the_means_of_round_thirteen():
    page = re.sub(r"\s+", " ", (DOCS / "search.md").read_text())
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
    assert words.format(*told) in re.sub(r"\s+", " ", (DOCS / "results.md").read_text())


def test_how_far_the_same_recipe_is_from_itself():
    """The spread of the means of three seeds between two trainings of one recipe, as the page has it."""
    page = re.sub(r"\s+", " ", (DOCS / "search.md").read_text())
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
    assert words in re.sub(r"\s+", " ", (DOCS / "results.md").read_text())


def test_relative_in_all_cells():
    """The counts of round seventeen, and what the bias gives, in words."""
    page, results = (re.sub(r"\s+", " ", (DOCS / name).read_text()) for name in ("search.md", "results.md"))
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
        for arm in ("relative", "tuned")
    }
    assert (len(long), arms) == (7, {"relative": 6, "tuned": 5})
    again = {(name, cell): from_plain_without_bias(name, cell) for name, cell in long}
    met = [cell for cell, one in again.items() if one.value >= 1.0 and sign(one) > 0]
    assert met == [key for key in long if by_arm(lines_of(key[0]))[("relative", *key[1])].verdict == "ahead"]
    assert "(six of seven beside five; without the bias the same six)" in results
    assert "The second time it met the goal in six of seven long cells, the first time in five." in results
    grid = ("msrc21", "deeplabv3plus_mobilenetv2")  # the model that does not fit is not of the eight
    eight = [key for key in cells if key[0] in ("presets", "fits") and key[1][:2] != grid]
    beside = [by_arm(lines_of(name, PLANNED, baseline="tuned"))[("relative", *cell)].difference for name, cell in eight]
    assert len(eight) == 8
    assert f"over the eight short cells it is {mean_of([one.value for one in beside]).value:.1f} above `tuned`" in page


def from_plain_without_bias(name, cell):
    """The context answers of `relative` without its bias beside plain, at equal seeds."""
    records = [one for one in records_of(name) if tuple(one[axis] for axis in CELL) == cell]
    plain = {one["seed"]: one["answers"]["plain"]["miou"] for one in records if one["arm"] == "plain"}
    models = [one for one in records if one["arm"] == "relative" and one["seed"] in plain]
    return mean_of([one["answers"]["context_alone"]["miou"] - plain[one["seed"]] for one in models])


HELD_OUT = ("camvid_held_out", FCN, "adamw", 1000)  # the two long cells of round sixteen
UNSCALED = ("msrc21_unscaled", FCN, "adamw", 2000)


def beside_both(name, cell, arm, others=("tuned", "relative")):
    """An arm's context answers without a bias, beside the mean of `tuned` and of `relative` without one."""
    records = part_of(records_of(name), {"seeds": PLANNED})
    scores = {(one["arm"], one["seed"]): one["answers"] for one in records if tuple(one[axis] for axis in CELL) == cell}

    def score(of, seed, measure):
        answers = scores[(of, seed)]
        return answers["context_alone" if "context_alone" in answers else "context"][measure]

    for measure in ("miou", "pixel_accuracy"):
        pairs = [
            score(arm, seed, measure) - statistics.fmean(score(other, seed, measure) for other in others)
            for of, seed in scores
            if of == arm
        ]
        yield mean_of(pairs)


def sixteen_rows():
    """Of rounds sixteen and seventeen: the weight of the distillation."""
    for arm, weight in (
        ("relative_01", "0.1"),
        ("relative_03", "0.3"),
        ("relative_3", "3"),
        ("entropy", "1, pixels alike"),
    ):
        numbers = [*beside_both("ends", HELD_OUT, arm)]
        numbers += [] if arm == "entropy" else beside_both("unscaled", UNSCALED, arm)
        shown = [signed(one) for one in numbers] + ["not run"] * (4 - len(numbers))
        yield f"| {' | '.join([f'`{arm}`', weight, *shown])} |"


def test_round_sixteen_in_words():
    page, results = (re.sub(r"\s+", " ", (DOCS / name).read_text()) for name in ("search.md", "results.md"))
    long = (("ends", HELD_OUT), ("unscaled", UNSCALED))
    below = {
        (arm, name): -next(beside_both(name, cell, arm, ("tuned",))).value
        for arm in ("relative_03", "relative_01", "relative_3")
        for name, cell in long
    }
    words = "even there ({:.1f} and {:.1f} below), while held-out images fail the rule by that measure, too ({:.1f} and"
    order = [(arm, name) for name in ("unscaled", "ends") for arm in ("relative_03", "relative_01")]
    assert f"{words} {{:.1f}} below)".format(*(below[one] for one in order)) in page
    assert [f"{-below['relative_3', name]:.1f}" for name, _ in long] == ["0.3", "0.3"]
    assert "(Beside `tuned` alone it is 0.3 above in both, within the noise.)" in page
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
        beside = {base: by_arm(lines_of(name, PLANNED, baseline=base)) for base in ("tuned", "plain")}
        for cell in cells or [tuple(cell) for arm, *cell in beside["plain"] if arm == "relative"]:
            line = told_apart(name, cell, PLANNED)
            found = (beside[base][("relative", *cell)] for base in ("tuned", "plain"))
            others = [signed_pair(one.difference) for one in found]
            verdict = beside["plain"][("relative", *cell)].verdict
            told = signed(line.difference), signed(line.pixel_difference)
            yield f"| {' | '.join([*map(str, cell), *told, *others, verdict])} |"


def beside_evened(*names):
    """`evened` beside plain, `tuned` beside plain, and `tuned` beside `evened`, in every cell that has all three."""
    for name in names:
        from_plain = by_arm(lines_of(name, PLANNED))
        from_evened = by_arm(lines_of(name, PLANNED, baseline="evened"))
        for cell in (cell for arm, *cell in from_plain if arm == "evened"):
            found = from_plain[("evened", *cell)], from_plain[("tuned", *cell)], from_evened[("tuned", *cell)]
            assert [line.difference.n for line in found] == [len(PLANNED)] * 3
            yield found


PHOTOGRAPHS = ("presets", "fits", "rest", "full", "further", "ends", "unscaled")


def evened_rows():
    """A plain classifier whose classes count alike, and `tuned` beside it."""
    for evened, _, tuned in beside_evened(*PHOTOGRAPHS, "scenes"):
        numbers = [signed_pair(one) for line in (evened, tuned) for one in (line.difference, line.pixel_difference)]
        yield f"| {' | '.join([*map(str, evened.cell), *numbers[:3], tuned.verdict, numbers[3]])} |"


def test_the_counts_of_evened_in_words():
    page, readme = (re.sub(r"\s+", " ", (DOCS / name).read_text()) for name in ("results.md", "../README.md"))
    found = list(beside_evened(*PHOTOGRAPHS))
    beside_plain, beside = (Counter(lines[i].verdict for lines in found) for i in (0, 2))
    assert beside_plain["above"] == 0
    words = "ahead of plain in {} of the {} cells of photographs that it was run in, even in {} and behind in {}"
    assert words.format(*(beside_plain[one] if one else len(found) for one in ("ahead", "", "even", "behind"))) in page
    words = "`tuned` is ahead of it in {}, above it in {}, even in {} and behind in {}"
    assert words.format(*(beside[one] for one in ("ahead", "above", "even", "behind"))) in page
    words = "Beside it the default is ahead in {} of {} cells, above in {}, even in {} and behind in {}"
    counts = beside["ahead"], len(found), beside["above"], beside["even"], beside["behind"]
    assert words.format(*counts) in readme
    pixels = Counter(sign(tuned.pixel_difference) for _, _, tuned in found)
    words = f"pixel accuracy of `tuned` is higher by more than two standard errors in {pixels[1]} of them and lower in"
    assert f"{words} {pixels[-1]}" in page
    assert f"higher by more than two standard errors in {pixels[1]} and lower in one" in readme
    shares = {line.cell: line.difference.value / tuned.difference.value for line, tuned, _ in found}
    short, long = ([share for cell, share in shares.items() if (cell.steps < 1000) == one] for one in (True, False))
    medians = [f"{100 * statistics.median(one):.0f} %" for one in (short, long)]
    assert "a median of {} in 18 short cells and of {} in eight to the end".format(*medians) in page
    assert "the median is {}, to the end {}".format(*medians) in page
    assert (len(short), len(long), sum(share > 0.5 for share in short)) == (18, 8, 17)
    assert "more than half of the gain** in 17 of 18 cells" in page
    near = sum(line.difference.value <= line.difference.error for _, _, line in found)
    assert f"In {near} cells it is at most one standard error below `tuned`" in page
    assert {line.verdict for _, _, line in found if line.cell.steps >= 1000} == {"ahead", "above", "even"}
    both = sum(tuned.verdict == beside.verdict == "ahead" for _, tuned, beside in found)
    higher = sum(min(tuned.difference.value, beside.difference.value) > 0 for _, tuned, beside in found)
    words = f"a higher mean than both plain and `evened` in {higher} of {len(found)} cells"
    assert f"{words}; `tuned` is ahead of both in {both}" in page
    at_95 = 4.303  # Student's t, two degrees of freedom
    sure = [sum(lines[i].difference.value > at_95 * lines[i].difference.error for lines in found) for i in (2, 0)]
    assert "are above zero in {} (`evened` from plain: in {})".format(*sure) in page
    long = [beside for *_, beside in found if "msrc21" in beside.cell.data and beside.cell.steps >= 1000]
    assert [sum(line.verdict == one for line in long) for one in ("above", "even")] == [1, 4]
    words = "higher mean in all five cells that were run, above `evened` in one and even in four, and a pixel accuracy"
    assert f"{words} that is higher by more than two standard errors in four" in page
    assert len(long) == sum(line.difference.value > 0 for line in long) == 5
    assert sum(sign(line.pixel_difference) for line in long) == 4
    assert f"where it has {mean_of([line.difference.value for line in long]).value:.1f} points more on average" in page
    long = [beside.verdict for *_, beside in found if "camvid" in beside.cell.data and beside.cell.steps >= 1000]
    assert (set(long), "Long, it is ahead of it on CamVid" in readme) == ({"ahead"}, True)

    uneven = [(one.pixel_difference, two.pixel_difference) for one, two, _ in found if "camvid" in one.cell.data]
    lower = [-evened.value for evened, _ in uneven if sign(evened) < 0]
    assert (len(lower), len(uneven)) == (9, 12)
    assert f"it costs pixels**: {min(lower):.1f} to {max(lower):.1f} points of pixel accuracy in nine cells" in page
    assert f"`tuned` has {-min(tuned.value for _, tuned in uneven):.1f} less at most" in page
    pairs = [lines[:2] for lines in found if "msrc21" in lines[0].cell.data]
    means = [mean_of([lines[i].pixel_difference.value for lines in pairs]).value for i in (0, 1)]
    assert "On MSRC-21 it has {:.1f} more on average, `tuned` {:.1f}".format(*means) in page


def test_the_shares_of_round_fifteen():
    page = re.sub(r"\s+", " ", (DOCS / "search.md").read_text())
    for data in ("camvid", "msrc21"):
        words = []
        for name, model in (("presets", "FCN"), ("fits", "DeepLabV3+")):
            found = [lines for lines in beside_evened(name) if lines[0].cell.data == data]
            shares = [100 * evened.difference.value / tuned.difference.value for evened, tuned, _ in found]
            words.append(f"{min(shares):.0f} to {max(shares):.0f} % with {model}")
        assert f"| {', '.join(words)} |" in page


def test_the_classes_that_evened_costs():
    page = re.sub(r"\s+", " ", (DOCS / "results.md").read_text())
    falls, rises = [], []
    for name in ("full", "further"):
        rows = [row for row in read_classes([RESULTS / "classes" / f"{name}.csv"]) if row["own"] == "yes"]
        scores = {}
        for row in rows:
            if row["data"] == "camvid" and row["arm"] in ("plain", "evened"):
                scores.setdefault(row["class"], {}).setdefault(row["arm"], []).append(row["iou"])
        lost = {one: mean_of(arms["plain"]).value - mean_of(arms["evened"]).value for one, arms in scores.items()}
        falls += [lost[one] for one in ("fence", "building", "pavement")]
        rises += [one for one, value in lost.items() if value < 0.0]
    assert set(rises) == {"sign"}
    assert "no class but signs has a higher mean" in page
    assert f"fences, buildings and pavements fall by {min(falls):.1f} to {max(falls):.1f} points" in page


def test_generated_scenes_without_the_balance():
    """`entropy` is `tuned` without it, `unsure` is `evened` without it."""
    search, page = (re.sub(r"\s+", " ", (DOCS / name).read_text()) for name in ("search.md", "results.md"))
    cells = [("scenes", "deeplabv3plus", rate, 150) for rate in ("adamw", "adamw_fast")]
    beside = {base: by_arm(lines_of("scenes", PLANNED, baseline=base)) for base in ("plain", "tuned", "evened")}

    def lower(arm, base):
        found = [beside[base][(arm, *cell)].difference for cell in cells]
        return tuple(f"{-one.value:.1f} ± {one.error:.1f}" for one in found)

    assert "{} and, at the higher rate, {} below `tuned`".format(*lower("entropy", "tuned")) in search
    assert "{} and {} below plain".format(*lower("unsure", "plain")) in search
    assert "{} and {} below `evened`".format(*lower("unsure", "evened")) in search
    assert "(`unsure`) give nothing, -{} and -{} from plain".format(*lower("unsure", "plain")) in page
    kept = [beside["plain"][(arm, *cell)].difference.value for cell in cells for arm in ("entropy", "tuned")]
    assert "(`entropy`) keeps {:.1f} of {:.1f} and {:.1f} of {:.1f} points".format(*kept) in page


def test_fixed_beside_evened():
    page = re.sub(r"\s+", " ", (DOCS / "results.md").read_text())
    lines = [
        line
        for name in PHOTOGRAPHS
        for line in own_lines(lines_of(name, PLANNED, baseline="evened"))
        if line.arm == "fixed" and line.difference is not None
    ]
    higher = sum(line.difference.value > 0 for line in lines)
    assert f"has the higher mean in {higher} of the {len(lines)} cells of photographs that have both" in page


def fifteen_rows():
    """Of round fifteen: mIoU and pixel accuracy beside plain, of two arms without an oracle and two with it."""
    for name in ("rest", "ends", "unscaled"):
        lines = by_arm(lines_of(name, PLANNED))
        for cell in (cell for arm, *cell in lines if arm == "two_evened"):
            found = [lines[(arm, *cell)] for arm in (*EVENED, "fixed", "tuned")]
            numbers = [f"{signed_pair(line.difference)}, {signed_pair(line.pixel_difference)}" for line in found]
            yield f"| {' | '.join([*map(str, cell), *numbers])} |"


def gains():
    """The table of the README: the difference at equal seeds, of mIoU."""
    cells = {
        "CamVid, validation images, long": ("full", ("camvid", FCN, "adamw", 2000)),
        "CamVid, validation images, long, DeepLabV3+": ("further", ("camvid", NEAR, "adamw", 1000)),
        "MSRC-21, long, unscaled": ("unscaled", ("msrc21_unscaled", FCN, "adamw", 2000)),
        "MSRC-21, long, unscaled, DeepLabV3+": ("unscaled", ("msrc21_unscaled", NEAR, "adamw", 2000)),
        "MSRC-21, long, unscaled, SGD": ("unscaled", ("msrc21_unscaled", FCN, "sgd", 2000)),
        "MSRC-21, long": ("full", ("msrc21", FCN, "adamw", 2000)),
        "CamVid, validation images, short": ("presets", ("camvid", FCN, "adamw", 800)),
        "MSRC-21, short": ("presets", ("msrc21", FCN, "adamw", 800)),
    }
    for title, (name, cell) in cells.items():
        lines = {line.arm: line for line in lines_of(name, PLANNED) if line.own and line.cell == cell}
        plain, evened, tuned = (lines[arm] for arm in ("plain", "evened", "tuned"))
        row = [f"{plain.miou.value:.1f}"]
        for line in (lines.get(arm) for arm in ("evened", "paper", "released", "tuned")):
            gain = "" if line is None else f" ({signed_pair(line.difference)})"
            row.append("not run" if line is None else f"{line.miou.value:.1f}{gain}")
        row += [signed_pair(line.pixel_difference) for line in (evened, tuned)]
        yield f"| {title} | {' | '.join(row)} |"


@pytest.mark.parametrize(
    ("page", "name", "rows"),
    [
        ("results.md", "cells", cell_rows),
        ("results.md", "parts", part_rows),
        ("results.md", "adapting", adapting_rows),
        ("results.md", "evened", evened_rows),
        ("search.md", "nine", nine_rows),
        ("search.md", "eleven", eleven_rows),
        ("search.md", "twelve", twelve_rows),
        ("search.md", "thirteen", thirteen_rows),
        ("search.md", "fourteen", fourteen_rows),
        ("search.md", "fifteen", fifteen_rows),
        ("search.md", "sixteen", sixteen_rows),
        ("search.md", "seventeen", seventeen_rows),
        ("../README.md", "gains", gains),
    ],
)
def test_the_rows_of_a_table_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())
