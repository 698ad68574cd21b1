"""What scores.json holds, of a run and of an evaluation, as rows of tidy tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cacseg._text import read_json, shorten

COST = ("step", "seconds", "peak_mib", "device", "parameters", "train_images", "date")
MEASURES = ("mean_iou", "mean_accuracy", "pixel_accuracy")
REMEDY = "Write it anew: `cacseg train --resume` for a run, `cacseg eval -o` for an evaluation."
Scores = Mapping[str, Any]  # the content of a run's scores.json


_Share = Annotated[float, Field(ge=0.0, le=1.0)] | None
_Count = Annotated[int, Field(ge=0, lt=2**62)]
_Number = Annotated[float, Field(ge=0.0)] | None


class _Part(BaseModel):
    """Of JSON, each value of its type; more may be there."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Cost(_Part):
    seconds: _Number = None
    peak_mib: _Number = None
    device: str | None = None
    parameters: _Count | None = None
    date: str | None = None


class _Means(_Part):
    mean_iou: _Share
    mean_accuracy: _Share
    pixel_accuracy: _Share


class _Output(_Means):
    iou: list[_Share]
    confusion: list[list[_Count]] | None = None


class _Split(_Part):
    images: _Count
    labelled_pixels: list[_Count]
    outputs: dict[str, _Output]


class _Best(_Part):
    step: _Count | None = None
    mean_iou: _Share = None


class _RunScores(_Cost):
    """scores.json of a run."""

    output: str
    class_names: list[str]
    splits: dict[str, _Split]
    finished: bool
    step: _Count
    steps: _Count
    best: _Best | None = None
    train_images: _Count | None = None


class _Class(_Part):
    name: str
    iou: _Share
    labelled_pixels: _Count


class _EvaluatedOutput(_Means):
    classes: list[_Class]


class _EvaluationScores(_Cost):
    """scores.json of an evaluation."""

    checkpoint: str
    images: _Count
    output: str
    outputs: dict[str, _EvaluatedOutput]
    data: dict[str, Any] = {}
    inference: dict[str, Any] = {}


class ScoreRows(NamedTuple):
    """In percent but for counts."""

    results: list[dict[str, Any]]  # a row for each output on each split
    classes: list[dict[str, Any]]  # and for each class of these
    cost: dict[str, Any]


def read_scores(path: Path) -> Scores | None:
    """The scores.json of a run, checked; None where there is none."""
    if not path.exists():
        return None
    content = read_json(path, dict, remedy=REMEDY)
    _check(_RunScores, content, path)
    count, outputs = len(content["class_names"]), content["splits"].get("val", {}).get("outputs", {})
    for split in content["splits"].values():
        lists = [split["labelled_pixels"], *(one["iou"] for one in split["outputs"].values())]
        tables = [one["confusion"] for one in split["outputs"].values() if one.get("confusion") is not None]
        lists += [row for table in tables for row in (table, *table)]
        if any(len(one) != count for one in lists):
            raise ValueError(f"{path} is damaged: every list must have {count} entries, one a class. {REMEDY}")
    for needed in (content["output"], "plain"):
        if needed not in outputs:
            raise ValueError(f"{path} is damaged: splits.val.outputs must have {shorten(needed)}. {REMEDY}")
    return content


def read_evaluation(path: Path) -> Mapping[str, Any] | None:
    """The scores.json of an evaluation, checked; None where there is none."""
    if not path.exists():
        return None
    content = read_json(path, dict, remedy=REMEDY)
    _check(_EvaluationScores, content, path)
    names = [[one["name"] for one in found["classes"]] for found in content["outputs"].values()]
    if content["output"] not in content["outputs"] or any(one != names[0] for one in names):
        raise ValueError(f"{path} is damaged: its outputs must have {shorten(content['output'])}. {REMEDY}")
    return content


def _check(kind: type[_Part], content: dict[str, Any], path: Path) -> None:
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} is damaged: its text holds half a character ({error}). {REMEDY}") from error
    try:
        kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where, got = ".".join(map(str, first["loc"])), shorten(first["input"])
        raise ValueError(f"{path} is damaged: {where}: {first['msg'].lower()}; got {got}. {REMEDY}") from None


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
