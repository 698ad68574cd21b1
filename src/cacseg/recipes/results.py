"""The scores of comparisons as tidy tables, one row a score; folders made on several machines are joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cacseg.engine.scores import COST, MEASURES, read_scores, score_rows
from cacseg.recipes.compare import FILE, RUNS, SCORES, Settings, check_alike, is_finished, read_comparison, runs_of

RUN = ("data", "model", "arm", "steps", "seed")
# In percent but for counts. What differs from one repetition to the next is in the last table alone.
RESULTS = (*RUN, "output", "own", "split", "images", *MEASURES)
CLASSES = (*RUN, "output", "own", "split", "class", "labelled", "iou")
COSTS = (*RUN, "best_step", "best_mean_iou", *COST)


class Results(NamedTuple):
    """Of all finished runs, in the order of the arms."""

    results: pd.DataFrame  # a row for each output of each run on each split
    classes: pd.DataFrame  # and for each class of these
    costs: pd.DataFrame  # a row for each run
    arms: list[str]  # the first is the baseline
    unfinished: list[str]  # folders of runs that have begun


def read_results(folders: Sequence[Path]) -> Results:
    """What the runs in the folders of comparisons scored at their ends."""
    arms: dict[tuple[str, str], dict[str, Settings]] = {}
    runs: dict[tuple[str, str], list[Any]] = {}
    names: dict[str, None] = {}
    for folder in folders:
        comparison = read_comparison(folder)
        key = comparison.data, comparison.model
        names |= dict.fromkeys(comparison.arms)
        arms.setdefault(key, {}).update(comparison.arms)
        there = [(folder / RUNS / run.name, run) for run in runs_of(folder)]
        if lost := [str(path) for path, run in there if run.arm not in comparison.arms]:
            raise ValueError(f"{folder / FILE} must have the arms of all runs; it has none of {lost[0]}.")
        runs.setdefault(key, []).extend(there)
    results: list[dict[str, Any]] = []
    classes: list[dict[str, Any]] = []
    costs: list[dict[str, Any]] = []
    unfinished: list[str] = []
    seen: dict[tuple[Any, ...], tuple[Path, Any]] = {}
    labels: dict[tuple[Any, ...], tuple[Path, Any]] = {}
    for key, found in runs.items():
        check_alike(found, arms[key])
        for path, run in found:
            if not is_finished(path):
                unfinished.append(str(path))
                continue
            scores = read_scores(path / SCORES)
            assert scores is not None  # it is finished
            about = dict(zip(RUN, (*key, run.arm, run.steps, run.seed), strict=True))
            if (same := tuple(about.values())) in seen:
                if seen[same][1] != scores["splits"]:
                    raise ValueError(f"{seen[same][0]} and {path} are the same run with other scores. Leave one out.")
                continue
            seen[same] = path, scores["splits"]
            if validated := scores["splits"].get("val"):
                data = [scores["class_names"], validated["images"], validated["labelled_pixels"]]
                first, before = labels.setdefault(key[:1], (path, data))
                if before != data:
                    raise ValueError(
                        f"{first / SCORES} and {path / SCORES} are scores of different images and cannot be compared."
                    )
            rows = score_rows(about, scores)
            results += rows.results
            classes += rows.classes
            costs.append(rows.cost)
    order = {name: place for place, name in enumerate(names)}
    tables = (
        pd.DataFrame(rows, columns=list(columns))
        for rows, columns in ((results, RESULTS), (classes, CLASSES), (costs, COSTS))
    )
    by = ["data", "model", "steps", "arm", "seed"]
    scored, of_classes, spent = (
        table.sort_values(
            by, key=lambda one: one.map(order) if one.name == "arm" else one, kind="stable", ignore_index=True
        )
        for table in tables
    )
    return Results(scored, of_classes, spent, [name for name in names if name in set(scored["arm"])], unfinished)
