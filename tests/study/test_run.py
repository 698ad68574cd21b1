"""Studies in processes and folders: resumed, interrupted, with jobs that fail; and the commands."""

import csv
import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

import data_trees
import study_runs
from cacseg.cli import _study_display
from cacseg.recipes.config import change
from cacseg.study import pool
from cacseg.study.file import parse_study, tomllib
from cacseg.study.mps import mps_service
from cacseg.study.plan import make_plan
from cacseg.study.pool import Failed, Finished, Resumed, Stepped
from cacseg.study.results import write_record
from cacseg.study.run import _unless_other_data, look_at, run_study
from command_line import run as command

STUDIES = Path(__file__).parents[2] / "studies"
PLAN = make_plan(parse_study(tomllib.loads(study_runs.SMALL)))


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(study_runs.SMALL)
    return path


@pytest.mark.usefixtures("server")
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
    assert "error: scenes.fcn.adamw.3.refused.0: classifier_arguments has no argument 'no_such_argument'" in refused.err

    study_file.write_text(study_runs.SMALL + study_runs.BROKEN)
    broken = cacseg(*once, "--seeds", "0,1", "--only", "arms=plain,broken")
    assert broken.code == 1
    assert "2 of 4 jobs done" in broken.out
    assert "error: scenes.fcn.adamw.3.broken.0 and 1 more: " in broken.err
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
    assert "--markdown must be a file whose name ends in .md" in cacseg("table", joined, "--markdown", joined).err
    answers = cacseg("answers", folder, "--markdown", tmp_path / "answers.md")
    assert (answers.code, "2 of 5 jobs failed" in answers.err) == (0, True)
    each, counted = (tmp_path / "answers.md").read_text().split("\n\n")
    shown = [line.split(" | ")[4:6] for line in each.splitlines()[2:]]
    assert shown == [["paper", "context"], ["paper", "mean"], ["paper", "oracle"]]
    assert counted.splitlines()[2].startswith("| paper | 1 | ")
    told = cacseg("answers", folder, "--beside", "oracle", "--of", "mean")
    assert (told.code, "without the answer 'oracle' take no part: of plain" in told.err) == (0, True)
    assert ("over the cells" in answers.out, "over the cells" in told.out) == (True, False)  # none is the model's own
    assert (
        "there is no answer (of --of) 'best'. There is context, mean, oracle"
        in cacseg("answers", folder, "--of", "best").err
    )
    assert "no answer 'none' in the results. There is context, mean, oracle, plain" in (
        cacseg("answers", folder, "--beside", "none").err
    )
    assert "no model has another answer than 'plain'" in cacseg("answers", folder, "--only", "arms=plain").err
    assert "no result of the arm 'none'" in cacseg("classes", folder, "--baseline", "none").err
    assert "is one of the files that are read" in cacseg("classes", folder, "--csv", folder / "classes.csv").err
    assert cacseg("classes", folder, "--only", "arms=paper", "--csv", tmp_path / "classes.csv").code == 0
    with (tmp_path / "classes.csv").open(newline="") as file:
        assert {row["arm"] for row in csv.DictReader(file)} == {"paper"}
    drawn = cacseg("plot", folder)
    assert drawn.out.strip() == str(folder / "differences.png")
    assert (folder / "differences.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.chdir(tmp_path)  # beside a CSV, perhaps one of many, nothing is written
    assert cacseg("plot", folder / "results.csv").out.strip() == "results.png"
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("server")
def test_images_of_ones_own(tmp_path, capsys, monkeypatch):
    """The study that is ready for them, on images of two sizes."""
    data_trees.folder(tmp_path / "data")
    data_trees.write(tmp_path / "data/images/train/large.png", data_trees.image(9, (80, 96)))
    data_trees.write(tmp_path / "data/labels/train/large.png", data_trees.raw_labels([0, 1, 2], 9, (80, 96)))
    small = ("--set", "data.crop=48,64", "--set", "training.batch=2", "--steps", "2", "--seeds", "0")
    out = tmp_path / "out"
    asked = (
        "study",
        "run",
        STUDIES / "yours.toml",
        "--root",
        f"yours={tmp_path / 'data'}",
        "-o",
        out,
        "--device",
        "cpu",
    )
    ran = command(*asked, *small, capsys=capsys, monkeypatch=monkeypatch)
    assert (ran.code, "4 of 4 jobs done" in ran.out) == (0, True), ran.err
    rows = list(csv.DictReader((out / "results.csv").read_text().splitlines()))
    arms = ("plain", "plain_overlap", "tuned", "tuned_without_overlap")
    assert {(row["arm"], row["status"]) for row in rows} == {(arm, "done") for arm in arms}
    shown = command("study", "table", out, "--baseline", "plain_overlap", capsys=capsys, monkeypatch=monkeypatch)
    assert (shown.code, "tuned_without_overlap" in shown.out) == (0, True), shown.err


def test_a_folder_takes_only_what_can_be_compared(tmp_path):
    def planned(**arguments):
        return make_plan(parse_study(tomllib.loads(study_runs.SMALL)), **arguments)

    def record(job):
        return {**job.describe(), "status": "done", "default_output": "plain", "answers": {"plain": {"miou": 1.0}}}

    write_record(tmp_path, record(PLAN[0]))
    assert [job.arm for job in look_at(tmp_path, PLAN).jobs] == ["paper"]
    other_seed = [replace(job, seed=1) for job in planned(settings={"training.batch": 3})]
    with pytest.raises(ValueError, match=r"plain\.0\.json was made with other settings \(training\.batch was 2, now 3"):
        look_at(tmp_path, other_seed[:1])
    with pytest.raises(ValueError, match=r"other settings than 'paper' would have beside it \(.*training\.batch was 2"):
        look_at(tmp_path, other_seed[1:])
    write_record(tmp_path, {**record(PLAN[1]), "status": "failed"})
    assert [job.arm for job in look_at(tmp_path, PLAN).jobs] == ["paper"]


def test_a_job_that_saw_other_data_has_failed():
    first, second = ({**job.describe(), "data_digest": "one"} for job in PLAN)
    assert _unless_other_data(Finished(second), {first["id"]: first}) == Finished(second)
    second["data_digest"] = "two"
    failed = _unless_other_data(Finished(second), {first["id"]: first})
    assert "does not hold the data that scenes.fcn.adamw.3.plain.0 saw" in failed.error
    assert isinstance(_unless_other_data(Finished(second), {first["id"]: {**first, "data": "others"}}), Finished)
    del first["data_digest"]  # as older records
    assert isinstance(_unless_other_data(Finished(second), {first["id"]: first}), Finished)


def test_what_a_log_file_sees(monkeypatch):
    said, now = [], [0.0]
    monkeypatch.setattr(_study_display.messages, "print", lambda text, **_: said.append(text))
    monkeypatch.setattr(_study_display.time, "monotonic", lambda: now[0])
    with _study_display.Display(PLAN) as display:
        now[0] = 30.0
        display.report(PLAN[0], Stepped(1))
        assert said == []
        now[0] = 90.0
        display.report(PLAN[0], Stepped(1))
        assert said == ["     2/6 steps, 0.0 a second, 0:03:00 left"]
        display.report(PLAN[0], Failed("ValueError: no"))  # whose third step will never be done
        assert said[1] == "   1/2 scenes.fcn.adamw.3.plain.0  FAILED (ValueError: no), 0.0 steps/s in all"
        assert (display.steps, display.total, display.failed) == (2, 5, 1)
        display.report(PLAN[1], Resumed(2))  # of its three
        assert said[2] == "     scenes.fcn.adamw.3.paper.0  goes on after step 2"
        assert (display.steps, display.total) == (2, 3)
        display.report(PLAN[1], Stepped(1))
        assert (display.steps, display.total) == (3, 3)


def test_ctrl_c_and_how_often_jobs_are_saved(study_file, tmp_path, capsys, monkeypatch):
    asked = []

    def interrupted(*_, save_every, **__):
        asked.append(save_every)
        raise KeyboardInterrupt

    monkeypatch.setattr("cacseg.study.run.run_study", interrupted)
    for option in ((), ("--save-every", "2.5"), ("--save-every", "0")):
        once = ("study", "run", study_file, "-o", tmp_path / "out", "--device", "cpu", *option)
        done = command(*once, capsys=capsys, monkeypatch=monkeypatch)
        assert (done.code, "0 of 2 jobs are done; the same command goes on with the rest" in done.err) == (130, True)
    assert asked == [60.0, 2.5, None]


def test_a_mistyped_option_is_explained(study_file, capsys, monkeypatch):
    for option, words in (
        (("--only", "arm=plain"), "there is no axis 'arm'. Did you mean 'arms'?"),
        (("--root", "scenes"), "--root must be NAME=VALUE; got 'scenes'"),
        (("--seeds", "one"), "--seeds must be whole numbers between commas; got 'one'"),
        (("--mps", "--device", "cpu"), "--mps is for CUDA devices"),
        (("--set", "model.classifier=plain"), "the arms 'plain' and 'paper' are the same in scenes.fcn.adamw"),
    ):
        done = command("study", "run", study_file, *option, capsys=capsys, monkeypatch=monkeypatch)
        assert done.code == 2
        assert words in done.err


@pytest.mark.usefixtures("server")
def test_a_process_that_dies_takes_one_job_with_it(monkeypatch):
    monkeypatch.setattr(pool, "_work", study_runs.die)
    told = []
    pool.run_jobs(PLAN, lambda job, message: told.append((job.id, message)), device="cpu", workers=1)
    assert [job_id for job_id, _ in told] == [job.id for job in PLAN]
    assert all(isinstance(message, Failed) and "ended with code 9" in message.error for _, message in told)


@pytest.mark.usefixtures("server")
def test_data_that_cannot_be_read_are_read_once(monkeypatch):
    monkeypatch.setattr(pool, "_work", study_runs.no_data)
    said = []
    elsewhere = replace(PLAN[1], config=change(PLAN[1].config, {"data.length": 7}), seed=2)
    jobs = [*PLAN, replace(PLAN[0], seed=1), elsewhere]
    processes = []
    started = multiprocessing.get_context(pool._METHOD).Process
    monkeypatch.setattr(started, "start", counted(started.start, processes))
    pool.run_jobs(jobs, lambda job, message: said.append((job.id, message.error)), device="cpu", workers=1)
    assert [name for name, _ in said] == [job.id for job in jobs]
    assert {error for _, error in said} == {"OSError: 0.png is damaged"}
    assert len(processes) == 2  # one for each data set


def counted(function, calls):
    def call(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return call


@pytest.mark.usefixtures("server")
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
