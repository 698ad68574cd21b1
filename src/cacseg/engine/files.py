"""Folders for results: made and locked, never written over unless asked."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import IO

LOCK = ".lock"  # in a folder that a process works in


def open_folder(path: Path, overwrite: bool) -> None:
    """A folder for results that is new, or empty, or may be written over; asked before the work begins."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"results go into a folder; {path} is a file. Choose another name.")
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise FileExistsError(f"{path} holds files already. Choose another folder, or pass --overwrite.")
    make_folder(path)


def make_folder(path: Path) -> None:
    """Makes it, with what is above it, and sees that something can be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the folder {path} cannot be made ({error}). Choose another.") from error
    if not os.access(path, os.W_OK):
        raise PermissionError(f"the folder {path} cannot be written to. Choose another.")


def acquire_lock(folder: Path, doing: str) -> IO[bytes]:
    """An open file in the folder that no other process can open so, until it is closed or the process ends."""
    file = (folder / LOCK).open("wb")
    if sys.platform == "win32":
        return file
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):  # anything else: a file system that knows no locks
            file.close()
            raise OSError(
                f"another process is {doing} in {folder}. Wait for it, or end it, before you go on there."
            ) from None
    return file
