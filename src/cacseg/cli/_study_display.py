"""What `cacseg study run` shows while jobs run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cacseg.cli._console import messages, note

if TYPE_CHECKING:
    from cacseg.study.plan import Job
    from cacseg.study.pool import Message


QUIET = 60.0  # seconds after which a log file gets a line, whether a job has ended or not


class Display:
    """A line for each job that ends; on a terminal a bar below them, elsewhere a line a minute, of all jobs."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs, self.done, self.steps = len(jobs), 0, 0
        self.total = sum(job.steps for job in jobs)
        self.begun: dict[str, int] = {}
        self.warned: set[str] = set()
        self.failed = 0
        self.start = self.told = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps, {task.fields[rate]} a second"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=messages,
            transient=True,
            disable=not messages.is_terminal,
        )
        self.task = self.bar.add_task(f"0/{self.jobs} jobs", total=self.total, rate="0")

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.bar.stop()

    def report(self, job: Job, message: Message) -> None:
        from cacseg.study.pool import Failed, Resumed, Stepped

        if isinstance(message, Stepped | Resumed):
            self.begun[job.id] = self.begun.get(job.id, 0) + message.steps
            if isinstance(message, Stepped):
                self.steps += message.steps
            else:
                self.total -= message.steps  # which nobody waits for
                self._say(f"     {job.id}  goes on after step {message.steps}")
        else:
            self.total -= job.steps - self.begun.get(job.id, 0)  # those that a failed one did not do
            self.done += 1
            self.failed += isinstance(message, Failed)
            self._say(f"{self.done:4d}/{self.jobs} {job.id}  {_words(message)}, {self._rate()} steps/s in all")
            self._warn(message)
        if not messages.is_terminal and time.monotonic() - self.told > QUIET:
            self._say(f"     {self.steps}/{self.total} steps, {self._rate()} a second, {self._left()} left")
        words = f"{self.done}/{self.jobs} jobs"
        self.bar.update(self.task, completed=self.steps, total=self.total, description=words, rate=self._rate())

    def _say(self, line: str) -> None:
        self.told = time.monotonic()
        messages.print(line, soft_wrap=True, highlight=False, markup=False)

    def _rate(self) -> str:
        rate = self.steps / max(time.monotonic() - self.start, 1e-9)
        return f"{rate:.0f}" if rate >= 10.0 else f"{rate:.1f}"

    def _left(self) -> str:
        seconds = (time.monotonic() - self.start) * (self.total - self.steps) / max(self.steps, 1)
        return str(timedelta(seconds=round(seconds)))

    def _warn(self, message: Message) -> None:
        """What a job was warned of, once in a study."""
        from cacseg.study.pool import Finished

        if isinstance(message, Finished):
            for text in message.record["warnings"]:
                if text not in self.warned:
                    self.warned.add(text)
                    note(f"warning: {text}")


def _words(message: Any) -> str:
    """How a job ended."""
    from cacseg.study.pool import Failed

    if isinstance(message, Failed):
        return f"FAILED ({message.error})"
    record: Mapping[str, Any] = message.record
    scores = "  ".join(f"{name} {_number(values['miou'])}" for name, values in record["answers"].items())
    diverged = "DIVERGED  " if record["status"] == "diverged" else ""
    return f"{diverged}{scores}  ({record['seconds_training']:.0f} + {record['seconds_evaluation']:.0f} s)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
