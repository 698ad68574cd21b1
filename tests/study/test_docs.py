"""What docs/study.md states is true, and the pages about results are what the records say."""

import re
import statistics
from collections import Counter

import pytest

from cacseg.study.classes import COLUMNS as CLASS_COLUMNS
from cacseg.study.classes import classes_tables, read_classes
from cacseg.study.file import parse_study, read_study, tomllib
from cacseg.study.plan import make_plan
from cacseg.study.results import AXES, COLUMNS, part_of
from cacseg.study.summary import mean_of, own_lines, pool, summarise_answers
from cacseg.study.tables import arms_table, markdown, pooled_table, wide_table
from study_pages import (
    CELLS,
    DOCS,
    FCN,
    PHOTOGRAPHS,
    PLANNED,
    RESULT_PAGES,
    RESULTS,
    beside_evened,
    by_arm,
    lines_of,
    own_of,
    records_of,
    rows_of,
    scores,
    shown,
    sign,
    signed_pair,
    where_it_is,
    words_of,
)

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
    there = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE))
    (table,) = re.findall(rf"\| option of `{command}` \|.*?\n\n", PAGE, re.DOTALL)
    rows = re.findall(r"^\| (`-.*?) \|", table, re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"`(-[-a-z]+)", row)}
    short = {"-o": "--output", "--no-graphs": "--graphs"}
    assert {short.get(option, option) for option in named} == there - {"--help"}


GRID = ("plain", "paper", "released", "residual", "centred")  # arms that the page shows of it
FITS = ("plain", "paper", "released", "fixed", "centred")
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
        ("results.md", "table", 1),
        *[("results-centred.md", kind, least) for kind, least in (("table", 2), ("wide", 3), ("classes", 2))],
        *[("search.md", kind, least) for kind, least in (("wide", 3), ("pooled", 3), ("classes", 1))],
        ("results-tables.md", "table", len(list(RESULTS.glob("*.csv")))),
    ],
)
def test_the_tables_of_the_results_are_those_of_the_records(page, kind, least):
    found = shown(page, kind)
    assert len(found) >= least
    for name, table in found.items():
        assert table == markdown(TABLES[kind](name)).strip(), name


def test_the_counts_in_words():
    page = words_of(*RESULT_PAGES)
    planned, all_of_them = own_of("centred", PLANNED), own_of("centred", None)
    assert len(planned) == 42
    assert all(line.difference.value > 0 for line in [*planned, *all_of_them])
    counts = Counter(line.verdict for line in planned)
    words = f"ahead in {counts['ahead']} cells, above in {counts['above']}, even in {counts['even']} and behind in none"
    assert words in page
    long = [line for line in planned if line.cell.steps >= 1000]
    ahead = [line for line in long if line.verdict == "ahead"]
    assert (len(ahead), len(long)) == (6, 11)
    assert "`centred` is ahead in six of the eleven cells to the end" in page
    assert sum(line.difference.value > 4.303 * line.difference.error for line in ahead) == 5  # Student's t
    assert "in five of them the 95 % interval of Student's t excludes zero" in page
    assert Counter(line.verdict for line in all_of_them)["ahead"] == counts["ahead"] + 3
    pixels = Counter(sign(line.pixel_difference) for line in planned)
    assert f"higher by more than two standard errors in {pixels[1]}, lower in {pixels[-1]}" in page
    validation = Counter(line.verdict for line in planned if line.cell.data == "camvid")
    assert f"ahead in {validation['ahead']} of {validation.total()}, above in 2 and even in 1" in page
    assert validation.total() == validation["ahead"] + 3
    assert f"{len(planned) - validation.total()} of the 42 cells are on images that choices were made on" in page
    at_95 = 4.303  # Student's t, two degrees of freedom
    sure = sum(line.difference.value > at_95 * line.difference.error for line in planned)
    assert f"exclude zero in {sure} of the 42 cells" in page
    for arm, words in (
        ("released", "`released` is ahead in {} of the {} cells that it was run in and behind in {}"),
        ("paper", "`paper` is ahead in {} of {} and behind in {}"),
    ):
        found = Counter(line.verdict for line in own_of(arm, PLANNED))
        assert words.format(found["ahead"], found.total(), found["behind"]) in page


