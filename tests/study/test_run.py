"""Studies in processes and folders: resumed, interrupted, with jobs that fail; and the commands."""

import csv
import json
import multiprocessing
import os

import pytest

import study_runs
from cacseg.study import pool
from cacseg.study.file import parse_study, tomllib
from cacseg.study.mps import mps_service
from cacseg.study.plan import make_plan
from cacseg.study.pool import Failed, Finished
from cacseg.study.run import look_at, run_study
from command_line import run as command

PLAN = make_plan(parse_study(tomllib.loads(study_runs.SMALL)))


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(study_runs.SMALL)
    return path


def test_the_commands(study_file, tmp_path, capsys, monkeypatch):
    def cacseg(*arguments):
        return command("study", *arguments, capsys=capsys, monkeypatch=monkeypatch)

    folder = tmp_path / "out"
    once = ("run", study_file, "-o", folder, "--device", "cpu", "--jobs", "2")
    listed = cacseg(*once, "--list")
    assert listed.out.splitlines() == ["scenes.fcn.adamw.3.plain.0", "scenes.fcn.adamw.3.paper.0"]
    assert not folder.exists()

    first = cacseg(*once)
    assert (first.code, "2 of 2 jobs done" in first.out) == (0, True), first.err
    assert "1/2 scenes.fcn.adamw.3." in first.err
    records = {path.name: path.read_bytes() for path in (folder / "jobs").iterdir()}
    assert len(records) == 2
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 1 + 4
    for source in (folder, folder / "classes.csv"):
        shown = cacseg("classes", source, "--markdown", tmp_path / "classes.md")
        assert (shown.code, "IoU in percent, scenes, fcn, adamw, 3 steps" in shown.out) == (0, True), shown.err
    assert (tmp_path / "classes.md").read_text().startswith("| class | plain | paper |")
    assert cacseg("classes", folder / "results.csv").code == 2

    again = cacseg(*once)
    assert (again.code, "2 jobs, 2 done before" in again.err) == (0, True)
    assert records == {path.name: path.read_bytes() for path in (folder / "jobs").iterdir()}

    changed = cacseg(*once, "--set", "optimiser.rate=0.5")
    assert changed.code == 2
    assert "was made with other settings (optimiser.rate was 0.001, now 0.5)" in changed.err
    assert records == {path.name: path.read_bytes() for path in (folder / "jobs").iterdir()}

    study_file.write_text(study_runs.SMALL + study_runs.REFUSED)
    refused = cacseg(*once)
    assert refused.code == 2
    assert "error: scenes.fcn.adamw.3.refused.0: classifier_arguments must be" in refused.err

    study_file.write_text(study_runs.SMALL + study_runs.BROKEN)
    broken = cacseg(*once, "--seeds", "0,1", "--only", "arms=plain,broken")
    assert broken.code == 1
    assert "2 of 4 jobs done" in broken.out
    assert "error: scenes.fcn.adamw.3.broken.0: " in broken.err
    assert "more than 1 value per channel" in broken.err
    failed = json.loads((folder / "jobs" / "scenes.fcn.adamw.3.broken.1.json").read_text())
    assert failed["status"] == "failed"
    assert "Traceback" in failed["details"]
    assert "paper" in (folder / "results.csv").read_text()  # what an earlier command left stays in the table

    table = cacseg("table", folder, "--markdown", tmp_path / "table.md")
    assert table.code == 0
    assert "2 of 5 jobs failed" in table.err
    assert "| scenes | fcn | adamw | 3 | paper | context |" in (tmp_path / "table.md").read_text()
    joined = tmp_path / "joined.csv"
    wide = cacseg("table", folder, "--wide", "--only", "arms=plain,paper", "--only", "seeds=0", "--csv", joined)
    assert (wide.code, "broken" in wide.out) == (0, False)
    assert len(joined.read_text().splitlines()) == 1 + 1 + 4
    assert "failed" not in cacseg("table", joined).err
    assert "is one of the files that are read" in cacseg("table", joined, "--csv", joined).err
    assert "is one of the files that are read" in cacseg("classes", folder, "--csv", folder / "classes.csv").err
    assert cacseg("classes", folder, "--only", "arms=paper", "--csv", tmp_path / "classes.csv").code == 0
    with (tmp_path / "classes.csv").open(newline="") as file:
        assert {row["arm"] for row in csv.DictReader(file)} == {"paper"}
    drawn = cacseg("plot", folder)
    assert drawn.out.strip() == str(folder / "differences.png")
    assert (folder / "differences.png").read_bytes().startswith(b"\x89PNG")


def test_a_mistyped_option_is_explained(study_file, capsys, monkeypatch):
    for option, words in (
        (("--only", "arm=plain"), "there is no axis 'arm'. Did you mean 'arms'?"),
        (("--root", "scenes"), "--root must be NAME=VALUE; got 'scenes'"),
        (("--seeds", "one"), "--seeds must be whole numbers between commas; got 'one'"),
        (("--mps", "--device", "cpu"), "--mps is for CUDA devices"),
    ):
        done = command("study", "run", study_file, *option, capsys=capsys, monkeypatch=monkeypatch)
        assert done.code == 2
        assert words in done.err


def test_a_process_that_dies_takes_one_job_with_it(monkeypatch):
    monkeypatch.setattr(pool, "_work", study_runs.die)
    told = []
    pool.run_jobs(PLAN, lambda job, message: told.append((job.id, message)), device="cpu", workers=1)
    assert [job_id for job_id, _ in told] == [job.id for job in PLAN]
    assert all(isinstance(message, Failed) and "ended with code 9" in message.error for _, message in told)


def test_an_interrupted_study_keeps_what_is_finished(tmp_path):
    def interrupt(job, message):
        if isinstance(message, Finished):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path, PLAN, interrupt, device="cpu", workers=1, threads=1)
    assert not multiprocessing.active_children()
    records, left = look_at(tmp_path, PLAN)
    assert list(records) == [PLAN[0].id]
    assert left == PLAN[1:]
    assert (tmp_path / "results.csv").exists()
    told = []
    run_study(tmp_path, PLAN, lambda job, message: told.append(job.id), device="cpu", workers=1, threads=1)
    assert set(told) == {PLAN[1].id}


def test_the_service_for_gpus_is_started_and_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="--mps needs nvidia-cuda-mps-control"), mps_service():
        pass
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\nread line\necho "$@ $line $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/log\n')
    control.chmod(0o755)
    with mps_service() as environment:
        assert os.path.isdir(environment["CUDA_MPS_PIPE_DIRECTORY"])
    started, ended = (tmp_path / "log").read_text().splitlines()
    assert started.split()[0] == "-d"
    assert ended.split() == ["quit", environment["CUDA_MPS_PIPE_DIRECTORY"]]
