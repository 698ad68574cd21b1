"""Times several rows in one process, in interleaved rounds: a busy moment slows all rows alike."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from datetime import date
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from cacseg.bench.machine import processor_name
from cacseg.engine.device import read_clock

Clock = Callable[[torch.device], float]
Times = dict[str, list[float]]  # milliseconds, by row and round


class Row(NamedTuple):
    """What one row costs, alone and beside the first one."""

    time_ms: float  # median over the rounds
    time_ratio: float  # median of the ratios within each round
    time_ratio_least: float
    time_ratio_most: float
    memory_mib: float | None  # at most, beside what was there before; None: a CUDA graph holds what it needs
    memory_ratio: float | None
    time_ratio_quartiles: tuple[float, float]


def compare(
    steps: dict[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int = 10,
    warm_up: int = 3,
    progress: Callable[[int], None] | None = None,
    clock: Clock = read_clock,
) -> dict[str, Row]:
    """Runs every step `warm_up` + `rounds` times, in turn; the first one is what the others are compared with.

    Each is run once more, untimed, before it is timed: what another row left in caches and allocators is not its own.
    `clock` returns seconds, when the work of a device is done.
    """
    times = take_times(steps, device, rounds=rounds, warm_up=warm_up, progress=progress, clock=clock)
    return as_rows(times, {name: peak_mib(step, device) for name, step in steps.items()})


def take_times(
    steps: dict[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int,
    warm_up: int,
    progress: Callable[[int], None] | None = None,
    clock: Clock = read_clock,
) -> Times:
    """The milliseconds of each row in each round, as `compare` takes them."""
    times: Times = {name: [] for name in steps}
    for number in range(warm_up + rounds):
        for name, step in steps.items():
            step()
            time_ms = _time_ms(step, device, clock)
            if number >= warm_up:
                times[name].append(time_ms)
        if progress is not None:
            progress(number + 1)
    return times


def as_rows(times: Times, memory_mib: Mapping[str, float]) -> dict[str, Row]:
    """Each row beside the first one; `memory_mib` is empty where it is unknown."""
    base = next(iter(times))
    rows = {}
    for name, seen in times.items():
        ratios = [ours / theirs for ours, theirs in zip(seen, times[base], strict=True)]
        first, _, third = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        rows[name] = Row(
            statistics.median(seen),
            statistics.median(ratios),
            min(ratios),
            max(ratios),
            memory_mib.get(name) or None,
            memory_mib[name] / memory_mib[base] if memory_mib.get(base) else None,
            (first, third),
        )
    return rows


def _time_ms(step: Callable[[], object], device: torch.device, clock: Clock) -> float:
    start = clock(device)
    step()
    return (clock(device) - start) * 1e3


def peak_mib(step: Callable[[], object], device: torch.device) -> float:
    """The most memory that a step holds at once, beside what was there before, as torch's allocator counts it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or torch 2.13 says on stderr when each profile starts and stops
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    results: Any = profiler.profiler.kineto_results
    events = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    changes = [size for _, size in sorted(events, key=lambda event: event[0])]  # bytes; freed ones are negative
    return max(accumulate(changes, initial=0)) / 2**20


def record(rows: dict[str, Row], device: torch.device, **facts: Any) -> dict[str, Any]:
    """Rows, with what it takes to repeat them, for a JSON file."""
    return {**describe_machine(device), **facts, "rows": {name: row._asdict() for name, row in rows.items()}}


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Date, hardware and version of torch, for the record of a measurement."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return {"date": f"{date.today()}", "hardware": hardware, "torch": torch.__version__, "device": device.type}
