"""The files of a data set, in a folder or in a .zip: listed once, read by any process."""

from __future__ import annotations

import os
import zipfile
import zlib
from bisect import bisect_left
from pathlib import Path
from typing import Any


class FolderFiles:
    """Files below a folder. Paths are relative, with '/' between, as `below` gives them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def below(self, folder: str) -> list[str]:
        """Every file below the folder, sorted; none where there is no such folder."""
        found: list[str] = []
        for parent, folders, names in os.walk(self.root / folder, followlinks=True):
            folders[:] = [name for name in folders if not _is_clutter(name)]
            below = Path(parent).relative_to(self.root).as_posix()
            prefix = "" if below == "." else below + "/"
            found.extend(prefix + name for name in names if not _is_clutter(name))
        return sorted(found)

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly inside, sorted."""
        path = self.root / folder
        if not path.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not _is_clutter(entry.name))

    def names(self, folder: str) -> list[str]:
        """The names of the files directly inside, sorted."""
        path = self.root / folder
        if not path.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(path) if entry.is_file() and not _is_clutter(entry.name))

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return (self.root / path).exists()

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def where(self, path: str) -> str:
        """The full path, for messages."""
        return str(self.root / path)


class ZipFiles:
    """The same of a .zip. Every process opens a handle of its own, on first use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            with zipfile.ZipFile(root) as archive:
                names = [info.filename for info in archive.infolist() if not info.is_dir()]
        except zipfile.BadZipFile as error:
            raise ValueError(f"{root} is no readable .zip ({error}). Copy or download it again.") from error
        for name in names:
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{root} holds {name!r}, a path that leads out of the .zip. Make the .zip anew.")
        self._names = sorted(name for name in names if not any(map(_is_clutter, name.split("/"))))
        self._known = set(self._names)
        for name in self._names:
            while (name := name.rpartition("/")[0]) and name not in self._known:
                self._known.add(name)
        self._handle: zipfile.ZipFile | None = None
        self._handle_of = -1  # the process that opened it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_handle_of": -1}

    def below(self, folder: str) -> list[str]:
        if not folder:
            return list(self._names)
        first, last = (bisect_left(self._names, folder + end) for end in ("/", "0"))  # "0" follows "/"
        return self._names[first:last]

    def folders(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        below = (name[len(prefix) :] for name in self.below(folder))
        return sorted({rest.split("/")[0] for rest in below if "/" in rest})

    def names(self, folder: str) -> list[str]:
        start = len(folder) + 1 if folder else 0
        return [name[start:] for name in self.below(folder) if "/" not in name[start:]]

    def exists(self, path: str) -> bool:
        return path in self._known

    def read(self, path: str) -> bytes:
        # A forked worker inherits the handle and, with it, the position in the file: it must not be used there.
        if self._handle is None or self._handle_of != os.getpid():
            self._handle, self._handle_of = zipfile.ZipFile(self.root), os.getpid()
        try:
            return self._handle.read(path)
        except KeyError as error:
            raise FileNotFoundError(f"there is no {path} in {self.root}.") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(f"{self.where(path)} is damaged ({error}). Copy the .zip again.") from error
        except (RuntimeError, NotImplementedError) as error:  # encrypted, or packed in a way that Python cannot undo
            raise OSError(f"{self.where(path)} cannot be unpacked ({error}). Make the .zip anew.") from error

    def where(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/")


Files = FolderFiles | ZipFiles


def open_files(root: str | Path) -> Files:
    """The files below a folder or inside a .zip."""
    root = Path(root).expanduser()
    if root.is_dir():
        return FolderFiles(root)
    if root.is_file() and (zipfile.is_zipfile(root) or root.suffix.lower() == ".zip"):
        return ZipFiles(root)
    if root.is_file():
        raise ValueError(f"a data set is a folder or a .zip; {root} is another file.")
    raise FileNotFoundError(f"there is no data set at {root}: no such folder or .zip.")


def _is_clutter(name: str) -> bool:
    """Files of desktops: '.DS_Store', '._image.jpg', '__MACOSX'."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")