def test_the_answers_of_the_same_models_in_words():
    """Context answers beside the plain answers of the very models, in every cell of `centred`."""
    page = words_of(*RESULT_PAGES)
    found = {}
    for name in CELLS:
        records = part_of(records_of(name), {"arms": ["centred"], "seeds": PLANNED})
        for line in summarise_answers(records, "plain"):
            if line.own and line.difference.n == len(PLANNED):
                found.setdefault(line.cell, line.difference)
    assert len(found) == 42
    higher, sure = (sum(what) for what in zip(*((one.value > 0, sign(one) > 0) for one in found.values()), strict=True))
    assert all(sign(one) >= 0 for one in found.values())
    words = (
        f"above their own plain answers in {higher} of the 42 cells, by more than two standard errors in {sure}, and"
    )
    assert f"{words} below by more than two in none" in page
    long = [one.value for cell, one in found.items() if cell.steps >= 1000]
    mean = mean_of(long).value
    assert f"in the eleven to the end by {min(long):.1f} to {max(long):.1f}, {mean:.1f} on average" in page


PARTS = {  # has a cosine, an oracle, its distillation, adapts
    "evened": ("no", "no", "of labels", "no"),
    "cosine": ("yes, alone", "no", "no", "no"),
    "two": ("yes", "no", "no", "no"),
    "two_evened": ("yes", "no", "of labels", "no"),
    "no_oracle": ("yes", "no", "no", "yes"),
    "fixed_no_kl": ("yes", "yes", "no", "no"),
    "no_kl": ("yes", "yes", "no", "yes"),
    "fixed": ("yes", "yes", "yes", "no"),
    "centred": ("yes", "yes", "yes", "yes"),
}


def part_rows():
    """mIoU and pixel accuracy of the classifier's parts beside plain, at the seeds that all of them have."""
    lines = by_arm(lines_of("rest", ("0", "1")))
    for arm, parts in PARTS.items():
        found = [lines[arm, data, FCN, "adamw_fast", 800] for data in ("camvid_held_out", "msrc21")]
        numbers = [signed_pair(one) for line in found for one in (line.difference, line.pixel_difference)]
        yield f"| {' | '.join([f'`{arm}`', *parts, *numbers])} |"


def adapting_rows():
    """`fixed`, the same classifier for all images, beside `centred`, in every cell that has three seeds of both."""
    for name in ("fits", "rates", "rest", "ends", "unscaled", "scenes"):
        lines = by_arm(lines_of(name, PLANNED))
        for line in own_lines(lines_of(name, PLANNED, baseline="fixed")):
            if line.arm == "centred" and line.difference is not None and line.difference.n == 3:
                both = [lines[(arm, *line.cell)].difference for arm in ("fixed", "centred")]
                numbers = map(signed_pair, (*both, line.difference, line.pixel_difference))
                yield f"| {' | '.join([*map(str, line.cell), *numbers])} |"


def test_the_table_of_what_misses_the_goal():
    """Of each cell the planned seeds, and all of them where there are more."""
    page = (DOCS / "results-centred.md").read_text()
    rows = re.findall(r"^\| (?:CamVid|MSRC-21), .* \| ([\d.]+) \| ([\d.]+) \| (.*) \|$", page, re.MULTILINE)
    more = {line.cell: line for line in own_of("centred", None)}
    expected = []
    for line in own_of("centred", PLANNED):
        if line.verdict != "ahead":
            name, by_seed = signed_pair(line.difference), more[line.cell].difference
            if by_seed.n > 3:
                name += f"; with six seeds {signed_pair(by_seed)}"
            plain = scores(where_it_is(line.cell, "centred"), line.cell, "plain", "plain")
            start = f"{mean_of(list(plain.values())).value:.1f}"
            expected.append((start, f"{line.miou.value:.1f}", name.replace("+0.0", "0.0")))
    assert sorted(rows) == sorted(expected)
    words = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    assert f"It is missed in {words[len(rows)]}." in page


def evened_rows():
    """A plain classifier whose classes count alike, and `centred` beside it."""
    for evened, _, centred in beside_evened(*PHOTOGRAPHS, "scenes"):
        numbers = [signed_pair(one) for line in (evened, centred) for one in (line.difference, line.pixel_difference)]
        yield f"| {' | '.join([*map(str, evened.cell), *numbers[:3], centred.verdict, numbers[3]])} |"


