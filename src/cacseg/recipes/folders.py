"""Folders of runs and of evaluations, read for a report: what is missing is told, not an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cacseg._text import read_csv
from cacseg.engine.inference import Inference, Scale, Tiling
from cacseg.engine.log import METRICS
from cacseg.engine.scores import Scores, read_evaluation, read_scores, scores_of_evaluation
from cacseg.models.saved import BEST, LAST
from cacseg.recipes.compare import FILE, SCORES, describe
from cacseg.recipes.config import Config, DataConfig, ModelConfig, flat
from cacseg.recipes.files import CONFIG, read_config
from cacseg.recipes.protocol import data_to_evaluate
from cacseg.variants import VARIANTS

DIGITS = 18  # a count has fewer


class RunFolder(NamedTuple):
    """What a folder says about a model."""

    path: Path
    data: str
    model: str
    steps: int  # 0 where they are unknown
    facts: dict[str, str]
    settings: dict[str, str]
    scores: Scores | None
    metrics: pd.DataFrame | None
    weights: Path | None  # those that the scores are of
    validation: DataConfig | None
    inference: Inference
    scale: Scale | None
    precision: str  # of inference: "fp32", "bf16", "fp16"
    missing: list[str]  # in words
    damaged: tuple[str, ...] = ()  # of those, what is there and cannot be read


def is_comparison(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read_folder(folder: Path) -> RunFolder:
    """The folder of `cacseg train` or of `cacseg eval -o`."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}. Give the folder of a run, an evaluation or a comparison."
        )
    if (folder / CONFIG).is_file():
        return _read_run(folder)
    if (content := read_evaluation(folder / SCORES)) is not None:
        try:
            return _read_evaluation(folder, content)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            if str(folder) in str(error):  # of a file beside it
                raise
            raise ValueError(f"{folder / SCORES} cannot be read ({type(error).__name__}: {error}).") from error
    raise ValueError(
        f"{folder} holds neither a run ({CONFIG}), nor an evaluation ({SCORES}), nor a comparison ({FILE}). Give the "
        "folder of `cacseg train`, `cacseg eval -o` or `cacseg compare`."
    )


def _read_run(folder: Path) -> RunFolder:
    recipe, config, *_ = read_config(folder)
    scores, metrics, damaged = read_scores(folder / SCORES), None, list[str]()
    missing = []
    if scores is None:
        missing.append(f"There are no scores: {folder / SCORES} is written by the first validation.")
    elif not scores["finished"]:
        missing.append(f"The run is not finished: its scores are those of step {scores['step']} of {scores['steps']}.")
    try:
        if (metrics := read_metrics(folder / METRICS)) is None:
            state = "has no rows yet" if (folder / METRICS).is_file() else "is missing"
            missing.append(f"There are no curves: {folder / METRICS} {state}.")
    except ValueError as error:
        damaged.append(f"There are no curves: {error}")
    named = describe(recipe, config, {})
    found = [folder / name for name in (LAST, BEST) if (folder / name).is_file()]
    inference = Inference(window=config.data.window, stride=config.data.stride)
    return RunFolder(
        folder,
        named.data,
        named.model,
        config.schedule.steps,
        _facts(recipe, config, scores or {}),
        {key: _words(value) for key, value in flat(config)},
        scores,
        metrics,
        found[0] if found else None,
        config.data,
        inference,
        config.data.val_scale,
        "fp32" if config.training.precision == "tf32" else config.training.precision,
        missing + damaged,
        tuple(damaged),
    )


def _read_evaluation(folder: Path, content: Mapping[str, Any]) -> RunFolder:
    data, how, weights = content.get("data", {}), dict(content.get("inference", {})), Path(content["checkpoint"])
    scale = how.pop("scale", None)
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in how.items()}
    values["tiling"] = Tiling(**how["tiling"]) if how.get("tiling") else None
    missing, validation, model = [], None, weights.stem
    try:
        named = data.get("name"), data.get("root"), data.get("split")
        validation = data_to_evaluate(weights, name=named[0], root=named[1], split=named[2])
        validation = validation.model_copy(update={"ignore_index": data.get("ignore_index", validation.ignore_index)})
    except (OSError, ValueError) as error:
        missing.append(f"The data of the evaluation are unknown: {error}")
    facts = {
        "model": str(weights),
        "data": f"{data.get('name')} {data.get('split')}",
        "folder": _words(data.get("root")),
    }
    own = content["outputs"][content["output"]]
    for key, title in (("mean_dice", "mean Dice"), ("mean_boundary_iou", "boundary mIoU")):
        facts |= {} if own.get(key) is None else {f"{title}, {content['output']}": f"{100 * own[key]:.1f}"}
    facts |= {"precision": str(content.get("precision", "fp32")), "device": str(content.get("device", ""))}
    return RunFolder(
        folder,
        str(data.get("name")),
        model,
        0,
        facts,
        {f"inference.{key}": _words(value) for key, value in {**how, "scale": scale}.items()},
        _with_confusion(folder, scores_of_evaluation(content)),
        None,
        weights,
        validation,
        Inference(**values),
        None if scale is None else (scale[0], scale[1]),
        str(content.get("precision", "fp32")),
        missing,
    )


