"""Scores a model on the images of one of several workers, which share a folder and nothing else."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cacseg._files import write_file
from cacseg.data.open import stamp_of_sample
from cacseg.data.sample import SegmentationData
from cacseg.engine.evaluate import Evaluation, ImageCounts, ImageResult, Progress, check_labelled, evaluate
from cacseg.metrics import Tally, tally
from cacseg.models.model import SegmentationModel
from cacseg.runtime.inputs import Input
from cacseg.runtime.journal import Journal
from cacseg.runtime.shards import Shard

RECORD = "eval.json"


def evaluate_shared(
    model: SegmentationModel,
    data: SegmentationData,
    folder: Path,
    shard: Shard,
    settings: Mapping[str, Any],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **how: Any,
) -> Evaluation | None:
    """Counts the worker's images that are not counted yet, or whose files changed since, into images/NAME.npz each.

    The last worker, with which every image is counted, returns the whole evaluation, the others None. Counts are
    integers, so it equals that of one process. `how` goes to `evaluate`, `settings` are those that all workers share.
    """
    names = [data.image_name(index) for index in range(len(data))]

    def path_of(name: str) -> Path:
        return folder / "images" / f"{name}.npz"

    with Journal(folder, settings, overwrite=overwrite, shard=shard, record=RECORD) as journal:
        own = [index for index, name in enumerate(names) if shard.owns(name)]
        stamps = {index: stamp_of_sample(data, index) for index in own}  # from before any image is read
        places = {names[index]: index for index in own}

        def is_counted(index: int) -> bool:
            row = journal.rows.get(names[index])
            return row is not None and row[4:] == tuple(stamps[index].values()) and path_of(names[index]).exists()

        todo = [index for index in own if not is_counted(index)]

        def keep(one: ImageCounts) -> None:
            path = path_of(one.name)
            write_file(path, _pack(one))
            journal.add(Input(path, one.name), one.size, stamps[places[one.name]])

        def update(done: int, counts: Mapping[str, Tensor]) -> None:
            if progress is not None:
                progress(len(own) - len(todo) + done, counts)

        if todo:
            evaluate(model, data, places=todo, keep=keep, progress=update, **how)
    if not journal.is_last or not all(path_of(name).exists() for name in names):
        return None
    return _merge(model, data, [_read(path_of(name), name, model.num_classes) for name in names])


def _merge(model: SegmentationModel, data: SegmentationData, images: list[ImageCounts]) -> Evaluation:
    outputs, near = images[0].counts, images[0].near
    counts = {name: sum((one.counts[name] for one in images[1:]), outputs[name]) for name in outputs}
    check_labelled(counts, data)
    results = (
        ImageResult(
            place, one.name, one.size, {name: Tally(*torch.stack(tally(one.counts[name])).int()) for name in counts}
        )
        for place, one in enumerate(images)
    )
    boundaries = {name: Tally(*sum((one.near[name] for one in images[1:]), near[name])) for name in near}
    return Evaluation(tuple(data.class_names), counts, tuple(results), model.default_output, boundaries)


def _pack(one: ImageCounts) -> bytes:
    """Of each confusion matrix the cells that are not 0."""
    arrays = {"size": np.array(one.size)}
    for name, counts in one.counts.items():
        cells = counts.flatten().nonzero().flatten()
        arrays[f"counts.{name}"] = torch.stack([cells, counts.flatten()[cells]]).numpy()
    arrays |= {f"near.{name}": counts.numpy() for name, counts in one.near.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # allow_pickle has another type
    return buffer.getvalue()


def _read(path: Path, name: str, num_classes: int) -> ImageCounts:
    content = path.read_bytes()
    try:
        return _unpack(content, name, num_classes)
    except Exception as error:  # of many types, numpy's and those of zip files; their words advise unpickling
        raise ValueError(
            f"{path} is damaged or no file of counts ({len(content)} bytes). Remove it, and run any of the workers "
            "again."
        ) from error


def _unpack(content: bytes, name: str, num_classes: int) -> ImageCounts:
    found: dict[str, dict[str, Tensor]] = {"counts": {}, "near": {}}
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        height, width = file["size"].tolist()
        for key in file.files:
            kind, _, output = key.partition(".")
            if kind in found:
                found[kind][output] = torch.from_numpy(file[key])
    for output, (cells, values) in found["counts"].items():
        counts = torch.zeros(num_classes**2, dtype=torch.long)
        counts[cells] = values
        found["counts"][output] = counts.view(num_classes, num_classes)
    return ImageCounts(name, (height, width), found["counts"], found["near"])
