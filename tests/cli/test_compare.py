"""`cacseg compare` and `cacseg ablate` with next to no training: that everything is there and goes on after a kill."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import compare_runs
from cacseg.recipes import find_recipe, pool
from cacseg.recipes.compare import ARMS, choose_arms, is_finished, make_plan
from command_line import run
from compare_runs import TINY


@pytest.fixture
def command(capsys, monkeypatch):
    return lambda *arguments: run(*arguments, capsys=capsys, monkeypatch=monkeypatch)


def start(folder, *arguments):
    """The command in a process of its own, its words in FOLDER.log."""
    line = [sys.executable, "-m", "cacseg.cli", "compare", *TINY, *arguments, "-o", str(folder)]
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)


def wait_for(path, process, seconds=120.0):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.05)


def test_a_comparison_and_its_report(command, tmp_path):
    folder = tmp_path / "here"
    arguments = ("compare", *TINY, "--arms", "plain,tuned", "--seeds", 1, "--steps", 2, "--jobs", 2, "-o", folder)
    done = command(*arguments)
    assert done.code == 0, done.err
    results, classes = (pd.read_csv(folder / f"{name}.csv") for name in ("results", "classes"))
    results, classes = (table[table["split"] == "val"] for table in (results, classes))
    assert list(results["output"]) == ["plain", "plain", "context", "oracle"]
    assert list(results["own"]) == ["yes", "no", "yes", "no"]
    assert set(classes["class"]) >= {"sky", "road"}
    for run_name in ("plain-2-0", "tuned-2-0"):
        names = {path.name for path in (folder / "runs" / run_name).iterdir()}
        assert names >= {"config.json", "scores.json", "last.ckpt", "last.safetensors", "train.log", "metrics.csv"}
    for name in ("differences.png", "differences.svg", "classes.png", "classes.svg"):
        assert (folder / name).stat().st_size > 1000
    report = (folder / "report.md").read_text()
    shown = f"{results['mean_iou'].iloc[2]:.1f}"
    assert shown in report
    assert shown in done.out
    # The same command runs nothing; a folder alone is shown again; other settings are refused.
    again = command(*arguments)
    assert "2 finished before" in again.err
    assert again.out == done.out == command("compare", folder).out
    refused = command(*arguments, "--set", "optimiser.rate=0.5")
    assert refused.code == 2
    assert "optimiser.rate was 0.001, now 0.5" in refused.err
    joined = command("compare", folder, folder, "-o", tmp_path / "both")
    assert joined.code == 0
    assert (tmp_path / "both/results.csv").read_text() == (folder / "results.csv").read_text()


def test_a_run_that_fails_ends_no_other(command, monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "train_run", compare_runs.fail_one)
    folder = tmp_path / "here"
    done = command("compare", *TINY, "--arms", "tuned,plain", "--seeds", 1, "--steps", 2, "-o", folder)
    assert done.code == 1
    assert "tuned-2-0: no luck with this one" in done.err
    assert set(pd.read_csv(folder / "results.csv")["arm"]) == {"plain"}
    assert "Traceback" in (folder / "runs/tuned-2-0/train.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("synthetic", "--arms", "plain,tunde"), "Did you mean 'tuned'"),
        (("synthetic", "--seeds", "0,0"), "different numbers"),
        (("synthetic", "--seeds", "0"), "1 or more"),
        (("syntetic",), "synthetic"),
        (("synthetic", "camvid"), "no comparison.json"),
        (("synthetic", "camvid"), "--root"),
        (("synthetic", "--set", "data.crop=999", "--devices", "cpu"), "crop must fit"),
        (("synthetic", "--mps", "--devices", "cpu"), "--mps is for CUDA"),
    ],
)
def test_wrong_commands(command, tmp_path, arguments, words):
    done = command("compare", *arguments, "-o", tmp_path / "here")
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1
    assert words in done.err
    assert not (tmp_path / "here/runs").exists()


def test_an_ablation_runs_rows_of_two_tables_once(command, tmp_path):
    small = ("--steps", 2, "--seeds", 1, "--devices", "cpu", "--set", "data.length=8", "--set", "data.val_length=3")
    arms = ("loss_a", "loss_f")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cacseg.recipes.ablate.rows_of", lambda table: [*arms] if table == "loss" else ["design_#"])
        for table in ("loss", "design"):
            done = command("ablate", table, *small, "-o", tmp_path)
            assert done.code == 0, done.err
    assert "1 runs, 1 finished before" in done.err
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {f"{arm}-2-0" for arm in arms}
    assert list(pd.read_csv(tmp_path / "loss.csv")["variant"]) == [*arms]
    assert (tmp_path / "design.png").exists()
    assert "46.91" in (tmp_path / "design.md").read_text()


@pytest.mark.slow
def test_a_killed_comparison_goes_on_to_the_same_results(tmp_path):
    arguments = ("--arms", "plain,tuned", "--seeds", "1", "--steps", "48", "--jobs", "2")
    alone = start(tmp_path / "alone", *arguments)
    assert alone.wait(300) == 0
    killed = start(tmp_path / "killed", *arguments)
    wait_for(tmp_path / "killed/runs/tuned-48-0/last.ckpt", killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    time.sleep(2.0)  # in which a run that went on alone would validate again
    assert not is_finished(tmp_path / "killed/runs/tuned-48-0")
    again = start(tmp_path / "killed", *arguments)
    assert again.wait(300) == 0
    assert "resuming after step 12" in (tmp_path / "killed/runs/tuned-48-0/train.log").read_text()
    for name in ("results.csv", "classes.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_comparison_has_checkpoints(tmp_path, number):
    process = start(
        tmp_path / "here", "--arms", "plain", "--seeds", "1", "--steps", "400", "--set", "training.log_every=1"
    )
    run_folder = tmp_path / "here/runs/plain-400-0"
    wait_for(run_folder / "metrics.csv", process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    assert process.wait(120) == 130
    assert "0 of 1 runs are finished; the same command" in (tmp_path / "here.log").read_text()
    assert (run_folder / "last.ckpt").exists()
    assert re.search(r"stopped after step \d+", (run_folder / "train.log").read_text())


def test_the_page_of_comparisons(command, tmp_path):
    """Its options exist, its arms are known, its file of arms can be planned."""
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    there = {"--settings"}  # of `cacseg train`
    for name in ("compare", "ablate"):
        there |= set(re.findall(r"(--[a-z-]+)", command(name, "--help").out))
    assert set(re.findall(r"(--[a-z][a-z-]*)", page)) <= there
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(ARMS)
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "arms.toml").write_text(text)
    arms = choose_arms(str(tmp_path / "arms.toml"))
    assert len(make_plan(find_recipe("synthetic"), arms, [0])) == 2
