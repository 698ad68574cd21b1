"""metrics.csv, and what is reported."""

import re
import resource
from types import SimpleNamespace

import pytest
import torch

from cacseg.engine.log import CsvLog, Log


def test_rows_are_on_disk_at_once_and_new_columns_widen_the_file(tmp_path):
    path = tmp_path / "metrics.csv"
    log = CsvLog(path)
    log.log_metrics({"loss": 1.5, "rate": 0.1}, step=1)
    assert path.read_text().splitlines() == ["step,loss,rate", "1,1.5,0.1"]
    log.log_metrics({"miou": 0.25}, step=1)
    log.log_metrics({"loss": 1.25, "rate": 0.05}, step=2)
    assert path.read_text().splitlines() == ["step,loss,rate,miou", "1,1.5,0.1,", "1,,,0.25", "2,1.25,0.05,"]


def test_a_resumed_log_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\r\n1,3.0\r\n2,2.0\r\n3,1.0\r\n4,0.")  # the last row was being written
    log = CsvLog(path, keep_steps=2)
    log.log_metrics({"loss": 1.0}, step=3)
    assert path.read_text().splitlines() == ["step,loss", "1,3.0", "2,2.0", "3,1.0"]


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfstep,loss\n1,3.0\n", b"step,loss\n1,3.0\n\0\0\0\n", b"step,loss\n1,3.0\n2\n-1,2\n"]
)
def test_a_log_that_an_editor_or_a_crash_has_changed(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    CsvLog(tmp_path / "metrics.csv", keep_steps=2)
    assert (tmp_path / "metrics.csv").read_bytes() == b"step,loss\n1,3.0\n"


@pytest.mark.parametrize("content", ["step,loss\n1,3.0\n".encode("utf-16"), b"loss,step\n", b"\xff\n"])
def test_what_is_no_log_is_left_as_it_is(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"metrics\.csv is no log of a run: its first column must be step.*Move it away"
    ):
        CsvLog(tmp_path / "metrics.csv", keep_steps=2)
    assert (tmp_path / "metrics.csv").read_bytes() == content


def test_a_folder_that_was_removed_is_not_made_again(tmp_path):
    log = CsvLog(tmp_path / "run/metrics.csv")
    with pytest.raises(FileNotFoundError, match="run was removed while something ran in it"):
        log.log_metrics({"loss": 1.0}, step=1)
    assert not (tmp_path / "run").exists()


def test_a_row_that_finds_no_room_names_its_file(tmp_path):
    path, (soft, hard) = tmp_path / "metrics.csv", resource.getrlimit(resource.RLIMIT_FSIZE)
    log = CsvLog(path)
    log.log_metrics({"loss": 1.0}, step=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with pytest.raises(OSError, match=r"metrics\.csv could not be written \(.*\)\. Free or add space"):
            log.log_metrics({"loss": 2.0}, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text().splitlines() == ["step,loss", "1,1.0"]


def test_a_step_that_was_cut_short_is_not_taken_for_an_earlier_one(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\r\n11,3.0\r\n1")  # of 12
    CsvLog(path, keep_steps=11)
    assert path.read_text().splitlines() == ["step,loss", "11,3.0"]


def logged(steps, every, totals, lines, monkeypatch, seconds_a_step=1.0):
    """What a log reports of a run with these total losses."""
    now, said = [0.0], []
    monkeypatch.setattr("cacseg.engine.log.time.monotonic", lambda: now[0])
    log = Log(said.append, steps, every, lines=lines)
    optimiser = SimpleNamespace(param_groups=[{"initial_lr": 0.1}])
    strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)
    trainer = SimpleNamespace(global_step=0, strategy=strategy, optimizers=[optimiser], loggers=[])
    task = SimpleNamespace(rate_at=lambda step: 1.0)
    log.on_train_start(trainer, task)
    for step, total in enumerate(totals, 1):
        now[0] += seconds_a_step
        trainer.global_step = step
        log.on_train_batch_end(trainer, task, {"terms": {"total": torch.tensor(total)}}, None, 0)
    return said


def test_without_a_bar_there_is_a_line_of_losses_and_one_every_half_minute(monkeypatch):
    said = logged(100, 50, [1.0] * 100, True, monkeypatch)
    steps = [int(re.match(r"step (\d+)/100", line)[1]) for line in said]
    assert steps == [31, 50, 81, 100]  # 30 seconds after the start, at log_every, 30 seconds after that, and at the end
    assert re.search(r"loss total 1\.000, rate 0\.1 \(1\.00 steps/s, 0:00:50 left\)", said[1])
    assert logged(100, 50, [1.0] * 100, False, monkeypatch) == []


def test_a_loss_that_grows_is_reported_once_with_a_remedy(monkeypatch):
    falling = [2.0 * 0.9**step for step in range(20)]
    assert logged(60, 1, [*falling, *([0.5] * 40)], False, monkeypatch) == []
    (line,) = logged(60, 1, [*falling, *(0.3 * 1.2**step for step in range(40))], False, monkeypatch)
    assert "optimiser.rate" in line
    assert "optimiser.clip" in line
