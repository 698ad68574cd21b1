"""Writes files, each whole or not at all, and makes and locks the folders for them."""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

LOCK = ".lock"  # in a folder that a process works in


def write_file(
    path: str | Path, content: bytes | memoryview | str, *, overwrite: bool = True, flush: bool = False
) -> None:
    """Writes a file beside `path`, with `flush` also to the disk, and moves it to `path` when it is whole.

    Makes the folder. A crash or a full disk leaves what was at `path` as it was. Text is written as UTF-8; bytes of
    file names that are not UTF-8 (surrogates in Python) are written as they were.
    """
    path = Path(path)
    check_target(path, overwrite)
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    scratch = path.with_name(f".{os.getpid()}.{threading.get_ident()}.tmp")  # short: a name may be as long as allowed
    try:
        with scratch.open("wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        kept = f"the file before it is whole ({path.stat().st_size:,} bytes)" if path.exists() else "there was none yet"
        raise OSError(
            f"{path} could not be written, {len(content):,} bytes ({error.strerror or error}); {kept}. Free some "
            "space, or make the folder writable, and run it again; a training run continues with --resume."
        ) from error
    finally:
        scratch.unlink(missing_ok=True)


def check_target(path: Path, overwrite: bool) -> None:
    """Makes the folder of a file, and refuses to replace a folder or, without `overwrite`, a file."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or say that it may be overwritten.")
    make_folder(path.parent)


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated, quoted where needed, one line each."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, and checks that it can be written to."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"results go into a folder; {path} is a file. Choose another name.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the folder {path} cannot be made ({error}). Choose another.") from error
    if not os.access(path, os.W_OK):
        raise PermissionError(f"the folder {path} cannot be written to. Choose another.")


def open_folder(path: Path, overwrite: bool) -> None:
    """Makes a folder for results; one that holds files needs `overwrite`."""
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise FileExistsError(f"{path} holds files already. Choose another folder, or pass --overwrite.")
    make_folder(path)


def acquire_lock(folder: Path, doing: str) -> IO[bytes]:
    """Locks a folder against other processes until the returned file is closed or the process ends.

    Removes the unfinished files of processes that were killed.
    """
    file = (folder / LOCK).open("wb")
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):  # otherwise the file system has no locks
                file.close()
                raise OSError(f"another process is {doing} in {folder}. Wait for it, or end it, first.") from None
    for part in folder.rglob(".*.tmp"):
        if re.fullmatch(r"\.\d+\.\d+\.tmp", part.name):
            part.unlink(missing_ok=True)
    return file
