"""Trains the runs of a plan and shows how far they are, for `compare`, `ablate` and `demo`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cacseg.cli._console import STOPPED, fail, messages, note, typer

if TYPE_CHECKING:
    from cacseg.recipes.compare import Comparison, Run

QUIET = 10.0  # seconds after which a log file gets a line


class Display:
    """A line for each run that ends; on a terminal a bar of all runs below them, elsewhere a line every ten seconds."""

    def __init__(self, runs: Sequence[Run], before: Mapping[str, int]) -> None:
        self.runs, self.done = len(runs), 0
        self.steps = dict(before)
        self.total = sum(run.steps for run in runs)
        self.first = sum(self.steps.values())  # done before this command
        self.start = self.told = time.monotonic()
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn()
        self.bar = Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal)
        self.task = self.bar.add_task("", total=self.total, words="")

    def progress(self, steps: Mapping[str, int]) -> None:
        self.steps |= {name: max(step, self.steps[name]) for name, step in steps.items()}
        done, seconds = sum(self.steps.values()), time.monotonic() - self.start
        rate = (done - self.first) / max(seconds, 1e-9)
        left = str(timedelta(seconds=round((self.total - done) / rate))) if rate > 0.0 else "?"
        words = f"{done}/{self.total} steps, {rate:.1f} steps/s, {left} left"
        runs = f"{self.done}/{self.runs} runs"
        self.bar.update(self.task, completed=done, total=self.total, description=runs, words=words)
        if not messages.is_terminal and time.monotonic() - self.told > QUIET:
            self.say(f"{runs}, {words}")

    def ended(self, run: Run, words: str, finished: bool) -> None:
        self.done += 1
        if finished:
            self.steps[run.name] = run.steps
        self.total -= run.steps - self.steps[run.name]  # those that a failed one did not do
        self.say(f"{self.done:4d}/{self.runs} {run.name}  {words}")

    def say(self, line: str) -> None:
        self.told = time.monotonic()
        note(line, "")


def train_all(
    folder: Path,
    comparison: Comparison,
    plan: Sequence[Run],
    *,
    jobs: int | None = None,
    devices: str = "auto",
    mps: bool = False,
    cpu_jobs: int = 1,
) -> dict[str, str]:
    """Runs what is left of a plan; gives the reasons of the runs that failed, by their names."""
    from cacseg.recipes.pool import start_server

    try:
        start_server()
        with messages.status("looking at data, models and devices"):
            from cacseg._files import acquire_lock, make_folder
            from cacseg.recipes.compare import RUNS, check_runs, is_finished, join_plan, write_comparison
            from cacseg.recipes.mps import mps_service
            from cacseg.recipes.pool import choose_machine, last_step, train_runs

            joined = join_plan(folder, comparison, plan)
            todo = [run for run in plan if not is_finished(folder / RUNS / run.name)]
            machine = choose_machine(devices, jobs, len(plan), cpu_jobs=cpu_jobs)
            check_runs(todo)
            make_folder(folder)
    except KeyboardInterrupt:
        note("stopped before the first run")
        raise typer.Exit(STOPPED) from None
    if mps and not machine.devices:
        raise ValueError("--mps is for CUDA devices; this comparison would run on the CPU. Leave it out.")
    failed: dict[str, str] = {}
    with acquire_lock(folder, "running a comparison"):
        write_comparison(folder, joined)
        where = f"{len(machine.devices)} GPU{'s' * (len(machine.devices) > 1)}" if machine.devices else "the CPU"
        before = f", {len(plan) - len(todo)} finished before" if len(todo) < len(plan) else ""
        note(f"{folder}: {len(plan)} runs{before}; {min(machine.jobs, len(todo))} at a time on {where}")
        display = Display(todo, {run.name: last_step(folder / RUNS / run.name) for run in todo})

        def ended(run: Run, reason: str) -> None:
            if reason:
                failed[run.name] = reason
            words = f"FAILED: {reason}" if reason else _score(folder / RUNS / run.name)
            display.ended(run, words, finished=not reason)

        service = mps_service() if mps else nullcontext(dict[str, str]())
        try:
            with display.bar, _stoppable(), service as environment:
                train_runs(
                    todo,
                    folder,
                    machine,
                    recipe=comparison.recipe,
                    environment=environment,
                    progress=display.progress,
                    ended=ended,
                )
        except KeyboardInterrupt:
            done = sum(is_finished(folder / RUNS / run.name) for run in plan)
            note(f"stopped: {done} of {len(plan)} runs are finished; the same command goes on from here")
            raise typer.Exit(STOPPED) from None
    for name, reason in failed.items():
        fail(f"{name}: {reason}")
    return failed


def _score(folder: Path) -> str:
    from cacseg.engine.scores import read_scores

    found = read_scores(folder / "scores.json")
    assert found is not None  # the run is finished
    value = found["splits"]["val"]["outputs"][found["output"]]["mean_iou"]
    score = "-" if value is None else f"{100 * value:.2f}"
    return f"mIoU {score} ({found['seconds'] or 0.0:.0f} s)"


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
