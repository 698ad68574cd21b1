"""Writes the results of an evaluation into a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cacseg._files import write_file
from cacseg.engine.evaluate import Evaluation
from cacseg.reports.tables import as_json, class_csv, confusion_csv, image_csv


def write_evaluation(folder: Path, found: Evaluation, facts: Mapping[str, Any]) -> None:
    """scores.json, classes.csv, images.csv and confusion_*.csv; `facts` join the scores: how the evaluation was run."""
    write_file(folder / "scores.json", json.dumps({**facts, **as_json(found)}, indent=2) + "\n")
    write_file(folder / "classes.csv", class_csv(found))
    write_file(folder / "images.csv", image_csv(found))
    for name in found.counts:
        write_file(folder / f"confusion_{name}.csv", confusion_csv(found, name))
