"""Reads folders of runs for a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cacseg.recipes.folders import RunFolder, read_folder
from cacseg.reports.page import Report, RunRecord


def read_runs(folders: Sequence[Path]) -> tuple[Report, dict[str, RunFolder]]:
    """The report of runs or evaluations without images, and the folders by name."""
    found = [read_folder(folder) for folder in folders]
    names = [one.path.resolve().name for one in found]
    if len(set(names)) < len(names):
        names = [str(one.path) for one in found]
    if len(set(names)) < len(names):
        raise ValueError(f"runs must be different; got {', '.join(names)}.")
    data, model, steps = (
        list(dict.fromkeys(values)) for values in zip(*((one.data, one.model, one.steps) for one in found), strict=True)
    )
    cell = (
        " and ".join(data),
        model[0] if len(model) == 1 else "several models",
        steps[0] if len(steps) == 1 else 0,
    )
    notes = [
        f"{name}: {line}" if len(found) > 1 else line
        for name, one in zip(names, found, strict=True)
        for line in one.missing
    ]
    scored = [one.scores for one in found if one.scores is not None]
    for one in scored[1:]:
        if one["class_names"] != scored[0]["class_names"]:
            raise ValueError(
                f"runs must have the same classes to be compared; {names[0]} has {len(scored[0]['class_names'])}, "
                f"another {len(one['class_names'])} or other names. Write a report for each."
            )
        if one["splits"]["val"]["labelled_pixels"] != scored[0]["splits"]["val"]["labelled_pixels"]:
            notes.append("The runs were scored on different images: their differences say little.")
    records = [
        RunRecord(name, cell, one.facts, one.settings, one.scores, one.metrics)
        for name, one in zip(names, found, strict=True)
    ]
    title = f"{names[0]}: {model[0]} on {data[0]}" if len(found) == 1 else f"{', '.join(names)} on {cell[0]}"
    damaged = [words for one in found for words in one.damaged]
    return Report(title, records, notes=notes, damaged=damaged), dict(zip(names, found, strict=True))
