"""The files of a data set, in a folder or in a .zip: listed once, read by any process."""

from __future__ import annotations

import os
import stat
import zipfile
from bisect import bisect_left
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

READINGS = 3  # of a file that changes while it is read
MOST_LINKS = 64  # that lead to one folder
LARGE_MEMBER = 2**28  # unpacked bytes of a .zip's file, beyond which it may be at most
MOST_PACKED = 100  # times as large as it is packed
PIECE = 4096  # bytes at a time of what Python unpacks without a bound

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Read(NamedTuple):
    """What a file held, and its size and time then, by which a later change is noticed."""

    content: bytes
    stamp: dict[str, str]


def read_file(path: Path, limit: int | None = None) -> Read:
    """The whole content of a file, no pipe or device, of at most `limit` bytes. One that changes is read again."""
    for _ in range(READINGS):
        check_file(path)
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            _check_bytes(before.st_size, limit, str(path))
            content = file.read()
            after = os.fstat(file.fileno())
        if stamp_of(before) == stamp_of(after) and len(content) == after.st_size:
            return Read(content, stamp_of(after))
    raise OSError(f"{path} must stay as it is while it is read; it changed {READINGS} times. Predict it again later.")


def check_file(path: Path) -> None:
    """An error that says why, where a path is no file that can be read: a pipe would be waited for without end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if path.is_symlink():
            target = os.readlink(path)
            raise FileNotFoundError(f"{path} is a link to {target}, which is not there. Mend or remove it.") from error
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileNotFoundError(f"there is no file {path}. Was it removed meanwhile?") from error
        raise type(error)(f"{path} cannot be read ({error.strerror}).") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else KINDS.get(stat.S_IFMT(mode), "none")
        raise OSError(f"{path} must be a file; it is {kind}. Remove it, or give a file.")


def stamp_of(found: os.stat_result) -> dict[str, str]:
    return {"bytes": str(found.st_size), "modified_ns": str(found.st_mtime_ns)}


def _check_bytes(size: int, limit: int | None, where: str) -> None:
    if limit is not None and size > limit:
        raise OSError(
            f"{where} must have at most {limit / 1e6:,.0f} MB to be read whole, by the limit of pixels; it has "
            f"{size / 1e6:,.0f} MB. Raise the limit with --max-pixels, or give --tile 1024: it reads TIFFs by windows."
        )


class FolderFiles:
    """Files below a folder. Paths are relative, with '/' between, as `below` gives them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def below(self, folder: str) -> list[str]:
        """Every file below the folder, sorted; none where there is no such folder.

        Links to folders are followed, but for those that lead back to a folder they lie in.
        """
        found: list[str] = []
        visits = Counter[tuple[int, int]]()
        waiting = [(self.root / folder, f"{folder}/" if folder else "", frozenset[tuple[int, int]]())]
        while waiting:
            path, prefix, above = waiting.pop()
            try:
                status, entries = path.stat(), list(os.scandir(path))
            except OSError:  # not there, or not to be read
                continue
            here = status.st_dev, status.st_ino
            if here in above:
                continue
            visits[here] += 1
            if visits[here] > MOST_LINKS:
                raise ValueError(
                    f"at most {MOST_LINKS} links may lead to one folder; {path} is reached by more. Remove links that "
                    "lead back."
                )
            entries = [entry for entry in entries if not _is_clutter(entry.name)]
            found += [prefix + entry.name for entry in entries if not _is_folder(entry)]
            inner = [entry.name for entry in entries if _is_folder(entry)]
            waiting += [(path / name, f"{prefix}{name}/", above | {here}) for name in inner]
        return sorted(found)

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly inside, sorted."""
        path = self.root / folder
        if not path.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(path) if _is_folder(entry) and not _is_clutter(entry.name))

    def names(self, folder: str) -> list[str]:
        """The names of the files directly inside, sorted."""
        path = self.root / folder
        if not path.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(path) if _is_file(entry) and not _is_clutter(entry.name))

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return (self.root / path).exists()

    def read(self, path: str, limit: int | None = None) -> bytes:
        """The content of a file of at most `limit` bytes."""
        return read_file(self.root / path, limit).content

    def stamp(self, path: str) -> dict[str, str]:
        """Size and time of a file, by which a later change is noticed."""
        return stamp_of((self.root / path).stat())

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
        except OSError:
            raise
        except Exception as error:  # of many types, as the damage will have it
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

    def read(self, path: str, limit: int | None = None) -> bytes:
        try:
            # A forked worker inherits the handle and, with it, the position in the file: it must not be used there.
            if self._handle is None or self._handle_of != os.getpid():
                self._handle, self._handle_of = zipfile.ZipFile(self.root), os.getpid()
            member = self._handle.getinfo(path)
            size, packed = member.file_size, member.compress_size
            _check_bytes(size, limit, self.where(path))
            if size > LARGE_MEMBER and size > MOST_PACKED * packed:
                raise OSError(
                    f"{self.where(path)} has {size / 1e6:,.0f} MB, packed into {packed / 1e6:,.1f} MB; a file of more "
                    f"than {LARGE_MEMBER / 1e6:,.0f} MB may be at most {MOST_PACKED} times its packed size. If that is "
                    "right, unpack the .zip and give the folder."
                )
            with self._handle.open(member) as file:
                if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    return file.read(max(1, size))  # and no more than that is unpacked
                return b"".join(iter(partial(file.read, PIECE), b""))
        except MemoryError:
            raise
        except OSError as error:
            if error.errno is None:  # a reason of ours
                raise
            raise OSError(f"{self.where(path)} cannot be read ({error}). Copy the .zip again.") from error
        except KeyError as error:
            raise FileNotFoundError(f"there is no {path} in {self.root}.") from error
        except (RuntimeError, NotImplementedError) as error:  # encrypted, or packed in a way that Python cannot undo
            raise OSError(f"{self.where(path)} cannot be unpacked ({error}). Make the .zip anew.") from error
        except Exception as error:  # of many types, as the damage will have it
            raise OSError(f"{self.where(path)} is damaged ({error!s:.200}). Copy the .zip again.") from error

    def stamp(self, path: str) -> dict[str, str]:
        """Of the whole .zip."""
        return stamp_of(self.root.stat())

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


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_clutter(name: str) -> bool:
    """Files of desktops: '.DS_Store', '._image.jpg', '__MACOSX'."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")
