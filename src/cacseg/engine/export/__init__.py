"""Writes a trained model as a file for inference elsewhere, and checks that file against the model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from cacseg._checks import check_choice, check_normalisation
from cacseg._files import check_target, scratch_folder
from cacseg._text import parse_json
from cacseg.adapters.converted import is_converted
from cacseg.data.sample import SegmentationData
from cacseg.engine.export.formats import SUFFIXES, Run, check_packages, open_program, write
from cacseg.engine.export.module import (
    LEAST_SIDE,
    Description,
    InferenceModule,
    Output,
    Size,
    classifiers_of,
    forward_of,
    inference_copy,
    narrow,
    trace,
)
from cacseg.engine.export.quantise import as_data, mean_iou, prepare, quantise, read_images
from cacseg.engine.export.verify import Check, Scores, compare, require, require_use, verify
from cacseg.engine.foreign import find_multiple
from cacseg.engine.inference import Inference
from cacseg.models.files import check_classes
from cacseg.models.model import SegmentationModel
from cacseg.presets import or_default
from cacseg.runtime.onnx_file import check_facts
from cacseg.runtime.seal import seal

Format = Literal["onnx", "torch-export", "aotinductor"]
Precision = Literal["fp32", "fp16", "int8"]


class Exported(NamedTuple):
    """A file that was written, and how it compares with its model."""

    path: Path
    described: Description
    checks: list[Check]  # at two sizes; of int8 on the images of the calibration
    scores: Scores | None
    seconds: float


def export(
    model: nn.Module,
    path: str | Path,
    *,
    format: Format = "onnx",
    output: Output = "logits",
    size: Size = "input",
    plain: bool = False,
    normalise: bool = True,
    precision: Precision = "fp32",
    calibration: Iterable[Any] | str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    bands: int | None = None,
    class_names: Sequence[str] | None = None,
    palette: Sequence[Sequence[int]] | None = None,
    scale: tuple[int, int] | None = None,
    window: tuple[int, int] | None = None,
    stride: tuple[int, int] | None = None,
    fixed_size: tuple[int, int] | None = None,
    score: SegmentationData | Sequence[Any] | Callable[[Run, Description], float] | None = None,
    accept: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda words: None,
) -> Exported:
    """Writes a model for inference with any batch, height and width, and compares the file with it at two sizes.

        cacseg.export(model, "model.onnx", output="classes")
        cacseg.export(cacseg.convert(smp.Unet(...)), "unet.onnx", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

    A file that differs from the model by more than rounding is an error, and none is left. The model stays as it is.

    Args:
        model: of `create_model` or `load`, one that `convert` returned, or any that returns logits [b, n, h, w].
        path: ends in .onnx, or .pt2 for the other two formats.
        format: "onnx"; "torch-export", for `torch.export.load`; "aotinductor", machine code for this kind of machine
            and the device of the model, for `torch._inductor.aoti_load_package`.
        output: "logits", "probabilities", or "classes" (uint8; int32 with more than 256).
        size: of the "input", or of the "features": what the model itself returns where it is of another library.
        plain: the fixed classifier instead of the context-aware one.
        normalise: whether images are pixels, uint8 [b, 3, H, W] (of a model of bands float32 in their own units); else
            float32 that the caller normalises.
        precision: "fp32"; "fp16", sums and the classifier in float32; "int8", of ONNX files alone.
        calibration: for int8, some dozens of images like those to come: a folder or a glob, of which 32 are taken, or a
            list of whatever `Predictor` takes (paths, pictures, arrays).
        mean, std: of the normalisation, for pixels in [0, 1], or bands in their own units; None is the model's own.
        bands: that images have, where a model of another library takes no red, green and blue.
        class_names, palette: None is the model's own; of one channel two, background and foreground.
        scale, window, stride: the longest and the shortest side that images should be fitted into, and sliding windows,
            for those who read the file, as `cacseg predict` does.
        fixed_size: height and width of every image, one at a time: for runtimes that take no other, and for models that
            cannot be traced with any size. `cacseg predict` resizes images to it.
        score: labelled images, for the mIoU of the file and of the model (`Exported.scores`): a split of
            `cacseg.data.open_data`, or pairs (image, mask) as `cacseg.train` takes them; or a function of one's own.
        accept: keep an int8 file that lost more than 5 points of it, or without `score` agrees on less than 80 % of the
            calibration images' pixels; else that is an error, and no file is left.
        progress: called with a few words at the start of each step.
    """
    path = Path(path)
    for name, value, choices in (
        ("format", format, tuple(SUFFIXES)),
        ("output", output, ("logits", "probabilities", "classes")),
        ("size", size, ("input", "features")),
        ("precision", precision, ("fp32", "fp16", "int8")),
    ):
        check_choice(name, value, choices)
    if path.suffix != SUFFIXES[format]:
        raise ValueError(f"a file of the format {format} ends in {SUFFIXES[format]}; got {path.name}.")
    if precision == "int8" and (format != "onnx" or calibration is None):
        raise ValueError("int8 is for ONNX files and needs images to calibrate with. Pass format='onnx', calibration.")
    if window is not None and output == "classes":
        raise ValueError("classes of windows have no mean. Export logits or probabilities, or leave out the window.")
    if fixed_size is not None and (scale is not None or window is not None):
        raise ValueError("images of a fixed size have neither scale nor window. Leave out those, or fixed_size.")
    if min(Inference(window, stride).window or (LEAST_SIDE,)) < LEAST_SIDE:
        raise ValueError(f"a window must be at least {LEAST_SIDE} pixels high and wide; got {window}.")
    check_packages(format)
    check_target(path, overwrite)
    start = time.perf_counter()
    own = inference_copy(model, plain=plain)
    device = next(own.parameters()).device if format == "aotinductor" else torch.device("cpu")
    if isinstance(own, SegmentationModel):
        mean, std = or_default(mean, own.mean), or_default(std, own.std)
        if bands not in (None, own.bands):
            raise ValueError(f"the model says itself what images it takes (bands={own.bands}); got bands={bands}.")
        bands = own.bands
        class_names, palette = or_default(class_names, own.class_names), or_default(palette, own.palette)
    elif mean is None or std is None:
        raise ValueError("mean and std of the normalisation are needed for a model of another library. Pass both.")
    mean, std = check_normalisation(mean, std, 3 if bands is None else bands, are_bands=bands is not None)
    if isinstance(own, SegmentationModel):
        multiple, num_classes = 1, own.num_classes
    else:
        forward = forward_of(own.to(device), plain=plain)
        multiple, num_classes = find_multiple(forward, len(mean), device, fixed_size=fixed_size)
    check_classes(class_names, palette, max(2, num_classes), "the model")
    adapts = is_converted(own) or (isinstance(own, SegmentationModel) and own.default_output == "context")
    described = Description(
        num_classes=num_classes,
        class_names=None if class_names is None else list(class_names),
        palette=None if palette is None else [list(map(int, colour)) for colour in palette],
        mean=mean,
        std=std,
        bands=bands,
        normalises=normalise,
        output=output,
        size=size,
        classifier="context" if adapts and not plain else "plain",
        scale=scale,
        window=window,
        stride=stride,
        precision=precision,
        fixed_size=fixed_size,
    )
    check_facts(parse_json(described.as_json()))
    images = read_images(calibration, bands) if precision == "int8" and calibration is not None else []
    if score is not None and not callable(score):
        score = partial(mean_iou, data=as_data(score, described), device=device)
    reference = InferenceModule(own, described, multiple).to(device)
    module = reference
    if precision == "fp16":
        module = narrow(InferenceModule(inference_copy(model, plain=plain), described, multiple).to(device))
    progress("tracing")
    program = trace(module, device, onnx=format == "onnx")
    with scratch_folder(path, f"writing {path.name}") as scratch:
        written = scratch / path.name
        progress("writing")
        try:
            write(program, written, format, described._replace(precision="fp32") if precision == "int8" else described)
        except OSError as error:
            reason = error.strerror or error
            raise OSError(
                f"{path} could not be written ({reason}). Free some space, or choose another folder."
            ) from error
        if precision == "int8":
            progress("quantising")
            whole, written = written, written.with_stem(f"{path.stem}.int8")
            kept = [name for name, one in own.named_modules() if one in classifiers_of(own)]
            quantise(whole, written, images, described, kept)
        if format == "onnx":
            seal(written)
        progress("verifying")
        run = open_program(written, format, device)
        checks = verify(run, reference, device)
        if precision == "int8":
            checks = require(compare(run, reference, prepare(image, described)) for image in images)
        scores = None
        if score is not None:
            progress("scoring")
            scores = Scores(score(run, described), score(reference, described))
        if precision == "int8" and not accept:
            require_use(checks, scores)
        del run  # releases the file
        os.replace(written, path)
    return Exported(path, described, checks, scores, time.perf_counter() - start)