def test_the_counts_of_evened_in_words():
    page = words_of(*RESULT_PAGES)
    found = list(beside_evened(*PHOTOGRAPHS))
    beside_plain, beside = (Counter(lines[i].verdict for lines in found) for i in (0, 2))
    assert beside_plain["above"] == 0
    words = "ahead of plain in {} of the {} cells of photographs that it was run in, even in {} and behind in {}"
    assert words.format(*(beside_plain[one] if one else len(found) for one in ("ahead", "", "even", "behind"))) in page
    words = "`centred` is ahead of it in {}, above it in {}, even in {} and behind in {}"
    assert words.format(*(beside[one] for one in ("ahead", "above", "even", "behind"))) in page
    pixels = Counter(sign(centred.pixel_difference) for _, _, centred in found)
    words = f"`centred` is higher by more than two standard errors in {pixels[1]} of them and lower in {pixels[-1]}"
    assert f"pixel accuracy of {words}" in page
    shares = {line.cell: line.difference.value / centred.difference.value for line, centred, _ in found}
    short, long = ([share for cell, share in shares.items() if (cell.steps < 1000) == one] for one in (True, False))
    medians = [f"{100 * statistics.median(one):.0f} %" for one in (short, long)]
    assert "a median of {} in 18 short cells and of {} in nine to the end".format(*medians) in page
    assert "the median is {}, to the end {}".format(*medians) in page
    assert (len(short), len(long), sum(share > 0.5 for share in short)) == (18, 9, 17)
    assert "more than half of the gain** in 17 of 18 cells" in page
    near = sum(line.difference.value <= line.difference.error for _, _, line in found)
    assert f"In {near} cells it is at most one standard error below `centred`" in page
    assert {line.verdict for _, _, line in found if line.cell.steps >= 1000} == {"ahead", "above", "even"}
    both = sum(centred.verdict == beside.verdict == "ahead" for _, centred, beside in found)
    higher = sum(min(centred.difference.value, beside.difference.value) > 0 for _, centred, beside in found)
    words = f"a higher mean than both plain and `evened` in {higher} of {len(found)} cells"
    assert f"{words}; `centred` is ahead of both in {both}" in page
    at_95 = 4.303  # Student's t, two degrees of freedom
    sure = [sum(lines[i].difference.value > at_95 * lines[i].difference.error for lines in found) for i in (2, 0)]
    assert "are above zero in {} (`evened` from plain: in {})".format(*sure) in page
    long = [beside for *_, beside in found if "msrc21" in beside.cell.data and beside.cell.steps >= 1000]
    assert [sum(line.verdict == one for line in long) for one in ("ahead", "above", "even")] == [1, 1, 4]
    words = "[the whole recipe](results.md#the-whole-recipe)), above it in one and even in four, and a pixel accuracy"
    assert f"higher mean in all six cells that were run, ahead of `evened` in one ({words}" in page
    assert "accuracy that is higher by more than two standard errors in five" in page
    assert len(long) == sum(line.difference.value > 0 for line in long) == 6
    assert sum(sign(line.pixel_difference) for line in long) == 5
    assert f"where it has {mean_of([line.difference.value for line in long]).value:.1f} points more on average" in page
    long = [beside.verdict for *_, beside in found if "camvid" in beside.cell.data and beside.cell.steps >= 1000]
    assert set(long) == {"ahead"}

    uneven = [(one.pixel_difference, two.pixel_difference) for one, two, _ in found if "camvid" in one.cell.data]
    lower = [-evened.value for evened, _ in uneven if sign(evened) < 0]
    assert (len(lower), len(uneven)) == (9, 12)
    assert f"it costs pixels**: {min(lower):.1f} to {max(lower):.1f} points of pixel accuracy in nine cells" in page
    assert f"`centred` has {-min(centred.value for _, centred in uneven):.1f} less at most" in page
    pairs = [lines[:2] for lines in found if "msrc21" in lines[0].cell.data]
    means = [mean_of([lines[i].pixel_difference.value for lines in pairs]).value for i in (0, 1)]
    assert "On MSRC-21 it has {:.1f} more on average, `centred` {:.1f}".format(*means) in page


def test_the_classes_that_evened_costs():
    page = words_of(*RESULT_PAGES)
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


def test_fixed_beside_evened():
    page = words_of(*RESULT_PAGES)
    lines = [
        line
        for name in PHOTOGRAPHS
        for line in own_lines(lines_of(name, PLANNED, baseline="evened"))
        if line.arm == "fixed" and line.difference is not None
    ]
    higher = sum(line.difference.value > 0 for line in lines)
    assert f"has the higher mean in {higher} of the {len(lines)} cells of photographs that have both" in page


@pytest.mark.parametrize(
    ("page", "name", "rows"),
    [
        ("results.md", "parts", part_rows),
        ("results.md", "adapting", adapting_rows),
        ("results-centred.md", "evened", evened_rows),
    ],
)
def test_the_rows_of_a_table_are_those_of_the_records(page, name, rows):
    assert rows_of(page, name) == list(rows())
