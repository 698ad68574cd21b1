"""Exported models in ONNX Runtime on a CPU: the plain and the context-aware classifier side by side."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cacseg.bench.compare import Clock, Row
from cacseg.bench.steps import CONTEXT, PLAIN, Steps
from cacseg.engine.device import read_clock
from cacseg.engine.export import export
from cacseg.engine.export.formats import open_onnx
from cacseg.models import create_model
from cacseg.presets import DEFAULT, PresetName

STATUS = Path("/proc/self/status")  # of Linux
PROCESSES = 5  # whose memory is measured


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


def onnx_steps(cases: dict[str, Case]) -> Steps:
    return {row: partial(open_onnx(case.path, case.threads), _draw(case)) for row, case in cases.items()}


def choose_clock(threads: int) -> tuple[str, Clock]:
    """Which time is measured, and its clock.

    One thread runs in the one that calls, whose processor time does not count what other programs take. Several also
    wait for each other, which only the wall clock sees.
    """
    return ("processor", lambda _: time.thread_time()) if threads == 1 else ("wall", read_clock)


def with_memory(rows: dict[str, Row], cases: dict[str, Case]) -> dict[str, Row]:
    """The rows with what a fresh process holds at most beside what it held before it opened the file, on Linux.

    The least of several processes: in some of them, 13 MiB of a 38 MiB file, read and freed, are not given back.
    """
    peaks: dict[str, float] = {}
    for row, case in cases.items() if STATUS.exists() else ():
        peaks[row] = min(_in_fresh_process(case) for _ in range(PROCESSES))
    ratios = {row: peak / peaks[PLAIN] for row, peak in peaks.items()}
    return {name: row._replace(memory_mib=peaks.get(name), memory_ratio=ratios.get(name)) for name, row in rows.items()}


def _in_fresh_process(case: Case) -> float:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_growth_mib, case).result()


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
