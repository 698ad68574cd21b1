"""What every command shares: the command-line library, and where words go."""

from __future__ import annotations

import sys

try:
    import typer as typer
    from rich.console import Console
except ModuleNotFoundError as error:  # pragma: no cover
    sys.exit(f"the command line needs {error.name}, which is not installed: pip install 'cacseg[all]'")

out, messages = Console(), Console(stderr=True)


def say(text: str) -> None:
    """A line of the answer as it is: no markup, no colours guessed, no wrapping."""
    out.print(text, soft_wrap=True, highlight=False, markup=False)


def fail(error: Exception | str) -> None:
    """One line on stderr."""
    messages.print(f"error: {error}", style="red", soft_wrap=True, highlight=False, markup=False)
