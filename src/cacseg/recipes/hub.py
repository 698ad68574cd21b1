"""A folder for the Hugging Face Hub: a model of a run, its card, and one picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cacseg._files import write_file
from cacseg._hub import CARD, CONFIG, PLACEHOLDER
from cacseg.data.pictures import draw_strip, save_picture
from cacseg.engine.inference import Inference, Scale, segment_each
from cacseg.engine.scores import percent
from cacseg.models.model import SegmentationModel
from cacseg.models.saved import BEST, LAST, MODEL, find_weights
from cacseg.recipes.compare import SCORES
from cacseg.recipes.config import DataConfig
from cacseg.recipes.files import is_run
from cacseg.recipes.folders import RunFolder, read_folder
from cacseg.recipes.protocol import data_of_run, open_split

# Of a run's facts; the others hold paths, or are in the card already.
TRAINING = ("recipe", "started from", "splits", "schedule", "optimiser", "precision, seed", "device")


class HubSource(NamedTuple):
    """What a folder for the Hub is made of."""

    weights: Path
    facts: dict[str, Any]  # arguments of `make_card`
    data: DataConfig | None
    inference: Inference
    scale: Scale | None


def is_hub_folder(source: Path) -> bool:
    """Whether `write_folder`, or `save_pretrained`, wrote it."""
    return all((source / name).is_file() for name in (MODEL, CARD, CONFIG))


def read_source(source: Path) -> HubSource:
    """A run's folder (its best model), one of its files, the folder of an evaluation, or a file without a run."""
    evaluation = None
    if source.is_dir() and (source / SCORES).is_file() and not (source / CONFIG).exists():
        evaluation = read_folder(source)
    weights = find_weights(source if evaluation is None or evaluation.weights is None else evaluation.weights)
    run = read_folder(weights.parent) if is_run(weights.parent) else None
    found = evaluation or run
    data = data_of_run(weights) if found is None else found.validation
    if found is None:
        return HubSource(weights, {}, data, Inference(), None)
    facts: dict[str, Any] = {"data": found.data if data is None else f"{found.data} {data.val_split}"}
    facts |= _scores(found, weights.name)
    if run is not None:
        facts["training"] = {key: run.facts[key] for key in TRAINING if run.facts[key]}
        facts["training"]["started from"] = Path(run.facts["started from"]).name
    return HubSource(weights, facts, data, found.inference, found.scale)


def _scores(found: RunFolder, file: str) -> dict[str, Any]:
    """The mIoU that was measured with these weights, and the IoU of each class where it is known; not the oracle's."""
    scores = found.scores
    if scores is None:
        return {}
    outputs = {name: one for name, one in scores["splits"]["val"]["outputs"].items() if name != "oracle"}
    best, last = (scores.get("best") or {}).get("step"), scores.get("step")
    # An evaluation has no steps. Before a run ends, its last model may be newer than its last validation.
    if last is None or (file == LAST and scores["finished"]) or (file == BEST and best == last):
        means = {name: percent(one, "mean_iou") for name, one in outputs.items()}
        classes = {name: [None if iou is None else 100.0 * iou for iou in one["iou"]] for name, one in outputs.items()}
        step = last
    elif file == BEST and found.metrics is not None:  # of earlier validations the means were kept
        rows = found.metrics[found.metrics["step"] == best]
        columns = {name: rows[key].dropna() for name in outputs if (key := f"val/{name}_mean_iou") in rows}
        means = {name: 100.0 * column.iloc[-1] for name, column in columns.items() if len(column)}
        classes, step = {}, best
    else:
        return {}
    known = {name: float(value) for name, value in means.items() if value is not None}
    remark = "" if step is None else f", at step {step} of {scores['steps']}"
    if file == BEST and step is not None:
        remark += ", the validation with the highest mIoU"
    return {"scores": known, "class_scores": classes, "scored": remark}


def draw_example(
    model: SegmentationModel, source: HubSource, path: Path, *, root: str | None = None, device: torch.device
) -> str:
    """Draws input | truth | plain | context of the first validation image into a file; returns the image's name."""
    if source.data is None:
        raise ValueError("nothing says on what data the model was validated")
    data = open_split(source.data if root is None else source.data.model_copy(update={"root": root}), "val")
    sample, names = data.read(0), list(dict.fromkeys(("plain", model.default_output)))
    how: Any = {"inference": source.inference, "scale": source.scale, "device": device}
    masks = segment_each(model.to(device), sample.image, names, **how)
    answers = dict(zip(names, masks, strict=True))
    save_picture(
        path, draw_strip(sample.picture, sample.labels, answers, data.palette, data.ignore_index), overwrite=True
    )
    return data.image_name(0)


def write_folder(
    folder: Path,
    model: SegmentationModel,
    source: HubSource,
    *,
    name: str | None,
    license: str | None,
    picture: str | None,
) -> None:
    """model.safetensors, config.json with what `cacseg predict` must know of the data, and the card.

    `picture` is the name of one that is in the folder already.
    """
    (folder / CARD).unlink(missing_ok=True)  # which save_pretrained would keep
    facts = {**source.facts, "name": name or PLACEHOLDER, "license": license, "picture": picture}
    model.save_pretrained(folder, model_card_kwargs=facts)
    if source.data is not None:
        content = json.loads((folder / CONFIG).read_text())
        content["data"] = source.data.model_dump(mode="json", exclude={"root"})
        write_file(folder / CONFIG, json.dumps(content, indent=2) + "\n")
