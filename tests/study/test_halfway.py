"""A job that is interrupted goes on from its last saved step, and ends as if nothing had been."""

import json
from dataclasses import replace

import pytest
import torch

import study_runs
from cacseg.recipes.build import make_model
from cacseg.recipes.config import change
from cacseg.study import pool, training
from cacseg.study.file import parse_study, tomllib
from cacseg.study.halfway import Halfway
from cacseg.study.job import load_data
from cacseg.study.plan import make_plan
from cacseg.study.pool import Failed, Finished, Resumed, Stepped
from cacseg.study.results import state_path
from cacseg.study.run import look_at, run_study
from cacseg.study.training import train_model

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
STEPS = 30  # with a look after every fifth on a CPU
STUDY = tomllib.loads(study_runs.SMALL) | {"steps": [STEPS]}
PLAN = make_plan(parse_study(STUDY))
# What changes from step to step beside weights: averages, counts of batches, dropout.
ARGUMENTS = {
    "model.preset": "tuned",
    "model.dropout": 0.3,
    "training.ema_decay": 0.9,
    "schedule.steps": 25,
}


class Stop(Exception):
    pass


def after(steps):
    """Progress that ends the run once so many steps are done."""
    done = 0

    def progress(more):
        nonlocal done
        done += more
        if done >= steps:
            raise Stop

    return progress


def made(config, data, device):
    torch.manual_seed(0)
    return make_model(config.model, data.source, print).to(device)


@pytest.fixture
def repeatable(monkeypatch):
    """The algorithms of a GPU that give the same digits twice; a study takes the quickest."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("device", DEVICES)
def test_it_ends_as_if_nothing_had_been(device, name, tmp_path, monkeypatch, request):
    """On a GPU the first steps after an interruption are not replayed, and draw another dropout: there without."""
    monkeypatch.setitem(training.LOOK_EVERY, "cuda", 5)
    if device == "cuda":
        request.getfixturevalue("repeatable")
    dropout = {"model.dropout": 0.0} if device == "cuda" else {}
    config = change(PLAN[1].config, {**ARGUMENTS, **dropout, "optimiser.name": name})
    data = load_data(config, None, torch.device(device))

    def run(progress=None, halfway=None):
        return train_model(config, made(config, data, device), data.train, progress, halfway=halfway)

    whole = run()
    told = []
    halfway = Halfway(tmp_path / "job.pt", "key", every=0.0, tell=told.append)
    for stop in (12, 10):  # saved after ten steps; then after five more
        with pytest.raises(Stop):
            run(after(stop), halfway)
    found = run(halfway=halfway)
    assert told == [10, 15]
    assert (whole.resumed, found.resumed, found.steps) == ([], [10, 15], ARGUMENTS["schedule.steps"])
    assert found.losses == whole.losses
    ours, theirs = found.model.state_dict(), whole.model.state_dict()
    for name, one in ours.items():
        torch.testing.assert_close(one, theirs[name], rtol=0.0, atol=0.0)


def test_what_is_saved_of_other_settings_or_damaged_is_not_read(tmp_path):
    halfway = Halfway(tmp_path / "job.pt", "key", every=60.0)
    assert halfway.read() is None
    halfway.save({"step": 3})
    assert halfway.read() == {"key": "key", "step": 3}
    assert Halfway(tmp_path / "job.pt", "another", every=60.0).read() is None
    content = (tmp_path / "job.pt").read_bytes()
    for broken in (content[: len(content) // 2], b"", b"no state"):
        (tmp_path / "job.pt").write_bytes(broken)
        assert halfway.read() is None
    assert [path.name for path in tmp_path.iterdir()] == ["job.pt"]
    assert (Halfway(tmp_path / "x", "", every=0.0).due(), halfway.due()) == (True, False)


@pytest.mark.usefixtures("server")
def test_an_interrupted_study_goes_on_in_the_midst_of_a_job(tmp_path):
    def run(folder, report=lambda job, message: None, plan=PLAN[:1], **options):
        return run_study(folder, plan, report, device="cpu", workers=1, threads=1, save_every=1e-9, **options)

    (whole,) = run(tmp_path / "whole")
    steps = 0

    def interrupt(job, message):
        nonlocal steps
        steps += message.steps if isinstance(message, Stepped) else 0
        if steps >= 15:  # ten of them are saved by now
            raise KeyboardInterrupt

    folder = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        run(folder, interrupt)
    assert state_path(folder, PLAN[0].id).exists()
    assert look_at(folder, PLAN[:1]).jobs == PLAN[:1]
    (folder / "jobs" / ".1.2.tmp").write_bytes(b"half of a state")
    told = []
    (found,) = run(folder, lambda job, message: told.append(message))
    assert isinstance(told[0], Resumed)
    assert isinstance(told[-1], Finished)
    assert told[0].steps + sum(one.steps for one in told if isinstance(one, Stepped)) == STEPS
    assert (found["resumed"], whole["resumed"]) == ([told[0].steps], [])
    assert found["resumed"][0] >= 10
    assert (found["answers"], found["losses"]) == (whole["answers"], whole["losses"])
    assert json.loads((folder / "jobs" / f"{PLAN[0].id}.json").read_text()) == found
    assert [path.suffix for path in (folder / "jobs").iterdir()] == [".json"]  # nothing else is left of it


def test_a_job_that_failed_keeps_its_steps(tmp_path, monkeypatch):
    """Here with a process that imports everything itself, as where there is no server."""
    monkeypatch.setattr(pool, "_METHOD", "spawn")
    state = state_path(tmp_path, PLAN[0].id)
    Halfway(state, "of other settings", every=60.0).save({"step": 10})
    told = []
    broken = replace(PLAN[0], config=change(PLAN[0].config, {"training.batch": 1}))
    run_study(tmp_path, [broken], lambda job, message: told.append(message), device="cpu", workers=1, threads=1)
    assert [type(one) for one in told] == [Failed]
    assert state.exists()
