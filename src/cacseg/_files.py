"""Files written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def move_into_place(path: Path, content: bytes | memoryview, *, flush: bool = True) -> None:
    """Writes beside the place, to the disk itself with `flush`, and moves it there when it is whole.

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


def write_whole(path: Path, content: bytes | memoryview, *, flush: bool = True) -> None:
    """`move_into_place`, and words where it fails."""
    try:
        move_into_place(path, content, flush=flush)
    except OSError as error:
        raise OSError(f"{path} could not be written ({error}). Is the disk full, or the folder read-only?") from error
