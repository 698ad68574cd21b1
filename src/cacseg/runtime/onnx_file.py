"""A model that `cacseg export` wrote, run by ONNX Runtime."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cacseg.runtime.backend import Answer, Context, Scale, keep_ratio, name_classes, resize
from cacseg.runtime.result import Bytes, Floats

METADATA = "cacseg"  # the key of the description in the file
FORMAT = 1  # of that description
NEEDED = {"num_classes", "class_names", "palette", "mean", "std", "normalises", "output", "classifier"}


class OnnxBackend:
    """The file of an exported model, on a CPU or on a GPU where onnxruntime has one.

    Args:
        path: the file.
        device: "auto", "cpu" or "cuda".
        threads: of ONNX Runtime; None leaves the choice to it.
    """

    threads = 0

    def __init__(self, path: str | Path, device: str = "auto", threads: int | None = None) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            message = f"{path} needs onnxruntime, which is not installed: pip install onnxruntime"
            raise ModuleNotFoundError(message, name=error.name) from error
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}. Write one with `cacseg export MODEL -o {path}`.")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=_providers(onnxruntime, device))
        except Exception as error:  # of many types, none of them documented
            raise ValueError(f"{path} is damaged or no ONNX file ({str(error).splitlines()[0]}).") from error
        self.facts = _read_facts(self.session.get_modelmeta().custom_metadata_map, path)
        scale = self.facts["scale"]
        self.scale: Scale | None = None if scale is None else (int(scale[0]), int(scale[1]))
        self.classes = name_classes(self.facts["num_classes"], self.facts["class_names"], self.facts["palette"])
        mean, std = (np.array(self.facts[key], np.float32)[:, None, None] for key in ("mean", "std"))
        self._factor, self._shift = 1.0 / (255.0 * std), mean / std

    def settings(self) -> dict[str, Any]:
        return {"scale": self.scale, "onnx": True}

    def carrying(self, carry: float, context: Context | None = None) -> OnnxBackend:
        raise ValueError("an .onnx file predicts each frame alone. Leave out --carry, or use the model itself.")

    def context(self) -> None:
        return None

    def view(self, image: Bytes) -> Bytes:
        planes = np.ascontiguousarray(image.transpose(2, 0, 1))
        if self.scale is None:
            return planes
        size = keep_ratio(image.shape[0], image.shape[1], self.scale)
        return resize(planes, size).round().astype(np.uint8)

    def predict(
        self, views: Sequence[Any], size: tuple[int, int], *, maps: bool = False, plain: bool = False, run: Any = None
    ) -> list[Answer]:
        """As `Backend.predict`; `run` are onnxruntime's RunOptions, by which another thread can end it."""
        if plain and self.facts["classifier"] != "plain":
            raise ValueError("an exported file holds one classifier. Export the other with `cacseg export --plain`.")
        if maps and self.facts["output"] == "classes":
            raise ValueError(
                "the file gives classes alone, so there is no confidence and no entropy. Export it with --output "
                "logits or probabilities."
            )
        images = np.stack(views)
        if not self.facts["normalises"]:
            images = images * self._factor - self._shift
        try:
            (scores,) = self.session.run(None, {self.session.get_inputs()[0].name: images}, run)
        except Exception as error:
            if "alloc" in str(error).lower() or isinstance(error, MemoryError):
                message = f"images of {size[1]}x{size[0]} did not fit into memory. Take a smaller --batch."
                raise MemoryError(message) from error
            raise
        return [self._answer(one, images.shape[2:], size, maps) for one in scores]

    def _answer(self, scores: npt.NDArray[Any], shown: Sequence[int], size: tuple[int, int], maps: bool) -> Answer:
        """Of one image: scores [n, h, w], or classes [h, w]."""
        if self.facts["output"] == "classes":
            return Answer(_nearest(scores, size).astype(np.uint8))
        scores = resize(resize(scores, (shown[0], shown[1])), size)
        mask = scores.argmax(0).astype(np.uint8)
        if not maps:
            return Answer(mask)
        probabilities = softmax(scores) if self.facts["output"] == "logits" else scores
        return Answer(mask, *confidence_and_entropy(probabilities))


def softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(0))
    return np.asarray(powers / powers.sum(0), np.float32)


def confidence_and_entropy(probabilities: Floats) -> tuple[Floats, Floats]:
    """Of [n, H, W], the largest probability, and the entropy over the logarithm of n."""
    logarithms = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    entropy = -(probabilities * logarithms).sum(0) / math.log(max(2, len(probabilities)))
    return probabilities.max(0), np.asarray(entropy, np.float32)


def _nearest(classes: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    rows, columns = (
        np.minimum((np.arange(wanted) + 0.5) * (length / wanted), length - 1).astype(np.int64)
        for wanted, length in zip(size, classes.shape, strict=True)
    )
    return classes[rows[:, None], columns]


def _providers(onnxruntime: Any, device: str) -> list[str]:
    there = onnxruntime.get_available_providers()
    if device == "auto":
        device = "cuda" if "CUDAExecutionProvider" in there else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"an ONNX file runs on 'cpu' or 'cuda'; got {device!r}.")
    if device == "cuda" and "CUDAExecutionProvider" not in there:
        raise ValueError("this onnxruntime has no CUDA. Install onnxruntime-gpu, or use --device cpu.")
    return ["CUDAExecutionProvider", "CPUExecutionProvider"] if device == "cuda" else ["CPUExecutionProvider"]


def _read_facts(metadata: dict[str, str], path: str | Path) -> dict[str, Any]:
    try:
        facts = json.loads(metadata[METADATA])
        if facts["format"] != FORMAT:
            raise ValueError(f"its description has the format {facts['format']!r}, this version reads {FORMAT}")
        if missing := NEEDED - set(facts):
            raise ValueError(f"its description lacks {', '.join(sorted(missing))}")
    except KeyError:
        raise ValueError(f"{path} does not say what it is: it was not written by `cacseg export`.") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Export the model again.") from error
    return {"scale": None, "size": "input", **facts}
