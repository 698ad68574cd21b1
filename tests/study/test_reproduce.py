"""studies/reproduce.sh plans the very jobs whose results are in the repository."""

import argparse
import csv
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cacseg.recipes.config import parse_setting
from cacseg.study.file import read_study
from cacseg.study.plan import make_plan

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "studies" / "results"
# Of the file of ImageNet weights that the results were made with.
WEIGHTS = "1ddd9dfa62e650c5184654f9d87e2232dfd3075f4ff750f3c2a23d711cde987c"


def commands(name, tmp_path):
    """What the script would call, as lists of arguments."""
    shim = tmp_path / "cacseg"
    shim.write_text('#!/bin/sh\nprintf "%s\\t" "$@"\necho\n')
    shim.chmod(0o755)
    (tmp_path / "weights").write_bytes(b"weights")
    given = {"CAMVID": "camvid", "MSRC21": "msrc21", "WEIGHTS": str(tmp_path / "weights"), "CACSEG": str(shim)}
    asked = ["bash", "studies/reproduce.sh", name]
    done = subprocess.run(asked, cwd=ROOT, env={**os.environ, **given}, capture_output=True, text=True, check=True)
    return [line.rstrip("\t").split("\t") for line in done.stdout.splitlines()]


def planned(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    for option in ("--root", "--set", "--only"):
        parser.add_argument(option, action="append", default=[])
    for option in ("--seeds", "--steps", "--device", "--jobs", "-o"):
        parser.add_argument(option)
    parser.add_argument("--mps", action="store_true")
    found = parser.parse_args(arguments)
    only = {axis: names.split(",") for axis, names in (text.split("=") for text in found.only)}
    study = read_study(ROOT / found.file)
    numbers = {axis: getattr(found, axis) for axis in ("seeds", "steps") if getattr(found, axis)}
    study = replace(study, **{axis: tuple(map(int, text.split(","))) for axis, text in numbers.items()})
    roots = dict(text.split("=") for text in found.root)
    return make_plan(study, roots, dict(map(parse_setting, found.set)), only)


@pytest.mark.parametrize("name", [one.stem for one in sorted(RESULTS.glob("*.csv"))])
def test_the_jobs_are_those_of_the_results(name, tmp_path, monkeypatch):
    """Each of them with the settings that its results were made with, of which the digests are part of the results."""
    monkeypatch.setattr("cacseg.study.plan._content", lambda path: WEIGHTS)
    *runs, join = commands(name, tmp_path)
    jobs = [job for arguments in runs for job in planned(arguments[2:])]
    assert len(jobs) == len({job.id for job in jobs})
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        columns = ("data", "model", "optimiser", "steps", "arm", "seed")
        rows = {".".join(row[column] for column in columns): row for row in csv.DictReader(file)}
    assert {job.id: job.digest for job in jobs} == {name: row["digest"] for name, row in rows.items()}
    shared = {name: row["shared"] for name, row in rows.items() if row.get("shared")}  # older rows have none
    assert {job.id: job.shared for job in jobs if job.id in shared} == shared
    assert join[:2] == ["study", "table"]
    assert join[-1] == f"runs/{name}.csv"


def test_without_names_it_runs_all():
    (names,) = re.findall(r'all="(.*)"', (ROOT / "studies" / "reproduce.sh").read_text())
    assert sorted(names.split()) == sorted(path.stem for path in RESULTS.glob("*.csv"))


def test_an_unknown_name_is_an_error(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as error:
        commands("nothing", tmp_path)
    assert error.value.stderr == "there is no study nothing in studies/reproduce.sh\n"


def test_it_runs_from_the_folder_of_the_repository_alone(tmp_path):
    given = {"CAMVID": "camvid", "MSRC21": "msrc21", "WEIGHTS": "weights"}
    asked = ["bash", str(ROOT / "studies" / "reproduce.sh"), "full"]
    done = subprocess.run(asked, cwd=tmp_path, env={**os.environ, **given}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"must be run from the folder of the repository; this is {tmp_path}\n"


FILES = {"CAMVID": "camvid=", "MSRC21": "msrc21=", "WEIGHTS": "model.backbone_weights="}


def echo(names, given):
    """The commands, printed, and what is said where there are none."""
    environment = {name: value for name, value in os.environ.items() if name not in FILES} | {"CACSEG": "echo"}
    asked = ["bash", "studies/reproduce.sh", *names]
    given = {**environment, **dict.fromkeys(given, "somewhere")}
    return subprocess.run(asked, cwd=ROOT, env=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [one.stem for one in sorted(RESULTS.glob("*.csv"))])
def test_a_study_asks_for_the_files_that_its_commands_name(name):
    printed = echo([name], FILES).stdout
    assert f"study run studies/{name}.toml" in printed
    needed = [variable for variable, option in FILES.items() if option in printed]
    assert echo([name], needed).stdout == printed
    for variable in needed:
        done = echo([name], [one for one in needed if one != variable])
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{variable}: must be" in done.stderr


def test_all_is_asked_for_before_anything_runs():
    for names, words in (
        (["scenes", "full"], "CAMVID: must be the folder of CamVid"),
        ([], "CAMVID: must be the folder of CamVid"),
        (["scenes", "typo"], "there is no study typo in studies/reproduce.sh"),
        (["go"], "there is no study go in studies/reproduce.sh"),
    ):
        done = echo(names, [])
        assert (done.returncode > 0, done.stdout) == (True, "")
        assert words in done.stderr
