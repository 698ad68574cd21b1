"""What scores.json holds, of a run and of an evaluation, as rows of tidy tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

COST = ("step", "seconds", "peak_mib", "device", "parameters", "train_images", "date")
MEASURES = ("mean_iou", "mean_accuracy", "pixel_accuracy")
Scores = Mapping[str, Any]  # the content of a run's scores.json


class ScoreRows(NamedTuple):
    """In percent but for counts."""

    results: list[dict[str, Any]]  # a row for each output on each split
    classes: list[dict[str, Any]]  # and for each class of these
    cost: dict[str, Any]


def score_rows(about: Mapping[str, Any], scores: Scores) -> ScoreRows:
    """The rows of one run; `about` joins each of them."""
    results, classes = [], []
    for split, found in scores["splits"].items():
        total = sum(found["labelled_pixels"]) or 1
        for output, of_output in found["outputs"].items():
            row = {**about, "split": split, "output": output, "own": "yes" if output == scores["output"] else "no"}
            measures = {name: percent(of_output, name) for name in MEASURES}
            results.append({**row, "images": found["images"], **measures})
            of_classes = zip(scores["class_names"], found["labelled_pixels"], of_output["iou"], strict=True)
            for name, labelled, iou in of_classes:
                share = 100.0 * labelled / total
                classes.append({**row, "class": name, "labelled": share, "iou": None if iou is None else 100.0 * iou})
    best = scores.get("best") or {}
    cost = {
        **about,
        **{name: scores.get(name) for name in COST},
        "best_step": best.get("step"),
        "best_mean_iou": percent(best, "mean_iou"),
    }
    return ScoreRows(results, classes, cost)


def scores_of_evaluation(content: Mapping[str, Any]) -> Scores:
    """The scores.json of an evaluation in the form of a run's."""
    first = content["outputs"][content["output"]]["classes"]
    outputs = {
        name: {**{key: found[key] for key in MEASURES}, "iou": [one["iou"] for one in found["classes"]]}
        for name, found in content["outputs"].items()
    }
    split = {
        "images": content["images"],
        "labelled_pixels": [one["labelled_pixels"] for one in first],
        "outputs": outputs,
    }
    return {
        **{key: content.get(key) for key in ("output", *COST)},
        "class_names": [one["name"] for one in first],
        "splits": {"val": split},
    }


def percent(scores: Mapping[str, Any], name: str) -> float | None:
    value = scores.get(name)
    return None if value is None else 100.0 * value
