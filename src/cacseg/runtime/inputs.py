"""Finds the images to predict, gives each a unique name, and records which are done."""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from cacseg._files import LOCK, acquire_lock, make_folder, to_csv, write_file
from cacseg.runtime.decode import IMAGE_SUFFIXES
from cacseg.runtime.files import FolderFiles

COLUMNS = ("name", "image", "width", "height", "bytes", "modified_ns")


class Input(NamedTuple):
    """An image to predict."""

    path: Path
    name: str  # unique, '/' between folders, no suffix: what its outputs are called


def find_images(arguments: Sequence[str | Path], out: Path | None = None) -> list[Input]:
    """The images of files (whatever their suffix), folders (all below, by suffix) and globs, each once, in order.

    Names are paths below the one folder that is given, or below the deepest folder that holds all inputs, so that
    equal file names in different folders stay apart; of files that differ in nothing but the suffix the name keeps it.
    Symbolic links in them are not resolved, so that no output is written outside of its folder. Images in `out` are
    skipped: they are earlier predictions.
    """
    found: dict[Path, Path] = {}  # the resolved path, so that none comes twice, and the path as given
    bases: list[Path] = []
    for argument in arguments:
        base, paths = _expand(str(argument))
        bases.append(base)
        for path in paths:
            found.setdefault(path.resolve(), path)
    if out is not None:
        folder = out.resolve()
        outside = {whole: path for whole, path in found.items() if folder not in whole.parents}
        if found and not outside:
            raise ValueError(
                f"what lies in {out} is taken for earlier predictions, and all {len(found)} images do. Choose another "
                "folder for the output."
            )
        found = outside
    if not found:
        raise ValueError(f"there is nothing to predict: no image in {', '.join(map(str, arguments))}.")
    shared = os.path.commonpath([os.path.abspath(one) for one in bases])
    return list(map(Input, found.values(), _name(found.values(), shared)))


def _expand(argument: str) -> tuple[Path, list[Path]]:
    """The folder that names start from, and the files."""
    path = Path(argument).expanduser()
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        return path, _images_below(path)
    if glob.has_magic(argument):
        matches = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise FileNotFoundError(f"{argument} matches no file. Is the pattern right?")
        files = [inner for one in matches for inner in (_images_below(one) if one.is_dir() else [one])]
        return Path(os.path.commonpath([os.path.abspath(one.parent) for one in matches])), files
    raise FileNotFoundError(f"there is no file or folder {argument}.")


def _images_below(folder: Path) -> list[Path]:
    return [folder / path for path in FolderFiles(folder).below("") if path.lower().endswith(IMAGE_SUFFIXES)]


def _name(paths: Iterable[Path], base: str) -> list[str]:
    files = [Path(os.path.relpath(os.path.abspath(path), base)) for path in paths]
    whole = [file.as_posix() for file in files]
    short = [file.with_suffix("").as_posix() for file in files]
    count = _count(short)
    names = [full if count[name.lower()] > 1 else name for full, name in zip(whole, short, strict=True)]
    return whole if max(_count(names).values()) > 1 else names  # x.jpg beside x.png beside x.jpg.png


def _count(names: Iterable[str]) -> Counter[str]:
    return Counter(name.lower() for name in names)  # on some disks a.png and A.png are one file


class Journal:
    """`predict.json`, the options, and `index.csv`, a row for each image whose outputs are all in place.

    A row is added after its image's files are in place, so that a kill costs only the images being processed. A row
    that was cut short is ignored. The folder is locked from the constructor to the end of the `with` block.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.folder, self.index = folder, folder / "index.csv"
        self.rows: dict[str, dict[str, str]] = {}
        make_folder(folder)
        written = folder / "predict.json"
        anew = overwrite or not any(path.name != LOCK for path in folder.iterdir())
        if not anew and not written.is_file():
            raise FileExistsError(
                f"{folder} holds files that are no predictions (there is no predict.json). Choose another folder, or "
                "pass --overwrite."
            )
        if not anew:
            self._compare(written, options)
        with ExitStack() as stack:
            stack.enter_context(acquire_lock(folder, "predicting"))
            if anew:
                self.index.unlink(missing_ok=True)
            else:
                self.rows = self._read()
            write_file(written, json.dumps(dict(options), indent=2) + "\n")
            self._lock = stack.pop_all()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the lock of the folder."""
        self._lock.close()

    def is_done(self, item: Input) -> bool:
        """Whether this image, unchanged, was predicted. Raises where its name belongs to another image."""
        row = self.rows.get(item.name)
        if row is None:
            return False
        if row["image"] != str(item.path.resolve()):
            raise FileExistsError(
                f"{self.folder} holds the prediction of {row['image']} under the name {item.name}, which {item.path} "
                "would get too. Give the same inputs as before, or another folder."
            )
        return all(row[key] == value for key, value in stamp(item.path).items())

    def add(self, item: Input, size: tuple[int, int], read: Mapping[str, str]) -> None:
        """After the files of an image are in place; `read` is its `stamp` from before it was read."""
        row = {"name": item.name, "image": str(item.path.resolve()), "width": str(size[1]), "height": str(size[0])}
        row |= read
        rows = [list(row.values())] if self.index.exists() else [COLUMNS, list(row.values())]
        try:
            with self.index.open("ab") as file:
                file.write(to_csv(rows).encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise OSError(f"{self.index} could not be written ({error}). Is the disk full?") from error
        self.rows[item.name] = row

    def _read(self) -> dict[str, dict[str, str]]:
        if not self.index.is_file():
            return {}
        text = self.index.read_bytes().decode("utf-8", "surrogateescape")  # names are bytes to Linux
        if not text.endswith("\n"):  # cut short in mid-row: mend the file, so that the next row starts a line
            text = text[: text.rfind("\n") + 1]
            write_file(self.index, text)
        rows = csv.DictReader(io.StringIO(text, newline=""))
        return {row["name"]: row for row in rows if None not in row.values() and set(COLUMNS) <= set(row)}

    @staticmethod
    def _compare(written: Path, options: Mapping[str, Any]) -> None:
        try:
            before = json.loads(written.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{written} is damaged ({error}). Choose another folder, or pass --overwrite.") from error
        now = json.loads(json.dumps(dict(options)))
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if keys:
            changes = "; ".join(f"{key} was {before.get(key)!r} and is now {now.get(key)!r}" for key in keys)
            raise ValueError(
                f"{written.parent} holds predictions made with other options ({changes}). Choose another folder, or "
                "pass --overwrite to make them anew."
            )


def fingerprint(path: Path) -> str:
    """The first 16 digits of the file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def stamp(path: Path) -> dict[str, str]:
    """Size and time of a file, by which a later change is noticed."""
    found = path.stat()
    return {"bytes": str(found.st_size), "modified_ns": str(found.st_mtime_ns)}
