"""What docs/study.md states is true."""

import re
from pathlib import Path

from cacseg.study.file import parse_study, tomllib
from cacseg.study.plan import AXES, make_plan
from cacseg.study.results import COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "study.md").read_text()


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
    assert options == {"-o", "--root", "--set", "--only", "--seeds", "--steps", "--jobs", "--device", "--mps", "--list"}
    assert all(option in shown for option in options)
