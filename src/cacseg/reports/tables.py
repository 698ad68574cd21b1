"""Scores as tables for people (percent) and as CSV and JSON for machines (0 to 1, empty or null where undefined)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from cacseg._files import to_csv
from cacseg.engine.evaluate import Evaluation
from cacseg.metrics import Scores, or_none, tally

TITLES = {
    "mean_iou": "mIoU",
    "mean_dice": "mean Dice",
    "mean_boundary_iou": "boundary mIoU",
    "mean_accuracy": "mean accuracy",
    "pixel_accuracy": "pixel accuracy",
}
CLASS_SCORES = ("iou", "dice", "boundary_iou", "accuracy")


def percent(value: float) -> str:
    """72.4; a dash where there is no score."""
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def summary_table(results: Mapping[str, Scores], title: str = "") -> Table:
    """A row for each named result: mIoU, Dice, accuracies; boundary mIoU where it was counted."""
    return rich_table(title, *_summary(results), no_wrap=1)


def class_table(evaluation: Evaluation) -> Table:
    """A row for each class: its share of the labelled pixels, its IoU by each output, and its other scores."""
    return rich_table("Scores of each class", *_classes(evaluation))


def rich_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1, no_wrap: int | None = None
) -> Table:
    """The first `words` columns are words, the others numbers; from the column `no_wrap` on lines are not broken."""
    table = Table(title=escape(title) or None)
    for place, name in enumerate(header):
        keep = no_wrap is not None and place >= no_wrap
        table.add_column(escape(name), justify="left" if place < words else "right", no_wrap=keep)
    for row in rows:
        table.add_row(*map(escape, row))  # a class may be called "car [parked]"
    return table


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Everything but the single images; undefined scores are None."""
    outputs = {}
    for name, counts in evaluation.counts.items():
        found, sums = evaluation.scores(name), tally(counts)
        outputs[name] = {
            **{key: or_none(getattr(found, key)) for key in TITLES},
            "classes": [
                {
                    "name": class_name,
                    **{key: or_none(getattr(found, key)[k].item()) for key in CLASS_SCORES},
                    "labelled_pixels": int(sums.labelled[k]),
                    "predicted_pixels": int(sums.predicted[k]),
                }
                for k, class_name in enumerate(evaluation.class_names)
            ],
        }
    return {"images": len(evaluation.images), "output": evaluation.output, "outputs": outputs}


def image_csv(evaluation: Evaluation) -> str:
    """A row for each image, the worst (by the model's default output) first."""
    names = list(evaluation.counts)
    rows = []
    for image in evaluation.worst_first():
        found = [image.scores(name) for name in names]
        labelled = int(image.tallies[names[0]].labelled.sum())
        scores = [_text(one.mean_iou) for one in found] + [_text(one.pixel_accuracy) for one in found]
        rows.append([image.place, image.name, image.size[1], image.size[0], labelled, *scores])
    header = ["index", "image", "width", "height", "labelled_pixels"]
    header += [f"mean_iou_{name}" for name in names] + [f"pixel_accuracy_{name}" for name in names]
    return to_csv([header, *rows])


def class_csv(evaluation: Evaluation) -> str:
    """A row for each class."""
    names = list(evaluation.counts)
    found = [evaluation.scores(name) for name in names]
    labelled = tally(evaluation.counts[names[0]]).labelled.tolist()
    columns = {
        f"{key}_{name}": getattr(one, key) for key in CLASS_SCORES for name, one in zip(names, found, strict=True)
    }
    header = ["index", "class", "labelled_pixels", *columns]
    rows = [
        [k, name, labelled[k], *(_text(values[k].item()) for values in columns.values())]
        for k, name in enumerate(evaluation.class_names)
    ]
    return to_csv([header, *rows])


def confusion_csv(evaluation: Evaluation, output: str) -> str:
    """The counts: a row for each label, a column for each prediction."""
    rows = zip(evaluation.class_names, evaluation.counts[output].tolist(), strict=True)
    header = ["labelled \\ predicted", *evaluation.class_names]
    return to_csv([header, *([name, *counts] for name, counts in rows)])


def _summary(results: Mapping[str, Scores]) -> tuple[list[str], list[list[str]]]:
    """Header and rows. A score that no result has, such as one that was not counted, is left out."""
    keys = [key for key in TITLES if not all(math.isnan(getattr(found, key)) for found in results.values())]
    rows = [[name, *(percent(getattr(found, key)) for key in keys)] for name, found in results.items()]
    return ["", *(TITLES[key] for key in keys)], rows


def _classes(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Header and rows: class, share of pixels, IoU of each output, and the other scores of the model's own output."""
    own, output = evaluation.scores(), evaluation.output
    labelled = tally(evaluation.counts[output]).labelled.double()
    shares = [f"{100 * share:.2f}" for share in (labelled / labelled.sum()).tolist()]
    columns = {f"IoU {name}": evaluation.scores(name).iou for name in evaluation.counts}
    columns |= {f"Dice {output}": own.dice}
    if evaluation.boundaries:
        columns |= {f"boundary IoU {output}": own.boundary_iou}
    columns |= {f"accuracy {output}": own.accuracy}
    cells = [[percent(value) for value in values.tolist()] for values in columns.values()]
    rows = zip(evaluation.class_names, shares, *cells, strict=True)
    return ["class", "pixels", *columns], [list(row) for row in rows]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (cells[0], ruler, *cells[1:])]


def _text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6f}"
