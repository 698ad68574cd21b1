"""Files written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def move_into_place(path: Path, content: bytes | memoryview, *, flush: bool = True) -> None:
    """Writes a file beside `path`, with `flush` also to the disk, and moves it to `path` when it is whole.

    A crash, a full disk or a folder that cannot be written to leaves what was at `path` as it was.
    """
    scratch = path.with_name(f".{os.getpid()}.{threading.get_ident()}.tmp")  # no longer than a name may be
    try:
        with scratch.open("wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def write_file(path: str | Path, content: bytes | str, *, overwrite: bool = True) -> None:
    """`write_atomically` for results: makes the folder, takes text, and refuses an existing file without `overwrite`.

    Text is written as UTF-8; what a file's name held that is none goes back to the bytes that it was.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or say that it may be overwritten.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{path} could not be written ({error}). Is the disk full, or the folder read-only?") from error
    content = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    write_atomically(path, content, flush=False)


def write_atomically(path: Path, content: bytes | memoryview, *, flush: bool = True) -> None:
    """`move_into_place`, with an error that says what may be wrong."""
    try:
        move_into_place(path, content, flush=flush)
    except OSError as error:
        raise OSError(f"{path} could not be written ({error}). Is the disk full, or the folder read-only?") from error
