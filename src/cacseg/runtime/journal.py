"""Records which images are predicted, for one process or for several that share a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cacseg._files import (
    LOCK,
    is_scratch,
    lock_bytes,
    make_folder,
    open_appending,
    remove_scratch,
    to_csv,
    unlock_bytes,
    write_file,
)
from cacseg._text import read_csv, read_json
from cacseg.runtime.files import stamp_of
from cacseg.runtime.inputs import Input
from cacseg.runtime.shards import HASHES, Shard

COLUMNS = ("name", "image", "width", "height", "bytes", "modified_ns")
SHARDS = "index.*-of-*.csv"


class Journal:
    """`predict.json`, the options, and `index.csv`, a row for each image whose outputs are all in place.

    A row is added after its image's files are in place, so that a kill costs only the images being processed. A row
    that was cut short is ignored.

    A worker of several adds to `index.3-of-8.csv`, which no other worker touches, and locks the bytes of `.lock` that
    stand for its hashes, until the end of the `with` block: workers that could write the same image exclude each other,
    whatever their number of shards. A worker that begins or ends while no other runs merges all indexes into
    `index.csv`, each image once, and removes the unfinished files of killed ones. So a worker finds all that was done
    for its images in `index.csv` and its own index. `finish` is then called with the names of all images, of every
    worker, to write what is about all of them.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, Any],
        *,
        overwrite: bool = False,
        shard: Shard = Shard(),  # noqa: B008 (frozen)
        finish: Callable[[Sequence[str]], None] = lambda _: None,
        record: str = "predict.json",
    ) -> None:
        self.folder, self.shard, self._finish = folder, shard, finish
        self.is_last = False  # whether no other worker ran when this one ended
        if overwrite and self.shard.count > 1:
            raise ValueError("--overwrite would remove what other shards did. Choose another folder, or remove it.")
        self._merged = self.index = folder / "index.csv"
        if self.shard.count > 1:
            self.index = folder / f"index.{self.shard.index + 1}-of-{self.shard.count}.csv"
        self._options = folder / record
        make_folder(folder)
        others = (path for path in folder.iterdir() if path.name != LOCK and not is_scratch(path))
        if not overwrite and any(others) and not self._options.is_file():
            raise FileExistsError(
                f"{folder} holds files that are no predictions (there is no {record}). Choose another folder, or "
                "pass --overwrite."
            )
        self._lock = open_appending(folder / LOCK)
        try:
            with self._gate():
                self._begin(options, overwrite)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """The last worker merges the indexes, unless an error ended it; then the next one that begins does."""
        with self._lock:
            if kind is None:
                with self._gate():
                    self.is_last = self._locks(0, HASHES)
                    if self.is_last:
                        self._merge()
                        self._finish(sorted(_read(self._merged)))

    def is_done(self, item: Input) -> bool:
        """Whether this image, unchanged, was predicted. Raises where its name belongs to another image."""
        row = self.rows.get(item.name)
        if row is None:
            return False
        if row[1] != os.path.realpath(item.path):
            index = self.index if item.name in _read(self.index) else self._merged
            raise FileExistsError(
                f"{index} holds the prediction of {row[1]} under the name {item.name}, which {item.path} "
                "would get too. Give the same inputs as before, or another folder."
            )
        try:
            return row[4:] == tuple(stamp(item.path).values())
        except OSError:  # who reads it says what is wrong with it
            return False

    def add(self, item: Input, size: tuple[int, int], read: Mapping[str, str]) -> None:
        """After the files of an image are in place; `read` is its `stamp` from before it was read."""
        row = (item.name, os.path.realpath(item.path), str(size[1]), str(size[0]), *read.values())
        try:
            with open_appending(self.index) as file:
                file.write(to_csv([row]).encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise OSError(f"{self.index} could not be written ({error}). Is the disk full?") from error
        self.rows[item.name] = row

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """One process at a time begins or ends; others wait."""
        self._locks(HASHES, HASHES + 1, wait=True)
        yield
        unlock_bytes(self._lock, HASHES, HASHES + 1)

    def _begin(self, options: Mapping[str, Any], overwrite: bool) -> None:
        if not self._locks(self.shard.start, self.shard.end):
            also = "" if self.shard.count == 1 else f", on images of {self.shard}"
            raise OSError(f"another process is predicting in {self.folder}{also}. Wait for it, or end it, first.")
        alone = self._locks(0, HASHES)
        if overwrite:
            for path in (self._merged, *self.folder.glob(SHARDS)):
                path.unlink(missing_ok=True)
        elif self._options.is_file():
            _compare(self._options, options)
        if overwrite or not self._options.is_file():
            write_file(self._options, json.dumps(dict(options), indent=2) + "\n")
        if alone:
            remove_scratch(self.folder)
            self._merge()
            unlock_bytes(self._lock, 0, self.shard.start)
            unlock_bytes(self._lock, self.shard.end, HASHES)
        else:
            counts = {path.stem.rpartition("-")[2] for path in self.folder.glob(SHARDS)}
            if counts - {str(self.shard.count)}:
                raise OSError(
                    f"other processes are predicting in {self.folder} with {', '.join(sorted(counts))} shards, and "
                    f"this is {self.shard}. Wait for them, or use their number."
                )
        rows = self._mend() if self.shard.count == 1 else _read(self._merged) | self._mend()
        self.rows = {name: row for name, row in rows.items() if self.shard.owns(name)}

    def _locks(self, start: int, end: int, *, wait: bool = False) -> bool:
        try:
            return lock_bytes(self._lock, start, end, wait=wait)
        except OSError as error:
            if self.shard.count == 1:
                return True
            raise OSError(
                f"shards need a file system with locks; that of {self.folder} has none ({error}). Give each shard a "
                "folder of its own."
            ) from error

    def _mend(self) -> dict[str, tuple[str, ...]]:
        """The rows of this process's index, written anew unless each image has one whole row."""
        rows = _read(self.index)
        text = to_csv([COLUMNS, *rows.values()]).encode("utf-8", "surrogateescape")
        if not self.index.is_file() or self.index.read_bytes() != text:
            write_file(self.index, text)
        return rows

    def _merge(self) -> None:
        """All rows into index.csv; a kill before the other files are removed changes nothing."""
        shards = list(self.folder.glob(SHARDS))
        if shards:
            rows = _read(self._merged)
            for path in shards:  # no image is in two of them, and all are newer than index.csv
                rows |= _read(path)
            write_file(self._merged, to_csv([COLUMNS, *rows.values()]))
            for path in shards:
                path.unlink()
            remove_scratch(self.folder)


def stamp(path: Path) -> dict[str, str]:
    """Size and time of a file, by which a later change is noticed."""
    return stamp_of(path.stat())


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    """The last row of each image; not the last line of the file while it is cut short."""
    if not path.is_file():
        return {}
    header, *rows = [tuple(row) for row in read_csv(path)] or [()]
    return {row[0]: row for row in rows if len(row) == len(COLUMNS)} if header == COLUMNS else {}


def _compare(written: Path, options: Mapping[str, Any]) -> None:
    before = read_json(written, dict, remedy="Choose another folder, or pass --overwrite.")
    now = json.loads(json.dumps(dict(options)))
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if keys:
        changes = "; ".join(f"{key} was {before.get(key)!r} and is now {now.get(key)!r}" for key in keys)
        raise ValueError(
            f"{written.parent} holds, by its {written.name}, predictions made with other options ({changes}). "
            "Give the earlier options again, choose another folder, or pass --overwrite to make them anew."
        )
