"""Times several rows in one process, in interleaved rounds: a busy moment slows all rows alike."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from datetime import date
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from cacseg.engine.device import read_clock

Clock = Callable[[torch.device], float]


class Row(NamedTuple):
    """What one row costs, alone and beside the first one."""

    time_ms: float  # median over the rounds
    time_ratio: float  # median of the ratios within each round
    time_ratio_least: float
    time_ratio_most: float
    memory_mib: float | None  # at most, beside what was there before; None: a CUDA graph holds what it needs
    memory_ratio: float | None


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
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(warm_up + rounds):
        for name, step in steps.items():
            step()
            time_ms = _time_ms(step, device, clock)
            if number >= warm_up:
                times[name].append(time_ms)
        if progress is not None:
            progress(number + 1)
    memory = {name: peak_mib(step, device) for name, step in steps.items()}
    base = next(iter(steps))
    rows = {}
    for name, seen in times.items():
        ratios = [ours / theirs for ours, theirs in zip(seen, times[base], strict=True)]
        rows[name] = Row(
            statistics.median(seen),
            statistics.median(ratios),
            min(ratios),
            max(ratios),
            memory[name] or None,
            memory[name] / memory[base] if memory[base] > 0 else None,
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
    hardware = platform.processor() or platform.machine()
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    return {"date": f"{date.today()}", "hardware": hardware, "torch": torch.__version__, "device": device.type}
