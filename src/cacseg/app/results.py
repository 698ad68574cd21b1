"""The last predictions, as files in a temporary folder, under names that nobody can guess."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cacseg._files import write_file
from cacseg.app.predict import Prediction
from cacseg.runtime.colours import Colour, jpeg, save_index_png

KEPT = 32  # predictions; an older one is removed for each new one


class Results:
    """Writes predictions below `folder`, and finds their files."""

    def __init__(self, folder: Path, palette: Sequence[Colour]) -> None:
        self.folder, self.palette = folder, palette
        self._lock, self._closed = threading.Lock(), False
        self._names: OrderedDict[str, str] = OrderedDict()  # what an image is called, by the prediction's key

    def add(self, name: str, prediction: Prediction) -> dict[str, Any]:
        """Writes a prediction; returns what the page needs to know of it.

        Files: image.jpg as shown, layers.bin (bytes [outputs, 3, h, w]), and OUTPUT.png, the masks at the image's size.
        """
        with self._lock:
            if self._closed:
                raise OSError("the server is ending; nothing is written any more.")
            key = self._write(name, prediction)
        masks = {output: one.mask for output, one in prediction.answers.items()}
        height, width = next(iter(masks.values())).shape
        count = len(self.palette)
        return {
            "key": key,
            "name": name,
            "size": [width, height],
            "shown": [prediction.shown.shape[1], prediction.shown.shape[0]],
            "outputs": list(masks),
            "shares": {
                output: (np.bincount(mask.ravel(), minlength=count)[:count] / mask.size).tolist()
                for output, mask in masks.items()
            },
            "changed": float((masks["plain"] != masks["context"]).mean()) if "context" in masks else None,
            "moved": prediction.moved,
        }

    def close(self) -> None:
        """Waits for what is being written, and writes nothing after that."""
        with self._lock:
            self._closed = True

    def find(self, key: str, file: str) -> tuple[Path, str] | None:
        """A file of a prediction and the name to save it under; None once the prediction is gone."""
        name, path = self._names.get(key), self.folder / key / file
        return (path, f"{Path(name).stem}_{file}") if name is not None and path.is_file() else None

    def _write(self, name: str, prediction: Prediction) -> str:
        key = secrets.token_urlsafe(16)
        try:
            write_file(self.folder / key / "image.jpg", jpeg(prediction.shown))
            layers = np.stack([one.layers for one in prediction.answers.values()])
            write_file(self.folder / key / "layers.bin", layers.tobytes())
            for output, one in prediction.answers.items():
                save_index_png(self.folder / key / f"{output}.png", one.mask, self.palette)
        except OSError:
            shutil.rmtree(self.folder / key, ignore_errors=True)
            raise
        self._names[key] = name
        while len(self._names) > KEPT:
            shutil.rmtree(self.folder / self._names.popitem(last=False)[0], ignore_errors=True)
        return key
