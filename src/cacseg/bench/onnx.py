"""Exported models in ONNX Runtime on a CPU: the plain and the context-aware classifier side by side."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cacseg.bench.compare import Row
from cacseg.bench.steps import CONTEXT, PLAIN, Steps
from cacseg.engine.export import export
from cacseg.engine.export.formats import open_onnx
from cacseg.models import create_model
from cacseg.presets import DEFAULT, PresetName


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


def with_memory(rows: dict[str, Row], cases: dict[str, Case]) -> dict[str, Row]:
    """The rows with what a fresh process holds at most, beside what it held before it opened the file."""
    peaks = {}
    for row, case in cases.items():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            peaks[row] = pool.submit(_growth_mib, case).result()
    first = next(iter(peaks.values()))
    return {name: row._replace(memory_mib=peaks[name], memory_ratio=peaks[name] / first) for name, row in rows.items()}


def _growth_mib(case: Case) -> float:
    images = _draw(case)
    before = _peak_mib()
    run = open_onnx(case.path, case.threads)
    for _ in range(3):
        run(images)
    return _peak_mib() - before


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere


def _draw(case: Case) -> Tensor:
    return torch.randint(0, 256, case.images, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
