"""metrics.csv."""

import resource

import pytest

from cacseg.engine.log import CsvLog


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
