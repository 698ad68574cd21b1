"""What `cacseg study run` shows while jobs run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cacseg.cli._console import messages, note

if TYPE_CHECKING:
    from cacseg.study.plan import Job
    from cacseg.study.pool import Message


class Display:
    """A line for each job that ends; on a terminal a bar below them, in steps of all jobs."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs, self.done, self.steps = len(jobs), 0, 0
        self.total = sum(job.steps for job in jobs)
        self.begun: dict[str, int] = {}
        self.warned: set[str] = set()
        self.start = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps, {task.fields[rate]:.0f} a second"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=messages,
            transient=True,
            disable=not messages.is_terminal,
        )
        self.task = self.bar.add_task(f"0/{self.jobs} jobs", total=self.total, rate=0.0)

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.bar.stop()

    def report(self, job: Job, message: Message) -> None:
        from cacseg.study.pool import Stepped

        if isinstance(message, Stepped):
            self.begun[job.id] = self.begun.get(job.id, 0) + message.steps
            self.steps += message.steps
        else:
            self.steps += job.steps - self.begun.get(job.id, 0)  # those that a failed one did not do
            self.done += 1
            rate = self.steps / (time.monotonic() - self.start)
            line = f"{self.done:4d}/{self.jobs} {job.id}  {_words(message)}, {rate:.0f} steps/s in all"
            messages.print(line, soft_wrap=True, highlight=False, markup=False)
            self._warn(message)
        rate = self.steps / (time.monotonic() - self.start)
        self.bar.update(self.task, completed=self.steps, description=f"{self.done}/{self.jobs} jobs", rate=rate)

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
