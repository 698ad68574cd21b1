"""What docs/study.md states is true."""

import re
from itertools import product
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["presets", "long", "search", "candidates", "scenes", "rates"])
def test_the_tables_of_the_results_are_those_of_the_records(name):
    page = (DOCS / "results.md").read_text()
    lines = summarise(read_records([RESULTS / f"{name}.csv"]), "plain")
    assert markdown(arms_table(lines, "plain")) in page
    if name in ("presets", "long", "candidates"):
        assert markdown(pooled_table(pool(lines, "plain"))) in page


def gains():
    """The table of the README: the longer schedule of the grid, each cell over the seeds that all its arms have."""
    data, models = {"camvid": "CamVid", "msrc21": "MSRC-21"}, {"fcn": "FCN", "deeplabv3plus": "DeepLabV3+"}
    optimisers = {"adamw": "AdamW", "sgd": "SGD"}
    records = [record for record in read_records([RESULTS / "presets.csv"]) if record["steps"] == 800]
    for name, model, optimiser in product(data, models, optimisers):
        key = {"data": name, "model": f"{model}_mobilenetv2", "optimiser": optimiser}
        here = [record for record in records if all(record[axis] == value for axis, value in key.items())]
        arms = {
            arm: {one["seed"] for one in here if one["arm"] == arm} for arm in dict.fromkeys(one["arm"] for one in here)
        }
        seeds = set.intersection(*arms.values())
        lines = {
            line.arm: line for line in summarise([one for one in here if one["seed"] in seeds], "plain") if line.own
        }
        shown = [f"{lines['plain'].miou.value:.1f}"]
        for line in (lines.get(arm) for arm in ("released", "tuned")):
            gain = line and f"({line.difference.value:+.1f} ± {line.difference.error:.1f})"
            shown.append(f" {line.miou.value:.1f} {gain} " if line else " ")
        title = f"{data[name]}, {models[model]}, {optimisers[optimiser]}"
        yield f"| {title} | {shown[0]} |{shown[1]}|{shown[2]}| {len(seeds)} |"


def test_the_small_table_of_the_readme():
    readme = (DOCS.parent / "README.md").read_text()
    (table,) = re.findall(r"<!-- gains.*?-->\n(.*?)<!-- /gains -->", readme, re.DOTALL)
    assert table.strip().splitlines()[2:] == list(gains())
