"""Finds the weights of a model: a .safetensors, or the folder of a run."""

from __future__ import annotations

import hashlib
from pathlib import Path

BEST, LAST = "best.safetensors", "last.safetensors"


def find_weights(path: str | Path) -> Path:
    """The file itself; in a run's folder its best model, or the last where there is no best yet."""
    path = Path(path).expanduser()
    if path.is_dir():
        for name in (BEST, LAST):
            if (path / name).is_file():
                return path / name
        raise FileNotFoundError(f"{path} is a folder without {BEST} or {LAST}. Give the folder of a run, or a file.")
    if not path.is_file():
        raise FileNotFoundError(f"there is no model {path}. Give a .safetensors, or the folder of a run.")
    if path.suffix == ".ckpt":
        raise ValueError(f"{path} is for resuming a run. Give the run's folder, or a .safetensors in it.")
    return path


def fingerprint(path: Path) -> str:
    """The first 16 digits of the file's SHA-256."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]
