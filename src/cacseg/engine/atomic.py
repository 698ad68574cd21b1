"""Files of a run: written whole or not at all, read without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cacseg._files import move_into_place


def write_run_file(path: Path, content: bytes | memoryview) -> None:
    """Writes `content` to `path`; on an OSError what was there before stays, and the error says how to go on."""
    try:
        move_into_place(path, content)
    except OSError as error:
        kept = f"the one written before is whole, {path.stat().st_size / 1e6:.1f} MB" if path.exists() else "none yet"
        raise OSError(
            f"{path} could not be written, {len(content) / 1e6:.1f} MB ({error.strerror or error}); {kept}. Free or "
            "add space, then continue with --resume."
        ) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `AtomicFiles` wrote: tensors, numbers, strings, lists and dictionaries, nothing that could run code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: there is nothing to resume from.") from None
    except (PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # torch has many words for a damaged file
        reason = str(error).partition("\n")[0].partition(". ")[0]
        if not any(map(str.isalpha, reason)):
            reason = type(error).__name__
        raise ValueError(
            f"{path} cannot be read ({reason}). Was it damaged, or written by something else? A new run can start from "
            f"the model beside it: model.weights={path.with_suffix('.safetensors')}"
        ) from error
