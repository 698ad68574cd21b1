"""int8 by ONNX Runtime's static quantisation, calibrated with images; and what an exported file scores."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cacseg.data.python import PythonData
from cacseg.data.sample import SegmentationData, read_sample
from cacseg.data.transforms import normalise
from cacseg.engine.export.formats import INPUT, SCOPES, Run, onnx_facts, quiet
from cacseg.engine.export.module import Description
from cacseg.engine.export.verify import classes_of
from cacseg.engine.inference import Inference, predict_each, view_image
from cacseg.functional.labels import resize_labels
from cacseg.metrics import confusion, scores
from cacseg.runtime.backend import view_at
from cacseg.runtime.bands import Pixels
from cacseg.runtime.images import as_image
from cacseg.runtime.inputs import find_images

CALIBRATION = 32  # images of files, at most
WEIGHTED = ("Conv", "MatMul", "Gemm")


def evenly(count: int, most: int) -> list[int]:
    """Up to `most` places in a list of `count`, evenly spaced."""
    return [round(place) for place in np.linspace(0, count - 1, min(most, count)).tolist()]


def read_images(images: Iterable[Any] | str | Path, bands: int | None) -> list[Pixels]:
    """Of paths, folders and globs up to `CALIBRATION` images, evenly spaced; else each that a list or a stream has."""
    given = [images] if isinstance(images, str | Path) else list(images)
    if given and all(isinstance(one, str | Path) for one in given):
        files = [one.path for one in find_images(given, colours=bands is None)]
        given = [files[i] for i in evenly(len(files), CALIBRATION)]
    if not given:
        raise ValueError("int8 needs images to calibrate with, some dozens like those to come; calibration has none.")
    return [as_image(one, bands) for one in given]


def as_data(samples: Any, described: Description) -> SegmentationData:
    """A split of a data set, or pairs of an image and its mask, with the classes of the model."""
    names = described.class_names or [str(k) for k in range(max(2, described.num_classes))]
    is_split = isinstance(samples, SegmentationData)
    data = samples if is_split else PythonData(samples, "val", names, bands=described.bands)
    if len(data.class_names) != len(names):
        raise ValueError(
            f"the data to score on must have the {len(names)} classes of the model; {data.name} has "
            f"{len(data.class_names)}. Give the data set that it was trained for."
        )
    return data


def prepare(image: Pixels, described: Description) -> Tensor:
    """A batch of one image, fitted into `scale` or the fixed size; the mean of a band where it has no data."""
    if described.fixed_size is None:
        pixels = view_image(image, described.scale, (1.0,))[0][None]
    else:
        pixels = torch.from_numpy(view_at(image, described.fixed_size))[None]
    if not described.normalises:
        return normalise(pixels, described.mean, described.std)
    if described.bands is None:
        return pixels
    return torch.where(pixels.isfinite(), pixels, torch.tensor(described.mean)[:, None, None])


def quantise(source: Path, target: Path, images: Iterable[Pixels], described: Description, kept: Sequence[str]) -> None:
    """An ONNX file with convolutions and products by weights in int8.

    Weights have a scale for each output channel. The range of other tensors is the mean of those on the single images,
    so that one pixel far out does not coarsen all. They are unsigned, which x86 computes faster. The modules named in
    `kept`, the classifiers, stay as they are, and so do products of two activations.
    """
    import onnx
    from onnxruntime import quantization

    model: Any = onnx.load(source)
    weights = {one.name for one in model.graph.initializer}
    kept_scopes = {f"module.model.{name}" for name in kept}  # as `Traceable` and `InferenceModule` call it
    chosen = []
    for node in model.graph.node:
        scopes = ast.literal_eval(next((one.value for one in node.metadata_props if one.key == SCOPES), "[]"))
        if node.op_type in WEIGHTED and node.input[1] in weights and not set(scopes) & kept_scopes:
            chosen.append(node.name)
    batches = iter([{INPUT: prepare(image, described).numpy()} for image in images])

    class Batches(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
            return next(batches, None)

    with quiet():
        quantization.quantize_static(
            source,
            target,
            Batches(),
            nodes_to_quantize=chosen,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            extra_options={"CalibMovingAverage": True},
        )
    model = onnx.load(target)
    onnx.helper.set_model_props(model, onnx_facts(described))
    onnx.save(model, target)


@torch.no_grad()
def mean_iou(
    run: Run,
    described: Description,
    data: SegmentationData,
    most: int | None = None,
    device: torch.device | str = "cpu",
) -> float:
    """Of an exported file on a split, or up to `most` of its images, evenly spaced; resized to the labels."""
    n = max(2, described.num_classes)
    total = torch.zeros(n, n, dtype=torch.long)
    how = Inference(described.window, described.stride)
    for index in evenly(len(data), most or len(data)):
        sample = read_sample(data, index)
        labels = torch.from_numpy(np.ascontiguousarray(sample.labels))[None]
        shown, size = prepare(sample.image, described).to(device), (labels.shape[1], labels.shape[2])
        if described.output == "classes":
            predicted = resize_labels(run(shown).cpu(), size)
        else:
            (output,) = predict_each(lambda images, _: [run(images)], [shown], size, how)
            predicted = classes_of(output.cpu(), described)
        total += confusion(predicted.long(), labels, n, data.ignore_index)
    return scores(total).mean_iou
