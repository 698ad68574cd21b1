"""Reads JSON and CSV that a crash, an editor or a stranger may have written; what is wrong is said in one line."""

from __future__ import annotations

import csv
import io
import json
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Kind = TypeVar("Kind")
MESSAGES = 100  # characters of a value in an error
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 2 * MESSAGES


def parse(parser: Callable[[Any], Any], content: str | bytes) -> Any:
    """`parser(content)`; a ValueError also where the content is nested too deeply to be read."""
    try:
        return parser(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json(content: str | bytes) -> Any:
    """Bytes are UTF-8, 16 or 32, with the mark that editors write before them or without."""
    return parse(json.loads, content)


def read_json(path: Path, kind: type[Kind], remedy: str = "Copy it again, or write it anew.") -> Kind:
    """A file of JSON that holds an object (`dict`) or a list; anything else is a ValueError with the path."""
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error}). {remedy}") from error
    if not isinstance(content, kind):
        what = f"must hold {'an object' if kind is dict else 'a list'}; got {shorten(content)}"
        raise ValueError(f"{path} is damaged: it {what}. {remedy}")
    return content


def read_csv(path: Path) -> list[list[str]]:
    """The rows of a comma-separated file whose lines are whole; a last line without its end is left out.

    The mark before UTF-8 is taken off; bytes that are no UTF-8 are kept as surrogates, as names of files have them.
    """
    text = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    whole = text[: text.rfind("\n") + 1].replace("\0", "")  # which some file systems leave of a crash
    rows = csv.reader(io.StringIO(whole, newline=""))
    found: list[list[str]] = []
    while True:
        try:
            found.append(next(rows))
        except StopIteration:
            return found
        except csv.Error:  # a field without an end
            continue


def shorten(value: Any) -> str:
    """A value for an error: its beginning, in one line."""
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= MESSAGES else f"{text[:MESSAGES]}..."
