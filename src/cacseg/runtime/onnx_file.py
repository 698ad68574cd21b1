"""A model that `cacseg export` wrote, run by ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cacseg._text import parse_json
from cacseg.runtime.backend import BAND, LEAST, Answer, Context, Scale, keep_ratio, name_classes, resize, view_at
from cacseg.runtime.bands import Pixels
from cacseg.runtime.memory import check_scores
from cacseg.runtime.result import Floats
from cacseg.runtime.seal import check_seal
from cacseg.runtime.windows import slide

CLASSES_ALONE = "Export the model with --output classes."
SMALLER = "Take a smaller --batch or --scale, or use --tile with the model itself."
METADATA = "cacseg"  # the key of the description in the file
FORMAT = 1  # of that description
NEEDED = {"num_classes", "class_names", "palette", "mean", "std", "bands", "normalises", "output", "classifier"}
NEEDED |= {"scale", "window", "stride"}
OUTPUTS = ("logits", "probabilities", "classes")
MOST = 1e30  # of a number in float32, with room
CUDA = "CUDAExecutionProvider"
GPU_PACKAGE = "onnxruntime-gpu and the CUDA and cuDNN it was built for (pip install 'onnxruntime-gpu[cuda,cudnn]')"
OR_CPU = "or predict on the CPU: --device cpu (device='cpu')"
TINY = np.finfo(np.float32).tiny
ROUNDED = 2.0**-25  # what may be left of 1 beside a probability that is 1 in float32


def is_onnx(path: str | Path) -> bool:
    """By its suffix."""
    return Path(path).suffix.lower() == ".onnx"


class OnnxBackend:
    """The file of an exported model, on a CPU or on a GPU where onnxruntime has one.

    Args:
        path: the file.
        device: "auto", "cpu" or "cuda".
        threads: of ONNX Runtime; None leaves the choice to it.
        class_names, palette: None are the file's own.
    """

    batch = 1
    threads = 0

    def __init__(
        self,
        path: str | Path,
        device: str = "auto",
        threads: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
        palette: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.session, self.facts = open_file(path, device, threads)
        self.scale: Scale | None = _pair(self.facts["scale"])
        self.window, self.stride = _pair(self.facts["window"]), _pair(self.facts["stride"])
        self.fixed_size = _pair(self.facts["fixed_size"])
        count = max(2, self.facts["num_classes"])  # of one channel, background and foreground
        names = self.facts["class_names"] if class_names is None else class_names
        self.classes = name_classes(count, names, self.facts["palette"] if palette is None else palette)
        self.has_maps = self.facts["output"] != "classes"
        mean, std = (np.array(self.facts[key], np.float32)[:, None, None] for key in ("mean", "std"))
        self.bands: int | None = self.facts["bands"]
        self._factor, self._shift = 1.0 / (255.0 * std if self.bands is None else std), mean / std

    def settings(self) -> dict[str, Any]:
        return {"scale": self.scale, "window": self.window, "stride": self.stride, "onnx": True}

    def state(self) -> int:
        return 0

    def check(self, *, maps: bool, plain: bool) -> None:
        """An error where the file does not give what is asked for."""
        if plain and self.facts["classifier"] != "plain":
            raise ValueError("an exported file holds one classifier. Export the other with `cacseg export --plain`.")
        if maps and not self.has_maps:
            raise ValueError(
                "the file gives classes alone, so there is no confidence and no entropy. Export it with --output "
                "logits or probabilities."
            )

    def carrying(self, carry: float, context: Context | None = None) -> OnnxBackend:
        raise ValueError("an .onnx file predicts each frame alone. Leave out --carry, or use the model itself.")

    def context(self) -> None:
        return None

    def view(self, image: Pixels) -> Pixels:
        height, width = image.shape[:2]
        own = (height, width) if self.scale is None else keep_ratio(height, width, self.scale)
        return view_at(image, self.fixed_size or own)

    def predict(
        self, views: Sequence[Any], size: tuple[int, int], *, maps: bool = False, plain: bool = False, run: Any = None
    ) -> list[Answer]:
        """As `Backend.predict`; `run` are onnxruntime's RunOptions, by which another thread can end it."""
        self.check(maps=maps, plain=plain)
        shown = (views[0].shape[1], views[0].shape[2])
        seen = shown if self.window is None else (0, 0)
        if self.has_maps:
            check_scores(len(self.classes.names), [size, shown], len(views), f"{CLASSES_ALONE} {SMALLER}", seen)
        else:
            check_scores(0, [size], len(views), SMALLER, seen)
        images = np.stack(views)
        if not self.facts["normalises"]:
            images = images * self._factor - self._shift
            images = images if self.bands is None else np.nan_to_num(images, nan=0.0, posinf=0.0, neginf=0.0)
        try:
            if not self.has_maps:
                return [Answer(_nearest(one, size).astype(np.uint8)) for one in self._run(images, run)]
            scores = self._logits(images, run)
        except Exception as error:
            if "alloc" in str(error).lower() or isinstance(error, MemoryError):
                message = f"images of {size[1]}x{size[0]} did not fit into memory. Take a smaller --batch."
                raise MemoryError(message) from error
            raise
        return [self._answer(resize(one, size), maps) for one in scores]

    def _run(self, images: npt.NDArray[Any], run: Any) -> npt.NDArray[Any]:
        if self.fixed_size is not None and len(images) > 1:  # it takes one at a time
            return np.concatenate([self._run(one[None], run) for one in images])
        (found,) = self.session.run(None, {self.session.get_inputs()[0].name: images}, run)
        return found

    def _logits(self, images: npt.NDArray[Any], run: Any) -> Floats:
        """[b, n, h, w] at the size of the images, the mean of all windows; of one channel two, -s/2 and s/2."""

        def whole(seen: npt.NDArray[Any]) -> Floats:
            scores = self._run(seen, run)
            if self.facts["output"] == "probabilities":
                # The softmax of their logarithms is them again, however these are averaged and resized as logits are.
                rest = [np.maximum(1.0 - scores, ROUNDED)] if scores.shape[1] == 1 else []
                scores = np.log(np.maximum(np.concatenate([*rest, scores], axis=1), TINY))
            elif scores.shape[1] == 1:
                scores = np.concatenate([-scores / 2, scores / 2], axis=1)
            return resize(scores, (seen.shape[2], seen.shape[3]))

        if self.window is None or self.stride is None:
            return whole(images)
        return slide(whole, images, self.window, self.stride)

    def _answer(self, scores: Floats, maps: bool) -> Answer:
        mask = scores.argmax(0).astype(np.uint8)
        return Answer(mask, *confidence_and_entropy(scores)) if maps else Answer(mask)


