"""Reads text and JSON files of a data set; an error names the file."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cacseg.data.sample import FaultyDataError
from cacseg.runtime.files import Files


def read_text(files: Files, path: str) -> str:
    """The content of a text file in UTF-8, without the mark that Windows writes before it."""
    try:
        return files.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FaultyDataError(
            f"{files.where(path)} must be a text file in UTF-8 ({error}). Save it so, or export it again."
        ) from error


def read_json(files: Files, path: str) -> Any:
    try:
        return json.loads(files.read(path))
    except (ValueError, RecursionError) as error:
        raise FaultyDataError(
            f"{files.where(path)} is no valid JSON ({error}). Export it again, or mend it there."
        ) from error


@contextmanager
def no_collection() -> Iterator[None]:
    """Without garbage collection, which looks through all objects again and again while millions are made."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def file_version(files: Files, path: str) -> tuple[str, str, str]:
    """Changes with the file, so that what was read from it can be kept."""
    found = files.stamp(path)
    return files.where(path), found["modified_ns"], found["bytes"]
