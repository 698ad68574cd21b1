"""docs/study.md: the study it shows can be planned, the options it names exist."""

import re
from pathlib import Path

from cacseg.study.file import parse_study, tomllib
from cacseg.study.plan import make_plan
from command_line import run

PAGE = (Path(__file__).parents[2] / "docs" / "study.md").read_text()


def test_the_study_on_the_page_can_be_planned():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    jobs = make_plan(parse_study(tomllib.loads(text)), {"camvid": "somewhere"})
    assert len(jobs) == 2 * 2 * 3
    assert {job.held_out for job in jobs} == {0.2}


def test_the_options_on_the_page_exist(capsys, monkeypatch):
    there = {"--help", "--list", "--settings"}  # the last two also of `cacseg train`
    for command in ("run", "table", "answers", "classes", "plot"):
        shown = run("study", command, "--help", capsys=capsys, monkeypatch=monkeypatch).out
        there |= set(re.findall(r"(--[a-z-]+)", shown))
    named = set(re.findall(r"(--[a-z-]+)", PAGE))
    assert len(named) > 8
    assert named <= there
