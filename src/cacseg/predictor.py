"""Predicts from Python: any image in, a `Result` out, by torch or by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from PIL import Image

from cacseg.runtime.backend import Answer, Backend, Scale
from cacseg.runtime.bands import Pixels, as_picture, bands_of_array, read_image, without_data
from cacseg.runtime.decode import MAX_PIXELS, max_bytes, upright
from cacseg.runtime.files import read_file
from cacseg.runtime.onnx_file import OnnxBackend
from cacseg.runtime.prefetch import batch_by_key, prefetch
from cacseg.runtime.result import Bytes, Result
from cacseg.runtime.video import open_frames

if TYPE_CHECKING:
    from torch import nn

    from cacseg.engine.inference import Inference

READERS = 2  # threads that read files ahead


class Predictor:
    """A model that is ready to predict.

    predictor = cacseg.Predictor("runs/mine")            # a run, a .safetensors, a name on the hub, an .onnx
    result = predictor("photo.jpg")                      # or a picture of Pillow's, an array, a tensor, a list of them
    predictor = cacseg.Predictor(converted, mean=..., std=..., class_names=[...])     # a model of another library

    Args:
        model: what `cacseg.load` takes, a model, or the path of an exported .onnx, which needs no torch.
        mean, std, class_names, palette: of a model that does not know them; else its own ones.
        bands: of images, where a model of another library takes no colours, in whose units mean and std are.
        scale: longest and shortest side that images are fitted into; "own" leaves them; None: as the model's run was
            validated, else "own".
        tile, overlap, tile_context: show large images in tiles of so many pixels a side, with one classifier from the
            whole "image", or one from each "tile".
        keep: MiB of features that tiles keep from the pass that makes the classifier; others are computed twice.
        inference: windows, several scales, flips (`cacseg.engine.inference.Inference`); None: as the run was validated.
        device: "auto", "cpu", "cuda", "cuda:1", ...
        precision: "fp32", "bf16" or "fp16"; "auto" is bf16 on a GPU that has it and a CPU with AMX, else fp32.
        max_pixels: of an image file, which is decoded whole; one with more is refused before that.
    """

    def __init__(
        self,
        model: str | Path | nn.Module,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        bands: int | None = None,
        class_names: Sequence[str] | None = None,
        palette: Sequence[Sequence[int]] | None = None,
        scale: Scale | str | None = None,
        tile: int | None = None,
        overlap: int = 128,
        tile_context: Literal["image", "tile"] = "image",
        keep: float = 1024,
        inference: Inference | None = None,
        device: str = "auto",
        precision: str = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.backend: Backend
        self.max_pixels = max_pixels
        if isinstance(model, str | Path) and Path(model).suffix == ".onnx":
            if inference is not None or tile is not None or precision not in ("auto", "fp32"):
                raise ValueError("an .onnx file shows images as it was exported to, in the precision it was given.")
            if mean is not None or std is not None or bands is not None:
                raise ValueError(f"{model} states its mean, std and bands itself. Leave all of them out.")
            self.backend = OnnxBackend(model, device, class_names=class_names, palette=palette)
            if scale is not None:
                self.backend.scale = _read_scale(scale)
            return
        from cacseg.engine.backend import TorchBackend
        from cacseg.engine.inference import Inference, Tiling
        from cacseg.models import load
        from cacseg.recipes.protocol import data_of_run

        if isinstance(model, str | Path):
            model = load(model)
        if tile is not None:
            if inference is not None:
                raise ValueError("tile belongs into the given inference (tiling=Tiling(...)). Leave one out.")
            inference = Inference(tiling=Tiling(tile, overlap, tile_context, keep))
        source = getattr(model, "source", None)
        run = None if source is None else data_of_run(source)
        if run is not None:
            scale = run.val_scale if scale is None else scale
            inference = Inference(run.window, run.stride) if inference is None else inference
        self.backend = TorchBackend(
            model,
            mean=mean,
            std=std,
            bands=bands,
            class_names=class_names,
            palette=palette,
            inference=inference or Inference(),
            scale=_read_scale(scale),
            device=device,
            precision=precision,
        )

    @overload
    def __call__(self, images: list[Any], *, batch: int | None = None) -> list[Result]: ...
    @overload
    def __call__(self, images: Any, *, batch: int | None = None) -> Result: ...
    def __call__(self, images: Any, *, batch: int | None = None) -> Result | list[Result]:
        """The result of an image, or the results of a list of them.

        Up to `batch` images of one size run together; None: 4 on a GPU, 1 on a CPU, where that is faster.

        An image is a path, a picture of Pillow's, an array [H, W, 3] or [H, W], or a tensor [3, H, W]; numbers are
        bytes, or from 0 to 1 in floating point; of a model of bands as many channels as it has, in their own units. A
        list may mix them, and sizes.
        """
        if not isinstance(images, list | tuple):
            return next(self._predict([images], 1))[1]
        found = dict(self._predict(images, batch or self.backend.batch))
        return [found[place] for place in range(len(images))]

    def _predict(self, images: Sequence[Any], batch: int) -> Iterator[tuple[int, Result]]:
        def read(place: int) -> tuple[int, Pixels, Any]:
            image = as_image(images[place], self.backend.bands, self.max_pixels)
            return place, image, self.backend.view(image)

        loaded = prefetch(read, range(len(images)), READERS if len(images) > 1 else 0)
        for group in batch_by_key(loaded, lambda one: one[1].shape, batch):
            views, size = [view for _, _, view in group], (group[0][1].shape[0], group[0][1].shape[1])
            answers = self.backend.predict(views, size, maps=self.backend.has_maps, plain=False)
            for (place, image, view), answer in zip(group, answers, strict=True):
                yield place, self._result(image, view, answer)

    def stream(self, frames: Iterable[Any] | str | Path, *, carry: float = 0.0) -> Iterator[Result]:
        """The results of frames in their order, each as soon as it is there.

        Args:
            frames: images as for a call; or a video file, "camera:0", or a folder of frames.
            carry: the weight that the context of earlier frames keeps from one frame to the next, from 0 (each frame
                alone) to 1: prototypes are made from sums S_t = carry * S_(t-1) + s_t, and counts likewise.
        """
        backend = self.backend.carrying(carry) if carry != 0.0 else self.backend
        if isinstance(frames, str | Path):
            frames = (frame.image for frame in open_frames(frames, max_pixels=self.max_pixels).images)
        return self._stream(backend, (as_image(one, backend.bands, self.max_pixels) for one in frames))

    def _stream(self, backend: Backend, images: Iterable[Pixels]) -> Iterator[Result]:
        for image in images:
            view = backend.view(image)
            size = (image.shape[0], image.shape[1])
            (answer,) = backend.predict([view], size, maps=backend.has_maps, plain=False)
            yield self._result(image, view, answer)

    def _result(self, image: Pixels, view: Any, answer: Answer) -> Result:
        plain = partial(self._predict_plain, view, image)
        answer = answer._replace(mask=without_data(answer.mask, image))
        return Result(as_picture(image), *answer, *self.backend.classes, plain)

    def _predict_plain(self, view: Any, image: Pixels) -> Bytes:
        size = image.shape[0], image.shape[1]
        return without_data(self.backend.predict([view], size, maps=False, plain=True)[0].mask, image)


def as_image(image: Any, bands: int | None = None, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Red, green, blue, [H, W, 3], of whatever holds an image; or its bands, float32 [H, W, bands]."""
    if isinstance(image, str | Path):
        content, _ = read_file(Path(image).expanduser(), max_bytes(max_pixels, bands))
        return read_image(content, str(image), bands, max_pixels)
    if bands is not None:
        return bands_of_array(image, "the image", bands)
    if isinstance(image, Image.Image):
        return upright(image)
    if type(image).__module__.partition(".")[0] == "torch":
        from cacseg.engine.backend import to_pixels

        image = to_pixels(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(f"an image is a path, a PIL image, an array or a tensor; got {type(image).__name__}.")
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4) or 0 in image.shape:
        raise ValueError(f"an array must be an image [H, W, 3] or [H, W] of at least 1 pixel; got {image.shape}.")
    if np.issubdtype(image.dtype, np.floating):
        if not np.isfinite(image).all() or image.min() < 0.0 or image.max() > 1.0:
            raise ValueError(
                f"floating-point pixels must be from 0 to 1; got {image.min()} to {image.max()}. Give bytes, and leave "
                "normalising to the model."
            )
        image = (image * 255.0).round().astype(np.uint8)
    if image.dtype != np.uint8:
        raise TypeError(f"pixels must be bytes (uint8), or from 0 to 1 in floating point; got {image.dtype}.")
    image = image[..., :3] if image.shape[2] > 1 else np.repeat(image, 3, axis=2)
    return np.ascontiguousarray(image)


def _read_scale(scale: Scale | str | None) -> Scale | None:
    if scale is None or scale == "own":
        return None
    if isinstance(scale, str) or len(scale) != 2 or min(scale) < 1:
        raise ValueError(f"scale must be a long and a short side, or 'own'; got {scale!r}.")
    return max(scale), min(scale)