def _with_confusion(folder: Path, scores: Scores) -> Scores:
    """The scores of an evaluation with the counts that lie beside them."""
    for name, output in scores["splits"]["val"]["outputs"].items():
        if (path := folder / f"confusion_{name}.csv").is_file():
            output["confusion"] = _read_confusion(path, len(scores["class_names"]))
    return scores


def _read_confusion(path: Path, count: int) -> list[list[int]]:
    rows = [row[1:] for row in read_csv(path)[1:]]
    whole = len(rows) == count and all(len(row) == count for row in rows)
    if not whole or not all(_is_count(cell) for row in rows for cell in row):
        raise ValueError(
            f"{path} is damaged: it must hold {count} rows of {count} counts. Evaluate again, or remove it."
        )
    return [[int(cell) for cell in row] for row in rows]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < DIGITS


def _facts(recipe: str, config: Config, scores: Scores) -> dict[str, str]:
    model, data, training = config.model, config.data, config.training
    batch = f"{training.batch} crops of {data.crop[1]}x{data.crop[0]}"
    start = model.weights or model.backbone_weights or ("ImageNet weights" if model.pretrained else "random weights")
    facts = {
        "recipe": recipe,
        "model": model.name if model.backbone is None else f"{model.name} on {model.backbone}",
        "classifier": _classifier(model),
        "started from": str(start),
        "data": data.name if data.root is None else f"{data.name} in {data.root}",
        "splits": f"{data.train_split} to train, {data.val_split} to validate",
        "schedule": f"{config.schedule.steps} steps of {batch}",
        "optimiser": f"{config.optimiser.name}, rate {config.optimiser.rate:g}",
        "precision, seed": f"{training.precision}, {training.seed}",
    }
    if all(scores.get(key) is not None for key in ("date", "train_images", "parameters")):
        validated = scores["splits"]["val"]["images"]
        facts["images"] = f"{scores['train_images']} to train, {validated} to validate"
        facts |= {"parameters": f"{scores['parameters']:,}", "date": scores["date"][:16].replace("T", " ") + " UTC"}
    return {**facts, "device": scores.get("device", "")}


def _classifier(model: ModelConfig) -> str:
    if model.classifier == "plain":
        return "plain"
    row = VARIANTS.get(model.variant or "")
    design = {**(row.classifier if row else {}), **model.classifier_arguments}.get("context_design")
    if design == "none":
        return "one classifier for all images"
    if design == "weight":
        return f"one classifier for all images, losses of preset {model.preset}"
    return f"context-aware, preset {model.preset}"


def read_metrics(path: Path) -> pd.DataFrame | None:
    """The rows of metrics.csv; a last line that was cut short takes no part. None without a file or a row.

    A file that is there and holds no such table is a ValueError.
    """
    try:
        header, *rows = read_csv(path) or [[]]
        size = path.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}).") from error
    is_table = header[:1] == ["step"] and len(set(header)) == len(header) and "".join(header).isprintable()
    if size == 0 or (is_table and not rows):
        return None
    whole = [row for row in rows if row and len(row) == len(header) and _is_count(row[0])]
    if not is_table or not whole:
        raise ValueError(
            f"{path} is no {METRICS} of a run ({size} bytes): it must hold a line of names, step first, and rows of "
            "numbers in UTF-8. Copy it again, or remove it."
        )
    table = pd.DataFrame([list(map(_number, row)) for row in whole], columns=header)
    return table.astype({"step": int})


def _number(text: str) -> float:
    """NaN of what is no finite number."""
    try:
        return found if math.isfinite(found := float(text)) else math.nan
    except ValueError:
        return math.nan


def _words(value: Any) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
