"""A killed run that is resumed ends with the weights of one that was left alone."""

import csv
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cacseg
import engine_runs
from cacseg.engine.callbacks import DryRun, Stopped
from cacseg.engine.checkpoints import read_checkpoint
from engine_runs import STEPS, Stripes, crop_32, run, small_loaders, small_task


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
    return [key for key in first if key not in ("seconds", "scores") and not same(first[key], second[key])]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums are rounded alike only where as many threads share them, here and in the runs that are killed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "alone"
    run(folder, STEPS)
    return folder


@pytest.fixture(scope="module")
def alone_elsewhere(tmp_path_factory):
    """In a process of its own, like the runs that are killed: tests before these can change how this one rounds."""
    folder = tmp_path_factory.mktemp("runs") / "alone_elsewhere"
    finish(folder)
    return folder


def start(folder, workers, steps, *resume):
    command = [sys.executable, engine_runs.__file__, str(folder), str(workers), str(steps), *resume]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=threads, start_new_session=True, stderr=subprocess.PIPE, text=True)


def finish(folder, workers=0, *resume):
    process = start(folder, workers, STEPS, *resume)
    try:
        _, said = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, said


def kill(folder, workers, after_row):
    """Starts a run of its own and kills it, workers and all, once a row of its log is there."""
    process = start(folder, workers, 400)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "metrics.csv").exists() and len(rows(folder)) >= after_row:
            break
        time.sleep(0.02)
    assert process.poll() is None, process.stderr.read()
    with pytest.raises(OSError, match="another process is training in"):
        run(folder, STEPS, resume=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_killed_run_goes_on_exactly(tmp_path, alone_elsewhere, workers):
    for attempt in range(5):  # on a busy machine a kill may come too late
        folder = tmp_path / f"killed_{attempt}"
        kill(folder, workers, after_row=5 + workers)
        saved = read_checkpoint(folder / "last.ckpt")["global_step"]
        if saved < STEPS:
            break
    assert 2 <= saved < STEPS
    (folder / ".1.2.tmp").write_bytes(b"half of a checkpoint")
    finish(folder, workers, "resume")
    assert read_checkpoint(folder / "last.ckpt")["global_step"] == STEPS
    assert differing(folder, alone_elsewhere) == []
    assert rows(folder) == rows(alone_elsewhere)  # none lost, none twice
    assert not list(folder.glob(".*.tmp"))
    for name in ("last", "best"):
        models = [cacseg.load(one / f"{name}.safetensors").state_dict() for one in (folder, alone_elsewhere)]
        assert same(*models)


def test_the_dry_run_leaves_no_trace(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(DryRun, "on_train_start", lambda *_: None)
    run(tmp_path / "run", STEPS)
    assert differing(tmp_path / "run", alone) == []


def interrupting(position):
    """A transform that sends this process Ctrl-C when it makes the crop at a position."""

    def transform(sample, generator):
        count = next(counter)
        if count == position:
            os.kill(os.getpid(), signal.SIGINT)
        return crop_32(sample, generator)

    counter = iter(range(10**6))
    return transform


def test_ctrl_c_saves_and_the_run_goes_on_exactly(tmp_path):
    """With averaged weights, AdamW and accumulated gradients, whose states must all come back."""
    options = {"ema_decay": 0.8, "save_every": 100, "validate_every": 4}

    def adamw_run(folder, transform=crop_32, **more):
        optimiser = {"name": "adamw", "rate": 1e-3, "weight_decay": 0.01, "decay_normalisation": False}
        schedule = {"power": 1.0, "warmup_steps": 3}
        task = small_task(steps=6, optimiser=optimiser, schedule=schedule, **options)
        loaders = small_loaders(Stripes(), Stripes("val", 2), transform=transform, accumulate=2)
        return run(folder, 6, task=task, loaders=loaders, **more)

    adamw_run(tmp_path / "alone")
    said, handler = [], signal.getsignal(signal.SIGINT)
    # Crops 0 and 1 are the dry run's and the loader reads one part ahead: the 9th is of the second step.
    with pytest.raises(Stopped) as stopped:
        adamw_run(tmp_path / "stopped", interrupting(9), report=said.append)
    assert 1 <= stopped.value.step < 4
    assert any("stopping after this step" in line for line in said)
    assert signal.getsignal(signal.SIGINT) is handler
    assert read_checkpoint(tmp_path / "stopped" / "last.ckpt")["global_step"] == stopped.value.step
    adamw_run(tmp_path / "stopped", resume=True)
    assert differing(tmp_path / "stopped", tmp_path / "alone") == []
    assert rows(tmp_path / "stopped") == rows(tmp_path / "alone")
    state = read_checkpoint(tmp_path / "stopped" / "last.ckpt")
    kept = list(cacseg.load(tmp_path / "stopped" / "last.safetensors").parameters())
    assert all(torch.equal(one, two) for one, two in zip(kept, state["averages"], strict=True))
    names = [name for name, _ in cacseg.load(tmp_path / "stopped" / "last.safetensors").named_parameters()]
    assert not torch.equal(kept[0], state["state_dict"][f"model.{names[0]}"])


def test_a_full_disk_leaves_the_checkpoint_before_whole(tmp_path, alone):
    """The limit on the size of files is the kernel's own, so the error is a real one."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    size = (alone / "last.ckpt").stat().st_size
    room = (size + (alone / "last.safetensors").stat().st_size) // 2  # for a model, not for a checkpoint

    def shrink(text):
        if text.startswith("step 6/"):  # validated, and about to be saved
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))

    folder = tmp_path / "full"
    try:
        with pytest.raises(OSError, match=r"last.ckpt could not be written, [\d,]+ bytes .*is whole .*--resume"):
            run(folder, STEPS, report=shrink)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert read_checkpoint(folder / "last.ckpt")["global_step"] == 4
    assert [path.name for path in folder.iterdir() if path.suffix == ".tmp"] == []
    run(folder, STEPS, resume=True)
    assert differing(folder, alone) == []


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, alone):
    folder, loggers = tmp_path / "run", ("csv", "tensorboard")
    run(folder, STEPS, loggers=loggers)
    (folder / "last.ckpt").unlink()
    assert run(folder, STEPS, loggers=loggers, resume=True).step == STEPS
    assert differing(folder, alone) == []
    assert rows(folder) == rows(alone)
    shown = EventAccumulator(str(folder / "tensorboard")).Reload().Scalars("rate")
    assert [event.step for event in shown] == list(range(1, STEPS + 1))  # none twice there either


def test_the_best_score_so_far_is_remembered(tmp_path, alone):
    """With a best score that no step can reach, the best model of before must stay."""
    folder = tmp_path / "run"
    shutil.copytree(alone, folder)
    torch.save({**read_checkpoint(folder / "last.ckpt"), "best": 2.0, "best_step": 3}, folder / "last.ckpt")
    (folder / "best.safetensors").write_bytes(b"the best")
    result = run(folder, STEPS + 1, resume=True)
    assert result == (STEPS + 1, 2.0, 3)
    assert (folder / "best.safetensors").read_bytes() == b"the best"


def test_a_finished_run_is_not_trained_further(tmp_path, alone):
    before = (alone / "last.ckpt").stat().st_mtime_ns
    said = []
    result = run(alone, STEPS, resume=True, report=said.append)
    assert result.step == STEPS
    assert 0.0 < result.best_mean_iou <= 1.0
    assert "is finished: 12 of 12 steps are done" in said[0]
    assert (alone / "last.ckpt").stat().st_mtime_ns == before


def test_a_run_goes_on_with_the_data_it_was_started_with(tmp_path, alone):
    shutil.copytree(alone, tmp_path / "run")
    renamed = Stripes()
    renamed.class_names = ("left", "sky", "right")
    words = "class 1 was 'right' and is 'sky'; class 2 was 'sky' and is 'right'"
    for data, match in ((Stripes(length=11), "there were 10 in 'train' of stripes and there are 11"), (renamed, words)):
        validation = Stripes("val", 3)
        validation.class_names = data.class_names
        with pytest.raises(ValueError, match=match):
            run(tmp_path / "run", STEPS + 1, loaders=small_loaders(data, validation), resume=True)


def test_a_damaged_checkpoint_is_named(tmp_path, alone):
    shutil.copytree(alone, tmp_path / "run")
    content = (tmp_path / "run" / "last.ckpt").read_bytes()
    for length in (5, 100, 5_000, 20_000, len(content) // 2, len(content) - 1):  # torch says something else of each
        (tmp_path / "run" / "last.ckpt").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"last\.ckpt cannot be read \([^)]*[a-z][^)]*\)\. Was it damaged"):
            read_checkpoint(tmp_path / "run" / "last.ckpt")
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read"):
        run(tmp_path / "run", STEPS + 1, resume=True)


@pytest.mark.parametrize("at", ["step 3/", "starting"])
def test_a_folder_that_is_removed_under_a_run_is_one_line(tmp_path, at):
    folder = tmp_path / "run"

    def remove(text):
        if text.startswith(at):
            shutil.rmtree(folder)

    with pytest.raises(FileNotFoundError, match=r"run was removed while something ran in it.*Start again"):
        run(folder, 8, report=remove)
    assert not folder.exists()
