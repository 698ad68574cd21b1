"""Predicts from Python: any image in, a `Result` out, by torch or by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from cacseg.runtime.backend import Answer, Backend, Scale
from cacseg.runtime.bands import Pixels, as_picture, without_data
from cacseg.runtime.decode import MAX_PIXELS
from cacseg.runtime.images import as_image
from cacseg.runtime.onnx_file import OnnxBackend, is_onnx
from cacseg.runtime.prefetch import batch_by_key, prefetch
from cacseg.runtime.result import Bytes, Result
from cacseg.runtime.video import open_frames

if TYPE_CHECKING:
    from torch import nn

    from cacseg.engine.inference import Inference

READERS = 2  # threads that read files ahead
# Of an image of a list, the most special first.
ERRORS = (FileNotFoundError, IsADirectoryError, OSError, TypeError, ValueError, MemoryError, RuntimeError)


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
        if tile is None and (overlap, tile_context, keep) != (128, "image", 1024):
            raise ValueError(
                "overlap, tile_context and keep belong to tile; got tile=None. Pass tile=1024 too, or leave them out."
            )
        if isinstance(model, str | Path) and is_onnx(model):
            if inference is not None or tile is not None or precision not in ("auto", "fp32"):
                raise ValueError("an .onnx file shows images as it was exported to, in the precision it was given.")
            if mean is not None or std is not None or bands is not None:
                raise ValueError(f"{model} states its mean, std and bands itself. Leave all of them out.")
            self.backend = OnnxBackend(model, device, class_names=class_names, palette=palette)
            if scale is not None:
                self.backend.scale = _read_scale(scale)
            return
        from torch import nn

        from cacseg.engine.backend import TorchBackend
        from cacseg.engine.inference import Inference, Tiling
        from cacseg.models import load
        from cacseg.recipes.protocol import data_of_run

        is_ours = isinstance(model, str | Path)
        if isinstance(model, str | Path):
            model = load(model)
        if not isinstance(model, nn.Module):
            what = "a path, a name on the Hugging Face Hub or an nn.Module"
            raise TypeError(f"model must be {what}; got {type(model).__name__}.")
        if tile is not None:
            if inference is not None:
                raise ValueError("tile belongs into the given inference (tiling=Tiling(...)). Leave one out.")
            inference = Inference(tiling=Tiling(tile, overlap, tile_context, keep))
        source = getattr(model, "source", None)
        run = None if source is None else data_of_run(source)
        if run is not None:
            scale = run.val_scale if scale is None else scale
            inference = Inference(run.window, run.stride) if inference is None else inference
        backend = self.backend = TorchBackend(
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
        if is_ours:  # nobody else sees its weights in another layout
            model.to(memory_format=backend.layout)  # type: ignore[call-overload]

    @overload
    def __call__(self, images: list[Any], *, batch: int | None = None) -> list[Result]: ...
    @overload
    def __call__(self, images: Any, *, batch: int | None = None) -> Result: ...
    def __call__(self, images: Any, *, batch: int | None = None) -> Result | list[Result]:
        """The result of an image, or the results of a list of them.

        Up to `batch` images of one size run together; None: 4 on a GPU, 1 on a CPU, where that is faster.

        An image is a path, a picture of Pillow's, an array [H, W, 3] or [H, W], or a tensor [3, H, W]; numbers are
        bytes, 16 bits (uint16, of which the upper 8 count), bool, or from 0 to 1 in floating point; of a model of bands
        as many channels as it has, in their own units. A list may mix them, and sizes.
        """
        if not isinstance(images, list | tuple):
            return next(self._predict([images], 1, is_list=False))[1]
        found = dict(self._predict(images, self.backend.batch if batch is None else batch, is_list=True))
        return [found[place] for place in range(len(images))]

    def _predict(self, images: Sequence[Any], batch: int, *, is_list: bool) -> Iterator[tuple[int, Result]]:
        def naming(places: Sequence[int]) -> AbstractContextManager[None]:
            return _naming(images, places) if is_list else nullcontext()

        def read(place: int) -> tuple[int, Pixels, Any]:
            with naming([place]):
                image = as_image(images[place], self.backend.bands, self.max_pixels)
                return place, image, self.backend.view(image)

        loaded = prefetch(read, range(len(images)), READERS if len(images) > 1 else 0)
        for group in batch_by_key(loaded, lambda one: one[1].shape, batch):
            state = self.backend.state()
            views, size = [view for _, _, view in group], (group[0][1].shape[0], group[0][1].shape[1])
            with naming([place for place, _, _ in group]):
                answers = self.backend.predict(views, size, maps=self.backend.has_maps, plain=False)
            for (place, image, view), answer in zip(group, answers, strict=True):
                yield place, self._result(image, view, answer, state)

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
            view, state = backend.view(image), backend.state()
            size = (image.shape[0], image.shape[1])
            (answer,) = backend.predict([view], size, maps=backend.has_maps, plain=False)
            yield self._result(image, view, answer, state)

    def _result(self, image: Pixels, view: Any, answer: Answer, state: int) -> Result:
        plain = partial(self._predict_plain, view, image, state)
        answer = answer._replace(mask=without_data(answer.mask, image))
        return Result(as_picture(image), *answer, *self.backend.classes, plain)

    def _predict_plain(self, view: Any, image: Pixels, state: int) -> Bytes:
        if self.backend.state() != state:
            raise ValueError(
                "plain is computed by the model as it was when the image was predicted; its weights have changed, or "
                "were moved, since. Ask for result.plain before that, or predict the image again."
            )
        size = image.shape[0], image.shape[1]
        return without_data(self.backend.predict([view], size, maps=False, plain=True)[0].mask, image)


@contextmanager
def _naming(images: Sequence[Any], places: Sequence[int]) -> Iterator[None]:
    """Errors say which images of a list they are of."""
    try:
        yield
    except ERRORS as error:
        kind = next(one for one in ERRORS if isinstance(error, one))
        paths = {place: str(images[place]) for place in places if isinstance(images[place], str | Path)}
        named = (
            f"images[{place}]" + (f" ({paths[place]})" if paths.get(place, str(error)) not in str(error) else "")
            for place in places
        )
        raise kind(f"{', '.join(named)}: {error}") from error


def _read_scale(scale: Scale | str | None) -> Scale | None:
    if scale is None or scale == "own":
        return None
    sides = [] if isinstance(scale, str) or not isinstance(scale, Sequence) else list(scale)
    whole = [int(side) for side in sides if isinstance(side, int | np.integer) and side >= 1]
    if len(sides) != 2 or len(whole) != 2:
        raise ValueError(
            f"scale must be the longest and the shortest side that images may have, in pixels, such as (2048, 512), or "
            f"'own'; got {scale!r}."
        )
    return max(whole), min(whole)
