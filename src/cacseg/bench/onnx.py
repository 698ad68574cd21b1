"""Exported models in ONNX Runtime on a CPU: the plain and the context-aware classifier side by side."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from cacseg.bench.compare import Clock, Row, Times, as_rows, take_times
from cacseg.bench.steps import CONTEXT, PLAIN, Steps
from cacseg.engine.device import read_clock
from cacseg.engine.export import export
from cacseg.engine.export.formats import open_onnx
from cacseg.models import create_model
from cacseg.presets import DEFAULT, PresetName

STATUS = Path("/proc/self/status")  # of Linux
PROCESSES = 5  # in which time is measured, and as many for the memory of each file
WARM_UP = 1  # round in each of them: a file's third run and all later ones take no new memory

T = TypeVar("T")


class Case(NamedTuple):
    """A file and what it is run with."""

    path: Path
    images: tuple[int, ...]
    threads: int


def write_cases(
    folder: Path, model_name: str, *, batch: int, classes: int, size: int, preset: PresetName = DEFAULT, threads: int
) -> dict[str, Case]:
    """The files of a model with random weights, from pixels to classes, with either classifier."""
    cases = {}
    for row in (PLAIN, CONTEXT):
        torch.manual_seed(0)
        model = create_model(model_name, classes, row, preset=preset)  # type: ignore[arg-type]
        written = export(model, folder / f"{row}.onnx", output="classes", overwrite=True)
        cases[row] = Case(written.path, (batch, 3, size, size), threads)
    return cases


def compare_files(
    cases: dict[str, Case], *, rounds: int, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Row]:
    """Time in `rounds` interleaved rounds, spread over fresh processes, and memory: of the first file, and beside it.

    Each process lays out its memory in its own way, which changes all its times: calls of one process each gave ratios
    of 1.044 to 1.061 for the same files.
    """
    times: Times = {row: [] for row in cases}
    for number in range(min(PROCESSES, rounds)):
        share = len(range(number, rounds, PROCESSES))
        for row, seen in _in_fresh_process(partial(time_rounds, cases, share)).items():
            times[row] += seen
        progress(len(times[PLAIN]))
    return as_rows(times, peak_memory(cases))


def time_rounds(cases: dict[str, Case], rounds: int) -> Times:
    device = torch.device("cpu")
    clock = choose_clock(cases[PLAIN].threads)[1]
    return take_times(onnx_steps(cases), device, rounds=rounds, warm_up=WARM_UP, clock=clock)


def onnx_steps(cases: dict[str, Case]) -> Steps:
    return {row: partial(open_onnx(case.path, case.threads), _draw(case)) for row, case in cases.items()}


def choose_clock(threads: int) -> tuple[str, Clock]:
    """Which time is measured, and its clock.

    One thread runs in the one that calls, whose processor time does not count what other programs take. Several also
    wait for each other, which only the wall clock sees.
    """
    return ("processor", lambda _: time.thread_time()) if threads == 1 else ("wall", read_clock)


def peak_memory(cases: dict[str, Case]) -> dict[str, float]:
    """MiB that a fresh process holds at most beside what it held before it opened the file, on Linux.

    The least of several processes: in some of them, 13 MiB of a 38 MiB file, read and freed, are not given back.
    """
    if not STATUS.exists():
        return {}
    growth = {row: partial(_growth_mib, case) for row, case in cases.items()}
    return {row: min(_in_fresh_process(one) for _ in range(PROCESSES)) for row, one in growth.items()}


def _in_fresh_process(function: Callable[[], T]) -> T:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function).result()


def _growth_mib(case: Case) -> float:
    import onnxruntime  # noqa: F401 (its own size is not the file's)

    images = _draw(case)
    before = _status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here; getrusage's is that of the parent too
    run = open_onnx(case.path, case.threads)
    for _ in range(3):
        run(images)
    return _status_mib("VmHWM") - before


def _status_mib(key: str) -> float:
    line = next(one for one in STATUS.read_text().splitlines() if one.startswith(key))
    return int(line.split()[1]) / 2**10  # KiB there


def _draw(case: Case) -> Tensor:
    return torch.randint(0, 256, case.images, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
