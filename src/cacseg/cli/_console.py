"""What every command shares: the command-line library, and where words go."""

from __future__ import annotations

import sys

try:
    import typer as typer
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
except ModuleNotFoundError as error:  # pragma: no cover
    sys.exit(f"the command line needs {error.name}, which is not installed: pip install 'cacseg[all]'")

out, messages = Console(), Console(stderr=True)
WIDEST = 1000  # letters, more than a table has


def say(text: str) -> None:
    """A line of the answer as it is: no markup, no colours guessed, no wrapping."""
    out.print(_printable(text), soft_wrap=True, highlight=False, markup=False)


def show(table: Table, *, whole: bool = False) -> None:
    """A table; as wide as it needs to be where it goes into a file, or where none of it may be cut (`whole`)."""
    if out.is_terminal and not whole:
        out.print(table)
        return
    needed = Measurement.get(out, out.options.update(max_width=WIDEST), table).maximum
    Console(width=max(needed, out.width)).print(table)


def fail(error: Exception | str) -> None:
    """One line on stderr."""
    messages.print(_printable(f"error: {error}"), style="red", soft_wrap=True, highlight=False, markup=False)


def note(text: str) -> None:
    """A line on stderr that is no error."""
    messages.print(_printable(text), style="yellow", soft_wrap=True, highlight=False, markup=False)


def _printable(text: str) -> str:
    """File names that are no UTF-8 hold characters that no terminal takes: they are shown as \\udcff."""
    return text.encode("utf-8", "backslashreplace").decode()
