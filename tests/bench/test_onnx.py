"""Exported models in ONNX Runtime: what is timed, and the memory of a process of its own."""

import json
import time
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from typer.testing import CliRunner

from cacseg.bench.compare import Row, compare
from cacseg.bench.onnx import Case, choose_clock, onnx_steps, with_memory
from cacseg.cli import app


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


def test_time_and_memory_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr("cacseg.bench.onnx.PROCESSES", 1)
    cases = {"plain": write_square(tmp_path / "one.onnx", 1), "context": write_square(tmp_path / "four.onnx", 4)}
    steps = onnx_steps(cases)
    assert [step().shape[1] for step in steps.values()] == [3, 12]
    rows = with_memory(compare(steps, torch.device("cpu"), rounds=1, warm_up=0), cases)
    assert rows["plain"].memory_mib > 12 * 2  # the values and their square, 12 MiB each
    assert rows["context"].memory_mib - rows["plain"].memory_mib > 12 * 3
    assert rows["context"].memory_ratio == pytest.approx(rows["context"].memory_mib / rows["plain"].memory_mib)


def test_memory_is_that_of_the_least_process(monkeypatch):
    """Some processes hold megabytes that were read and freed."""
    found = {"plain": iter([20.0, 10.0, 12.0, 20.0, 11.0]), "context": iter([30.0, 30.0, 11.0, 12.0, 30.0])}
    monkeypatch.setattr("cacseg.bench.onnx._in_fresh_process", lambda row: next(found[row]))
    monkeypatch.setattr("cacseg.bench.onnx.STATUS", Path(__file__))
    rows = with_memory({row: Row(1.0, 1.0, 1.0, 1.0, None, None) for row in found}, {row: row for row in found})
    assert [row.memory_mib for row in rows.values()] == [10.0, 11.0]
    assert rows["context"].memory_ratio == pytest.approx(1.1)


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


def test_other_devices_are_refused():
    done = CliRunner().invoke(app, ["bench", "infer", "--onnx", "--mode", "graph"])
    assert isinstance(done.exception, ValueError)
