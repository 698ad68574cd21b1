"""Files written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_file(path: str | Path, content: bytes, *, overwrite: bool = False) -> None:
    """Written beside its place and moved there when it is whole; a crash or a full disk leaves what was there."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or say that it may be overwritten.")
    scratch = path.with_name(f".{os.getpid()}.{threading.get_ident()}.tmp")  # no longer than a name may be
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        raise OSError(f"{path} could not be written ({error}). Is the disk full, or the folder read-only?") from error
    finally:
        scratch.unlink(missing_ok=True)
