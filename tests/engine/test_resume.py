"""A killed run that is resumed ends with the weights of one that was left alone."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import cacseg
import engine_runs
from cacseg.engine.checkpoints import read_checkpoint
from engine_runs import run, small_loaders

STEPS = 12


def same(first, second):
    """Bit for bit, down to the last optimiser state."""
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        return all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def differing(folder, other):
    """The parts of two last checkpoints that are not the same."""
    first, second = (read_checkpoint(one / "last.ckpt") for one in (folder, other))
    return [key for key in first if not same(first[key], second[key])]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "alone"
    run(folder, STEPS)
    return folder


def kill(folder, workers, after_row):
    """Starts a run of its own and kills it, workers and all, once a row of its log is there."""
    command = [sys.executable, engine_runs.__file__, str(folder), str(workers)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "metrics.csv").exists() and len(rows(folder)) >= after_row:
            break
        time.sleep(0.02)
    assert process.poll() is None, process.stderr.read()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_goes_on_exactly(tmp_path, alone, workers):
    folder = tmp_path / "killed"
    kill(folder, workers, after_row=5 + workers)
    saved = read_checkpoint(folder / "last.ckpt")["global_step"]
    assert 2 <= saved < STEPS
    best = run(folder, STEPS, loaders=small_loaders(workers=workers), resume=True)
    assert best.step == STEPS
    assert differing(folder, alone) == []
    assert rows(folder) == rows(alone)  # none lost, none twice
    for name in ("last", "best"):
        models = [cacseg.load(one / f"{name}.safetensors").state_dict() for one in (folder, alone)]
        assert same(*models)
