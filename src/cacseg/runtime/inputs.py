"""Finds the images to predict and gives each a unique name."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cacseg.runtime.decode import IMAGE_SUFFIXES
from cacseg.runtime.files import FolderFiles, check_file

TIFF_SUFFIXES = (".tif", ".tiff")
TEXTS = (".txt", ".json", ".xml", ".csv", ".md")
WORLD_FILES = (".tfw", ".tifw", ".tiffw", ".jgw", ".jpgw", ".pgw", ".pngw", ".bpw", ".wld")
BESIDE = (*TEXTS, *WORLD_FILES, ".prj", ".ovr")
NAMED = 5  # suffixes


class Input(NamedTuple):
    """An image to predict."""

    path: Path
    name: str  # unique, '/' between folders, no suffix: what its outputs are called


def left_out(arguments: Sequence[str | Path], out: Path | None = None) -> str:
    """One line of the files of the folders given that are no images known here, by suffix; "" where there are none.

    Hidden files, texts and georeferences beside images are not counted, nor is what lies in `out`.
    """
    folder, found = None if out is None else out.resolve(), Counter[str]()
    for path in dict.fromkeys(Path(one).expanduser() for one in arguments):
        for name in FolderFiles(path).below("") if path.is_dir() else ():
            is_known = name.lower().endswith((*IMAGE_SUFFIXES, *BESIDE))
            if not is_known and (folder is None or folder not in Path(os.path.realpath(path / name)).parents):
                found[Path(name).suffix.lower() or "without a suffix"] += 1
    if not found:
        return ""
    suffixes = sorted(found, key=lambda suffix: (-found[suffix], suffix))[:NAMED]
    more = f" and {len(found) - NAMED} more suffixes" if len(found) > NAMED else ""
    files = f"{found.total()} files are" if found.total() > 1 else "1 file is"
    return (
        f"{files} left out for the suffix ({', '.join(suffixes)}{more}). Images must end in one of "
        f"{', '.join(IMAGE_SUFFIXES)}."
    )


def find_images(arguments: Sequence[str | Path], out: Path | None = None, *, colours: bool = False) -> list[Input]:
    """The images of files (whatever their suffix), folders (all below, by suffix) and globs, each once, in order.

    Names are paths below the one folder that is given, or below the deepest folder that holds all inputs, so that
    equal file names in different folders stay apart; of files that differ in nothing but the suffix the name keeps it.
    Symbolic links in them are not resolved, so that no output is written outside of its folder. Images in `out` are
    skipped: they are earlier predictions. `colours`: below folders with pictures, .npy files are none.
    """
    found: dict[Path, Path] = {}  # the resolved path, so that none comes twice, and the path as given
    bases: list[Path] = []
    for argument in arguments:
        base, paths = _expand(str(argument), colours)
        bases.append(base)
        for path in paths:
            found.setdefault(Path(os.path.realpath(path)), path)  # of a link to itself, which `resolve` refuses
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


def _expand(argument: str, colours: bool) -> tuple[Path, list[Path]]:
    """The folder that names start from, and the files."""
    path = Path(argument).expanduser()
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        return path, _images_below(path, colours)
    if glob.has_magic(argument):
        found = _matches_below(path) if "**" in path.parts else glob.glob(str(path))
        matches = [Path(one) for one in sorted(found)]
        if not matches:
            raise FileNotFoundError(f"{argument} matches no file. Is the pattern right?")
        files = [inner for one in matches for inner in (_images_below(one, colours) if one.is_dir() else [one])]
        return Path(os.path.commonpath([os.path.abspath(one.parent) for one in matches])), files
    if os.path.lexists(path):
        check_file(path)  # which is a pipe, a device, or a link to nothing
    raise FileNotFoundError(f"there is no file or folder {argument}.")


def _matches_below(pattern: Path) -> set[str]:
    """The matches of a pattern with '**', as `glob` gives them, which would follow links that lead back for ever."""
    first = next(k for k, part in enumerate(pattern.parts) if glob.has_magic(part))
    base, wanted, found = Path(*pattern.parts[:first]), pattern.parts[first:], set[str]()
    for path in FolderFiles(base).below(""):
        parts = path.split("/")
        found |= {str(base.joinpath(*parts[:k])) for k in range(len(parts) + 1) if _fits(parts[:k], wanted)}
    return found


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _fits(parts, pattern[1:]) or (bool(parts) and _fits(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatch(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _images_below(folder: Path, colours: bool) -> list[Path]:
    found = [path for path in FolderFiles(folder).below("") if path.lower().endswith(IMAGE_SUFFIXES)]
    return [folder / path for path in (without_arrays(found) if colours else found)]


def without_arrays(paths: Sequence[str]) -> Sequence[str]:
    """Without .npy files where there are pictures too: beside images of colours they hold something else."""
    return [path for path in paths if not path.lower().endswith(".npy")] or paths


def _name(paths: Iterable[Path], base: str) -> list[str]:
    files = [Path(os.path.relpath(os.path.abspath(path), base)) for path in paths]
    whole = [file.as_posix() for file in files]
    short = [file.with_suffix("").as_posix() for file in files]
    count = _count(short)
    names = [full if count[name.lower()] > 1 else name for full, name in zip(whole, short, strict=True)]
    return whole if max(_count(names).values()) > 1 else names  # x.jpg beside x.png beside x.jpg.png


def _count(names: Iterable[str]) -> Counter[str]:
    return Counter(name.lower() for name in names)  # on some disks a.png and A.png are one file


def is_tiff(item: Input) -> bool:
    return item.path.suffix.lower() in TIFF_SUFFIXES


def fingerprint(path: Path) -> str:
    """The first 16 digits of the file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
