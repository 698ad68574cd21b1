"""Scores as tables for people (percent) and as CSV and JSON for machines (0 to 1, empty or null where undefined)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from cacseg.engine.evaluate import Evaluation
from cacseg.metrics import Scores, tally

TITLES = {"mean_iou": "mIoU", "mean_accuracy": "mean accuracy", "pixel_accuracy": "pixel accuracy"}


def percent(value: float) -> str:
    """72.4; a dash where there is no score."""
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def summary_table(results: Mapping[str, Scores], title: str = "") -> Table:
    """A row for each named result: mIoU, mean accuracy, pixel accuracy."""
    table = Table(title=escape(title) or None)
    table.add_column("")
    for name in TITLES.values():
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in results.items():
        table.add_row(escape(name), *(percent(getattr(found, key)) for key in TITLES))
    return table


def class_table(evaluation: Evaluation) -> Table:
    """A row for each class: its share of the labelled pixels, its IoU by each output, and its accuracy."""
    table = Table(title="IoU of each class")
    table.add_column("class")
    table.add_column("pixels %", justify="right")
    for name in evaluation.counts:
        table.add_column(name, justify="right")
    table.add_column(f"accuracy\n({evaluation.output})", justify="right")
    for name, *cells in _class_cells(evaluation):
        table.add_row(escape(name), *cells)  # a class may be called "car [parked]"
    return table


def markdown(evaluation: Evaluation, title: str) -> str:
    """The summary and the classes as a page of Markdown."""
    lines = [f"# {title}", "", f"{len(evaluation.images)} images. Percent; '-' where a class does not occur.", ""]
    rows = [[name, *(percent(getattr(evaluation.scores(name), key)) for key in TITLES)] for name in evaluation.counts]
    lines += markdown_table(["", *TITLES.values()], rows)
    lines += ["", "## Classes", ""]
    header = ["class", "pixels", *(f"IoU {name}" for name in evaluation.counts), f"accuracy {evaluation.output}"]
    lines += markdown_table(header, _class_cells(evaluation))
    return "\n".join(lines) + "\n"


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Everything but the single images; undefined scores are None."""
    outputs = {}
    for name, counts in evaluation.counts.items():
        found, sums = evaluation.scores(name), tally(counts)
        outputs[name] = {
            **{key: _number(getattr(found, key)) for key in TITLES},
            "classes": [
                {
                    "name": class_name,
                    "iou": _number(found.iou[k].item()),
                    "accuracy": _number(found.accuracy[k].item()),
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
        rows.append(
            [
                image.place,
                image.name,
                image.size[1],
                image.size[0],
                labelled,
                *(_text(one.mean_iou) for one in found),
                *(_text(one.pixel_accuracy) for one in found),
            ]
        )
    header = ["index", "image", "width", "height", "labelled_pixels"]
    header += [f"mean_iou_{name}" for name in names] + [f"pixel_accuracy_{name}" for name in names]
    return to_csv(header, rows)


def class_csv(evaluation: Evaluation) -> str:
    """A row for each class."""
    names = list(evaluation.counts)
    found = [evaluation.scores(name) for name in names]
    labelled = tally(evaluation.counts[names[0]]).labelled.tolist()
    rows = []
    for k, name in enumerate(evaluation.class_names):
        iou, accuracy = (
            [_text(values[k].item()) for values in kind] for kind in zip(*(one[:2] for one in found), strict=True)
        )
        rows.append([k, name, labelled[k], *iou, *accuracy])
    header = ["index", "class", "labelled_pixels"]
    return to_csv(header + [f"iou_{name}" for name in names] + [f"accuracy_{name}" for name in names], rows)


def confusion_csv(evaluation: Evaluation, output: str) -> str:
    """The counts: a row for each label, a column for each prediction."""
    rows = zip(evaluation.class_names, evaluation.counts[output].tolist(), strict=True)
    return to_csv(["labelled \\ predicted", *evaluation.class_names], [[name, *counts] for name, counts in rows])


def to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Comma-separated, quoted where need be, one line each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _class_cells(evaluation: Evaluation) -> list[list[str]]:
    found = {name: evaluation.scores(name) for name in evaluation.counts}
    labelled = tally(evaluation.counts[evaluation.output]).labelled.double()
    shares = (labelled / labelled.sum()).tolist()
    accuracy = found[evaluation.output].accuracy
    return [
        [
            name,
            f"{100 * shares[k]:.2f}",
            *(percent(one.iou[k].item()) for one in found.values()),
            percent(accuracy[k].item()),
        ]
        for k, name in enumerate(evaluation.class_names)
    ]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (cells[0], ruler, *cells[1:])]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6f}"