def open_file(path: str | Path, device: str = "auto", threads: int | None = None) -> tuple[Any, dict[str, Any]]:
    """The session of a file, and what the file says of itself: both checked."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        message = f"{path} needs onnxruntime, which is not installed: pip install onnxruntime"
        raise ModuleNotFoundError(message, name=error.name) from error
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}. Write one with `cacseg export MODEL -o {path}`.")
    check_seal(Path(path))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    providers = _providers(onnxruntime, device)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        metadata = session.get_modelmeta().custom_metadata_map
    except Exception as error:  # of many types, none of them documented
        raise ValueError(f"{path} is damaged or no ONNX file ({str(error).splitlines()[0]}).") from error
    if device == "cuda" and session.get_providers()[0] != CUDA:  # it was there, did not start, and no error said so
        raise ValueError(f"onnxruntime could not start CUDA. Is there a GPU? Install {GPU_PACKAGE}; {OR_CPU}.")
    facts = _read_facts(metadata, path)
    _check_tensors(session, facts, path)
    return session, facts


def confidence_and_entropy(scores: Floats) -> tuple[Floats, Floats]:
    """Of logits [n, H, W], the largest probability, and the entropy over the logarithm of n.

    In bands of rows, which stay in the caches of a core: a third of the time.
    """
    n, height, width = scores.shape
    confidence, entropy = np.empty((2, height, width), np.float32)
    rows = max(1, BAND // (n * width))
    for band in (slice(y, y + rows) for y in range(0, height, rows)):
        shifted = np.maximum(scores[:, band] - scores[:, band].max(0), LEAST)
        powers = np.exp(shifted)
        total = powers.sum(0)
        confidence[band] = 1.0 / total
        entropy[band] = np.log(total) - np.einsum("nhw,nhw->hw", powers, shifted) / total
    return confidence, np.asarray(np.maximum(entropy, 0.0) / math.log(max(2, n)), np.float32)


def _nearest(classes: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    rows, columns = (
        np.minimum((np.arange(wanted) + 0.5) * (length / wanted), length - 1).astype(np.int64)
        for wanted, length in zip(size, classes.shape, strict=True)
    )
    return classes[rows[:, None], columns]


def _providers(onnxruntime: Any, device: str) -> list[str]:
    has_cuda = CUDA in onnxruntime.get_available_providers()
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"an ONNX file runs on 'cpu' or 'cuda'; got {device!r}.")
    if device == "cuda" and not has_cuda:
        raise ValueError(f"the onnxruntime installed here has no CUDA. Remove it and install {GPU_PACKAGE}; {OR_CPU}.")
    if not has_cuda or device == "cpu":
        return ["CPUExecutionProvider"]
    onnxruntime.preload_dlls()  # the libraries of the pip packages, which it does not find itself
    return [CUDA, "CPUExecutionProvider"]


def _read_facts(metadata: dict[str, str], path: str | Path) -> dict[str, Any]:
    """What the file says of itself, each value of the kind that is used."""
    if METADATA not in metadata:
        raise ValueError(f"{path} does not say what it is: it was not written by `cacseg export`.")
    try:
        facts = {"fixed_size": None, **parse_json(metadata[METADATA])}  # which earlier files do not have
        if facts.get("format") != FORMAT:
            raise ValueError(f"its description has the format {facts.get('format')!r}, this version reads {FORMAT}")
        if missing := NEEDED - set(facts):
            raise ValueError(f"its description lacks {', '.join(sorted(missing))}")
        check_facts(facts)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Export the model again.") from error
    return dict(facts)


def check_facts(facts: dict[str, Any]) -> None:
    """Each value is of the kind that is used; an error names the first that is not."""

    def require(key: str, holds: bool, must: str) -> None:
        if not holds:
            raise ValueError(f"{key} must be {must}; got {str(facts[key])[:80]}")

    def is_whole(value: Any, least: float = 1, most: float = math.inf) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    def is_list(value: Any, length: int, holds: Callable[[Any], bool]) -> bool:
        return isinstance(value, list) and len(value) == length and all(map(holds, value))

    def is_number(value: Any) -> bool:
        return is_whole(value, -MOST, MOST) or (isinstance(value, float) and abs(value) < MOST)

    require("num_classes", is_whole(facts["num_classes"]), "a whole number from 1 on")
    require("bands", facts["bands"] is None or is_whole(facts["bands"], most=2**16), "none or a whole number from 1 on")
    classes, channels = max(2, facts["num_classes"]), facts["bands"] or 3  # of one channel, two classes
    names, palette = facts["class_names"], facts["palette"]
    require(
        "class_names", names is None or is_list(names, classes, lambda one: isinstance(one, str)), f"{classes} names"
    )
    is_colour = partial(is_list, length=3, holds=partial(is_whole, least=0, most=255))
    require("palette", palette is None or is_list(palette, classes, is_colour), f"{classes} colours of 3 bytes")
    require("mean", is_list(facts["mean"], channels, is_number), f"{channels} numbers")
    require(
        "std", is_list(facts["std"], channels, lambda one: is_number(one) and one > 0), f"{channels} numbers above 0"
    )
    require("normalises", isinstance(facts["normalises"], bool), "true or false")
    require("output", facts["output"] in OUTPUTS, f"one of {', '.join(OUTPUTS)}")
    require("classifier", facts["classifier"] in ("plain", "context"), "plain or context")
    for key in ("scale", "window", "stride", "fixed_size"):
        is_size = facts[key] is None or is_list(facts[key], 2, partial(is_whole, most=2**31))
        require(key, is_size, "none or two whole numbers from 1 on")
    require("stride", (facts["window"] is None) == (facts["stride"] is None), "there where window is, and only there")


def _check_tensors(session: Any, facts: dict[str, Any], path: str | Path) -> None:
    """Whether the network takes and gives what its description says."""
    given, made = session.get_inputs(), session.get_outputs()
    is_pixels = facts["normalises"] and facts["bands"] is None
    expected = ["tensor(uint8)"] if is_pixels else ["tensor(float)", "tensor(float16)"]
    sides = 3 if facts["output"] == "classes" else 4
    fits = len(given) == len(made) == 1 and given[0].type in expected and len(made[0].shape) == sides
    fits = fits and made[0].name == facts["output"]
    fits = fits and facts["fixed_size"] in (None, given[0].shape[2:])
    if fits and sides == 4 and isinstance(made[0].shape[1], int):
        fits = made[0].shape[1] == facts["num_classes"]
    if not fits:
        found = f"{[one.type for one in given]} -> {[one.shape for one in made]}"
        raise ValueError(
            f"{path} cannot be read: its network is not the one that it describes ({found}). Export it again."
        )


def _pair(values: Sequence[int] | None) -> tuple[int, int] | None:
    return None if values is None else (int(values[0]), int(values[1]))
