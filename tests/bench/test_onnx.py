"""Exported models in ONNX Runtime: what is timed, and the memory of a process of its own."""

import json
import re
import statistics
import time
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cacseg.bench.onnx import Case, choose_clock, compare_files, onnx_steps, peak_memory
from cacseg.cli import app

pytest.importorskip("onnx", reason="needs the extra export")
import onnx
from onnx import TensorProto, helper


def write_square(path, times):
    """A file that holds `times` squares of its images at once, in float32."""
    names = [f"square_{index}" for index in range(times)]
    nodes = [helper.make_node("Cast", ["images"], ["values"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("Mul", ["values", "values"], [name]) for name in names]
    nodes.append(helper.make_node("Concat", names, ["classes"], axis=1))
    shape = ["b", 3, "h", "w"]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, shape)
    found = helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["b", 3 * times, "h", "w"])
    graph = helper.make_graph(nodes, "square", [images], [found])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return Case(path, (1, 3, 1024, 1024), 1)


@pytest.mark.slow
def test_time_and_memory_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr("cacseg.bench.onnx.PROCESSES", 1)
    cases = {"plain": write_square(tmp_path / "one.onnx", 1), "context": write_square(tmp_path / "four.onnx", 4)}
    assert [step().shape[1] for step in onnx_steps(cases).values()] == [3, 12]
    seen = []
    rows = compare_files(cases, rounds=2, progress=seen.append)
    assert seen == [2]
    assert rows["context"].time_ratio > 1.2  # four squares, and three times as much to write
    assert rows["plain"].memory_mib > 12 * 2  # the values and their square, 12 MiB each
    assert rows["context"].memory_mib - rows["plain"].memory_mib > 12 * 3
    assert rows["context"].memory_ratio == pytest.approx(rows["context"].memory_mib / rows["plain"].memory_mib)


@pytest.mark.parametrize(("rounds", "shares"), [(7, [2, 2, 1, 1, 1]), (2, [1, 1]), (20, [4] * 5)])
def test_rounds_are_spread_over_processes(rounds, shares, monkeypatch):
    """Every process times both files; the ratios of all rounds count alike."""
    asked = []

    def run_here(job):
        asked.append(job.args[1])
        return {"plain": [2.0] * job.args[1], "context": [2.0 * len(asked)] * job.args[1]}

    monkeypatch.setattr("cacseg.bench.onnx._in_fresh_process", run_here)
    monkeypatch.setattr("cacseg.bench.onnx.peak_memory", lambda cases: {})
    seen = []
    row = compare_files({"plain": None, "context": None}, rounds=rounds, progress=seen.append)["context"]
    assert asked == shares
    assert seen == list(accumulate(shares))
    ratios = [number for number, share in enumerate(shares, 1) for _ in range(share)]
    assert row.time_ratio == statistics.median(ratios)
    assert (row.time_ratio_least, row.time_ratio_most) == (1.0, len(shares))
    assert row.memory_mib is None


def test_memory_is_that_of_the_least_process(monkeypatch):
    """Some processes hold megabytes that were read and freed."""
    found = {"plain": iter([20.0, 10.0, 12.0, 20.0, 11.0]), "context": iter([30.0, 30.0, 11.0, 12.0, 30.0])}
    monkeypatch.setattr("cacseg.bench.onnx._in_fresh_process", lambda job: next(found[job.args[0]]))
    monkeypatch.setattr("cacseg.bench.onnx.STATUS", Path(__file__))
    assert peak_memory({row: row for row in found}) == {"plain": 10.0, "context": 11.0}


@pytest.mark.parametrize(("threads", "name", "waits"), [(1, "processor", False), (2, "wall", True)])
def test_one_thread_is_timed_without_what_others_take(threads, name, waits):
    found, clock = choose_clock(threads)
    start = clock(torch.device("cpu"))
    time.sleep(0.1)
    assert found == name
    assert (clock(torch.device("cpu")) - start > 0.05) == waits


@pytest.mark.slow
def test_the_command_writes_both_rows(tmp_path):
    file = tmp_path / "infer.json"
    command = ["bench", "infer", "--onnx", "--model", "fcn_mobilenetv2", "--sizes", "64", "--classes", "5"]
    done = CliRunner().invoke(app, [*command, "--rounds", "1", "--threads", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    (written,) = json.loads(file.read_text())
    assert list(written["rows"]) == ["plain", "context"]
    assert written["dtype"] == "float32"
    assert written["runtime"].startswith("onnxruntime ")
    assert written["clock"] == "processor"
    assert all(row["memory_mib"] > 0.0 for row in written["rows"].values())
    assert all(len(row["time_ratio_quartiles"]) == 2 for row in written["rows"].values())
    assert re.search(r", \d+ cores$", written["hardware"])


def test_other_devices_are_refused():
    done = CliRunner().invoke(app, ["bench", "infer", "--onnx", "--mode", "graph"])
    assert isinstance(done.exception, ValueError)
