"""Files that are not written over unless asked."""

from __future__ import annotations

from pathlib import Path

from cacseg._files import write_whole


def write_file(path: str | Path, content: bytes, *, overwrite: bool = False) -> None:
    """Written beside its place and moved there when it is whole; a crash or a full disk leaves what was there."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder. Give the name of a file in it.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or say that it may be overwritten.")
    write_whole(path, content)
