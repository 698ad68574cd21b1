"""The state of a job that is not finished, in a file beside the records: interrupted, it goes on from there."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cacseg._files import write_file

State = dict[str, Any]  # tensors, numbers, strings, lists and dictionaries


class Halfway:
    """Where a job is saved, `every` so many seconds. `key` tells its settings and data: of others nothing is read.

    `tell` hears of the steps that need not be done again.
    """

    def __init__(self, path: Path, key: str, every: float, tell: Callable[[int], None] | None = None) -> None:
        self.path, self.key, self.every, self.tell = path, key, every, tell
        self.saved = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self.saved >= self.every

    def save(self, state: State) -> None:
        """The file is whole, or what it was."""
        content = io.BytesIO()
        torch.save({"key": self.key, **state}, content)
        write_file(self.path, content.getvalue())
        self.saved = time.monotonic()

    def read(self) -> State | None:
        """What was saved. None where nothing was, or what is damaged or of other settings: the job begins anew."""
        try:
            state: State = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception:  # torch has many words for a damaged file
            return None
        if not isinstance(state, dict) or state.get("key") != self.key:
            return None
        if self.tell is not None:
            self.tell(state["step"])
        return state
