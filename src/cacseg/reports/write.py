"""Writes the results of an evaluation into a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cacseg._files import write_file
from cacseg.data.pictures import save_picture
from cacseg.data.sample import SegmentationData
from cacseg.engine.evaluate import Evaluation
from cacseg.engine.inference import Inference, Scale, segment
from cacseg.models.model import SegmentationModel
from cacseg.reports.pictures import comparison_sheet, confusion_picture
from cacseg.reports.tables import as_json, class_csv, confusion_csv, image_csv, markdown, percent


def write_evaluation(
    folder: Path,
    found: Evaluation,
    facts: Mapping[str, Any],
    model: SegmentationModel,
    data: SegmentationData,
    *,
    inference: Inference,
    scale: Scale | None,
    device: torch.device,
    precision: str = "fp32",
    worst: int = 8,
) -> None:
    """scores.json, report.md, classes.csv, images.csv, confusion_*.csv and *.png, worst.png.

    `facts` join the scores in scores.json: how the evaluation was run. The worst images go through the model once more:
    their predictions were not kept.
    """
    title = f"{data.name} {data.split}"
    write_file(folder / "scores.json", json.dumps({**facts, **as_json(found)}, indent=2) + "\n")
    write_file(folder / "report.md", markdown(found, title))
    write_file(folder / "classes.csv", class_csv(found))
    write_file(folder / "images.csv", image_csv(found))
    for name, counts in found.counts.items():
        write_file(folder / f"confusion_{name}.csv", confusion_csv(found, name))
        heading = f"{title}, {name}: mIoU {percent(found.scores(name).mean_iou)}"
        write_file(folder / f"confusion_{name}.png", confusion_picture(counts, found.class_names, heading))
    chosen = found.worst_first()[:worst]
    if chosen:
        samples = [data.read(image.place) for image in chosen]
        was_training = model.training
        model.eval()
        masks = [
            segment(model, one.image, inference=inference, scale=scale, device=device, precision=precision)
            for one in samples
        ]
        model.train(was_training)
        names = [f"{image.name}   mIoU {percent(image.scores(found.output).mean_iou)}" for image in chosen]
        sheet = comparison_sheet(samples, names, [masks], [found.output], data)
        save_picture(folder / "worst.png", sheet, overwrite=True)
