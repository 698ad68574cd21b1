"""What docs/study.md states is true."""

import re
from pathlib import Path

import pytest

from cacseg.study.classes import COLUMNS as CLASS_COLUMNS
from cacseg.study.classes import classes_tables, read_classes
from cacseg.study.file import parse_study, tomllib
from cacseg.study.plan import AXES, make_plan
from cacseg.study.results import COLUMNS, read_records
from cacseg.study.summary import pool, summarise
from cacseg.study.tables import arms_table, markdown, pooled_table

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = Path(__file__).parents[2] / "studies" / "results"
PAGE = (DOCS / "study.md").read_text()


def test_the_study_on_the_page_can_be_planned():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    jobs = make_plan(parse_study(tomllib.loads(text)), {"camvid": "somewhere"})
    assert len(jobs) == 2 * 2 * 3
    assert {job.held_out for job in jobs} == {0.2}


def test_the_columns_and_axes_on_the_page():
    assert ",".join(COLUMNS) in PAGE
    assert ",".join(CLASS_COLUMNS) in PAGE
    (axes,) = re.findall(r"a part of the grid: (.*) \|", PAGE)
    assert axes == ", ".join(f"`{axis}`" for axis in AXES)


def test_the_options_on_the_page(capsys, monkeypatch):
    from command_line import run

    shown = run("study", "run", "--help", capsys=capsys, monkeypatch=monkeypatch).out
    rows = re.findall(r"^\| (`-.*?) \|", PAGE, re.MULTILINE)
    options = {option for row in rows for option in re.findall(r"`(-[-a-z]+)", row)}
    known = {"-o", "--root", "--set", "--only", "--seeds", "--steps", "--jobs", "--device", "--mps", "--no-graphs"}
    assert options == known | {"--list"}
    assert all(option in shown for option in options)


@pytest.mark.parametrize("name", [one.stem for one in sorted(RESULTS.glob("*.csv"))])
def test_the_tables_of_the_results_are_those_of_the_records(name):
    page = (DOCS / "results.md").read_text()
    lines = summarise(read_records([RESULTS / f"{name}.csv"]), "plain")
    page += "\n"  # a table ends where a line is empty
    assert markdown(arms_table(lines, "plain")) + "\n" in page
    if name in ("presets", "long", "candidates", "trained"):
        assert markdown(pooled_table(pool(lines, "plain"))) + "\n" in page


@pytest.mark.parametrize("name", [one.stem for one in sorted((RESULTS / "classes").glob("*.csv"))])
def test_the_tables_of_classes_are_those_of_the_records(name):
    page = (DOCS / "results.md").read_text()
    tables = classes_tables(read_classes([RESULTS / "classes" / f"{name}.csv"]), "plain")
    assert markdown(tables[0]) + "\n" in page  # of CamVid; that of MSRC-21 is not shown


FCN, DEEPLAB = "fcn_mobilenetv2", "deeplabv3plus_mobilenetv2"


def gains():
    """The table of the README: each difference over the seeds that an arm shares with plain."""
    cells = {
        "CamVid, validation images, the recipe": ("full", ("camvid", FCN, "adamw", 2000)),
        "MSRC-21, the recipe": ("full", ("msrc21", FCN, "adamw", 2000)),
        "CamVid, validation images, short": ("presets", ("camvid", FCN, "adamw", 800)),
        "MSRC-21, short": ("presets", ("msrc21", FCN, "adamw", 800)),
        "CamVid, validation images, short, DeepLabV3+": ("presets", ("camvid", DEEPLAB, "adamw", 800)),
        "MSRC-21, short, DeepLabV3+": ("presets", ("msrc21", DEEPLAB, "adamw", 800)),
    }
    for title, (name, cell) in cells.items():
        found = summarise(read_records([RESULTS / f"{name}.csv"]), "plain")
        lines = {line.arm: line for line in found if line.own and line.cell == cell}
        shown = [f"{lines['plain'].miou.value:.1f}"]
        for line in (lines.get(arm) for arm in ("paper", "released", "tuned")):
            if line is None:
                shown.append("not run")
                continue
            value, error, _ = line.difference
            shown.append(f"{line.miou.value:.1f} ({value:+.1f} ± {error:.1f})")
        yield f"| {title} | {' | '.join(shown)} |"


def verdicts(arm, *names):
    """The verdict on an arm in every cell with more than one seed; of a cell in two files the first."""
    found = {}
    for name in names:
        for line in summarise(read_records([RESULTS / f"{name}.csv"]), "plain"):
            if line.own and line.arm == arm and line.verdict:
                found.setdefault(line.cell, line)
    return list(found.values())


def test_the_count_of_cells_in_words():
    results, readme = (re.sub(r"\s+", " ", (DOCS / page).read_text()) for page in ("results.md", "../README.md"))
    counted = verdicts("tuned", "presets", "full", "whole", "rates")
    ahead, even = (sum(line.verdict == kind for line in counted) for kind in ("ahead", "even"))
    assert ahead + even == len(counted)
    assert all(line.difference.value > 0 for line in counted)
    for page in (results, readme):
        assert f"{len(counted)} cells" in page
        assert f"ahead in {ahead}" in page
    assert f"even in {even}, and behind in none; its mean is above plain in all {len(counted)}." in results
    assert f"even in {even} and behind in none." in readme
    for arm in ("released", "paper"):
        others = [line.verdict for line in verdicts(arm, "presets")]
        assert len(others) == 16
        assert f"`{arm}` is ahead in {others.count('ahead')} and behind in {others.count('behind')}" in readme


def test_the_small_table_of_the_readme():
    readme = (DOCS.parent / "README.md").read_text()
    (table,) = re.findall(r"<!-- gains.*?-->\n(.*?)<!-- /gains -->", readme, re.DOTALL)
    assert table.strip().splitlines()[2:] == list(gains())
