"""What every command shares: the command-line library, and printing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import typer as typer
    from rich.console import Console
    from rich.measure import Measurement
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ModuleNotFoundError as error:  # pragma: no cover
    from cacseg._install import with_extra

    sys.exit(f"the command line needs {error.name}, which is not installed: {with_extra('all')}")

out, messages = Console(), Console(stderr=True)
MAX_WIDTH = 1000  # letters, more than a table has
STOPPED = 130  # the exit code that a shell gives for Ctrl-C


def say(text: str) -> None:
    """Prints a line of the result as it is: no markup, no highlighting, no wrapping."""
    _print(out, text)


def show(table: Table, *, full_width: bool = False) -> None:
    """Prints a table; as wide as it needs to be if it goes to a file, or with `full_width`."""
    if out.is_terminal and not full_width:
        out.print(table)
        return
    needed = Measurement.get(out, out.options.update(max_width=MAX_WIDTH), table).maximum
    Console(width=max(needed, out.width)).print(table)


def progress_bar(*more: str, visible: bool = True) -> Progress:
    """How many of how many are done, on stderr, gone when it ends; `more` names further fields of its tasks."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    fields = (TextColumn(f"{{task.fields[{name}]}}") for name in more)
    return Progress(*columns, *fields, console=messages, transient=True, disable=not visible)


def fail(error: Exception | str) -> None:
    """One line on stderr."""
    _print(messages, f"error: {' '.join(str(error).splitlines())}", "red")


@contextmanager
def naming_images(*, visible: bool = True, code: int = 1) -> Iterator[None]:
    """Prints a line for each image that could not be used, and ends with an exit code."""
    from cacseg.data.sample import FaultyImagesError

    try:
        yield
    except FaultyImagesError as error:
        for line in (*error.reasons, error.summary) if visible else ():
            fail(line)
        raise typer.Exit(code) from None


def note(text: str, style: str = "yellow") -> None:
    """A line on stderr that is no error."""
    _print(messages, text, style)


def _print(console: Console, text: str, style: str | None = None) -> None:
    text = text.encode("utf-8", "backslashreplace").decode()  # \udcff for what is not UTF-8 in the name of a file
    console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)
