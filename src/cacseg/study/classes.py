"""The IoU of each class: where an arm gains and where it loses. One tidy CSV beside that of the means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cacseg.study.results import AXES, Cell, Record, cell_of, read_records, read_rows, write_rows
from cacseg.study.summary import check_comparable, mean_of
from cacseg.study.tables import TextTable

CSV = "classes.csv"
COLUMNS = ("study", "data", "model", "optimiser", "steps", "arm", "seed", "answer", "own", "class", "iou")


def class_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One row for each class in each answer of each job that ended, in percent; none where a class is nowhere."""
    found = []
    for record in records:
        if record["status"] == "failed":
            continue
        job = {name: record[name] for name in ("study", *AXES.values())}
        for answer, values in record["answers"].items():
            own = "yes" if answer == record["default_output"] else "no"
            for name, iou in zip(record["class_names"], values["iou"], strict=True):
                if iou is not None:
                    found.append({**job, "answer": answer, "own": own, "class": name, "iou": iou})
    return found


def write_classes(folder: Path, records: Sequence[Record]) -> None:
    """classes.csv of the folder, whole or as it was."""
    write_rows(folder / CSV, COLUMNS, class_rows(sorted(records, key=lambda record: record["id"])))


def read_classes(sources: Iterable[str | Path]) -> list[dict[str, Any]]:
    """The rows of folders of studies, or of their classes.csv; what is in two of them counts once."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in map(Path, sources):
        for row in _read_csv(path) if path.suffix == ".csv" else class_rows(_comparable(path)):
            key = tuple(row[name] for name in COLUMNS if name != "iou")
            if found.setdefault(key, row)["iou"] != row["iou"]:
                job = ".".join(str(row[name]) for name in AXES.values())
                raise ValueError(
                    f"{path} has other scores of {job} than what came before it: such results cannot be put together. "
                    "Give one of them."
                )
    return list(found.values())


def _comparable(folder: Path) -> list[Record]:
    records = read_records([folder])
    check_comparable(records)
    return records


def _read_csv(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line, row in enumerate(read_rows(path, COLUMNS, f"{CSV} of a study"), 2):
        try:
            numbers = {"steps": int(row["steps"]), "seed": int(row["seed"]), "iou": float(row["iou"])}
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}. Take the file that `cacseg study` wrote.") from error
        found.append({**row, **numbers})
    return found


def classes_tables(
    rows: Sequence[dict[str, Any]], baseline: str | None = None, *, differences: bool = False
) -> list[TextTable]:
    """One table for each cell: the mean IoU over seeds of each class, in each arm's own answer; the baseline first.

    With `differences` each arm also has how far it is from the baseline at equal seeds.
    """
    own = [row for row in rows if row["own"] == "yes"]
    if not own:
        raise ValueError("there is nothing to compare: no job has ended well.")
    if baseline is not None and baseline not in (arms := dict.fromkeys(row["arm"] for row in own)):
        raise ValueError(f"there is no result of the arm {baseline!r}. There is {', '.join(arms)}: --baseline NAME.")
    baseline = baseline or "plain"
    cells: dict[Cell, dict[str, dict[str, dict[int, float]]]] = {}
    for row in own:
        of_class = cells.setdefault(cell_of(row), {}).setdefault(row["class"], {})
        of_class.setdefault(row["arm"], {})[row["seed"]] = row["iou"]
    tables = []
    for cell, classes in sorted(cells.items()):
        there = sorted({arm for values in classes.values() for arm in values}, key=lambda arm: (arm != baseline, arm))
        means = [
            [name, *(_mean(values.get(arm), values.get(baseline) if differences else None) for arm in there)]
            for name, values in classes.items()
        ]
        title = f"IoU in percent, {', '.join(str(part) for part in cell)} steps"
        tables.append(TextTable(title, ["class", *there], means, words=1))
    return tables


def _mean(by_seed: dict[int, float] | None, base: dict[int, float] | None) -> str:
    """Of one arm, and how far it is from the baseline where that is given and another arm."""
    if by_seed is None:
        return ""
    text = f"{mean_of(list(by_seed.values())).value:.1f}"
    pairs = [value - base[seed] for seed, value in by_seed.items() if seed in base] if base is not None else []
    if not pairs or by_seed is base:
        return text
    fewer = f", {len(pairs)} seeds" if len(pairs) != len(by_seed) else ""
    difference = mean_of(pairs)
    error = "" if difference.error is None else f" ± {difference.error:.1f}"
    return f"{text} ({difference.value:+.1f}{error}{fewer})"
