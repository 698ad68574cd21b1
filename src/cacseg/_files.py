"""Writes files, each whole or not at all, and makes and locks the folders for them.

No file is written through a link: `write_file` replaces the link itself, `open_appending` refuses it. A folder may be a
link, to another disk for one.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
        try:
            content = content.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"{path} cannot be written: its text holds half a character ({error}).") from error
    scratch = scratch_beside(path)
    try:
        with scratch.open("xb") as file:
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


def scratch_beside(path: Path) -> Path:
    """A name for an unfinished file that no other process takes; short, since `path` may be as long as allowed."""
    return path.with_name(f".{os.getpid()}.{secrets.randbits(63)}.tmp")


def is_scratch(path: Path) -> bool:
    return re.fullmatch(r"\.\d+\.\d+\.tmp", path.name) is not None


def remove_scratch(folder: Path) -> None:
    """Removes the unfinished files of processes that were killed."""
    for part in folder.rglob(".*.tmp"):
        if is_scratch(part):
            part.unlink(missing_ok=True)


def check_target(path: Path, overwrite: bool) -> None:
    """Makes the folder of a file, and refuses to replace a folder or, without `overwrite`, a file."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if os.path.lexists(path) and not overwrite:  # also a link to nothing
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


def check_there(folder: Path) -> None:
    """Before a run adds to its folder: one that was removed is not made again, with half of what was in it."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} was removed while something ran in it: there is nothing left to go on from. Start again, in a "
            "folder that stays."
        )


def open_folder(path: Path, overwrite: bool) -> None:
    """Makes a folder for results; one that holds files needs `overwrite`."""
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise FileExistsError(f"{path} holds files already. Choose another folder, or pass --overwrite.")
    make_folder(path)


def open_appending(path: Path) -> IO[bytes]:
    """Opens a file to add to it, or to lock it; makes it where there is none, and never follows a link or waits."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    flags |= sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    number, is_file = -1, False
    try:
        number = os.open(path, flags, 0o666)
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder, a pipe that nobody reads
            raise
    if is_file:
        return os.fdopen(number, "ab")
    if number >= 0:
        os.close(number)
    what = "link" if path.is_symlink() else "folder" if path.is_dir() else "device or a pipe"
    raise OSError(f"{path} must be a file to be written to; it is a {what}. Remove it, or choose another folder.")


def acquire_lock(folder: Path, doing: str) -> IO[bytes]:
    """Locks a folder against other processes until the returned file is closed or the process ends.

    Removes the unfinished files of processes that were killed.
    """
    file, is_mine = open_appending(folder / LOCK), True
    with suppress(OSError):  # the file system has no locks
        is_mine = lock_bytes(file)
    if not is_mine:
        file.close()
        raise OSError(f"another process is {doing} in {folder}. Wait for it, or end it, first.")
    remove_scratch(folder)
    return file


@contextmanager
def scratch_folder(target: Path, doing: str) -> Iterator[Path]:
    """A folder beside `target` for what is unfinished, gone at the end.

    That of a killed process is emptied and taken over by the next that writes the same file.
    """
    folder = target.with_name(f".{hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()}.part")
    make_folder(folder)
    with acquire_lock(folder, doing):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def lock_bytes(file: IO[bytes], start: int = 0, end: int | None = None, *, wait: bool = False) -> bool:
    """Locks bytes of a file, which need not exist, until the file is closed; False: another process has some of them.

    An OSError says that the file system has no locks.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOLCK, "no locks on Windows")
    import fcntl

    try:
        length = 0 if end is None else end - start  # 0: all that follow
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), length, start)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def unlock_bytes(file: IO[bytes], start: int, end: int) -> None:
    if sys.platform != "win32" and start < end:
        import fcntl

        with suppress(OSError):  # the file system has no locks
            fcntl.lockf(file, fcntl.LOCK_UN, end - start, start)
