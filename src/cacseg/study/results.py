"""The records of a study: one JSON file for each job, and one tidy CSV of them all."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cacseg._files import write_file
from cacseg.recipes.files import JOB_FORMAT
from cacseg.study.file import check_known

Record = dict[str, Any]  # what `study.job.run_job` gives

JOBS, CSV = "jobs", "results.csv"
# What a study goes over, and where a record says it.
AXES = {"data": "data", "models": "model", "optimisers": "optimiser", "steps": "steps", "arms": "arm", "seeds": "seed"}
_FIRST_COLUMNS = (
    *("study", "baseline", "data", "model", "optimiser", "rate", "steps", "batch", "arm", "seed", "answer", "own"),
    *("miou", "mean_accuracy", "pixel_accuracy", "images", "seconds", "peak_mib", "status", "digest"),
)
# Came later: what is compared must share the first two; where and when a job ran.
_LATER_COLUMNS = ("shared", "data_digest", "precision", "device", "torch", "finished")
COLUMNS = (*_FIRST_COLUMNS, *_LATER_COLUMNS)
_OTHERS = {  # of files that are taken for each other, by their last column
    "iou": " It has the IoU of classes: cacseg study classes.",
    **dict.fromkeys((_FIRST_COLUMNS[-1], COLUMNS[-1]), " It has no IoU of classes: cacseg study table."),
}
_NEEDED = ("id", "study", "baseline", *AXES.values(), "status", "digest", "config")  # in every record


class Cell(NamedTuple):
    """Where arms are compared: all else is equal there."""

    data: str
    model: str
    optimiser: str
    steps: int


def cell_of(record: Record) -> Cell:
    """Of a record, or a row of a CSV."""
    return Cell(*(record[name] for name in Cell._fields))


def record_path(folder: Path, job_id: str) -> Path:
    return folder / JOBS / f"{job_id}.json"


def state_path(folder: Path, job_id: str) -> Path:
    """Where a job is that has begun and is not finished."""
    return folder / JOBS / f"{job_id}.pt"


def write_record(folder: Path, record: Record) -> None:
    write_file(record_path(folder, record["id"]), json.dumps(record, indent=1) + "\n")


def read_record(path: Path) -> Record:
    try:
        record = json.loads(path.read_text())
        if not isinstance(record, dict) or record.get("format") != JOB_FORMAT:
            raise ValueError(f"its format is not {JOB_FORMAT!r}")
        needed = _NEEDED if record.get("status") == "failed" else (*_NEEDED, "default_output", "answers")
        missing = [key for key in needed if key not in record]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        if record["id"] != path.stem:
            raise ValueError(f"it is of the job {record['id']}")
        return record
    except ValueError as error:
        raise ValueError(f"{path} is no record of a job ({error}). Remove it, and the job runs again.") from error


def read_folder(folder: Path) -> dict[str, Record]:
    """All records of a study's folder, by their ids; none where there is no folder."""
    return {path.stem: read_record(path) for path in sorted((folder / JOBS).glob("*.json"))}


def read_records(sources: Iterable[str | Path], only: Mapping[str, Sequence[str]] | None = None) -> list[Record]:
    """The records of some folders or CSV files, or that part of them (`part_of`).

    A job that is in two of them, with the same settings and scores, counts once; otherwise they do not go together.
    """
    pairs = [pair for source in sources for pair in _records_of(Path(source))]
    kept = {id(record) for record in part_of([record for _, record in pairs], only or {})}
    found: dict[str, Record] = {}
    seen: dict[str, Path] = {}
    for path, record in (pair for pair in pairs if id(pair[1]) in kept):
        key = record["id"]
        if key in found and found[key]["digest"] != record["digest"]:
            raise ValueError(
                f"{path} and {seen[key]} have the job {key} with different settings: such results cannot be put "
                "together. Give one of them, or leave the job out: --only."
            )
        if key in found and not _same_scores(found[key], record):
            raise ValueError(
                f"{path} and {seen[key]} are two runs of the job {key}, with different scores. Which of them counts is "
                "not for the order of the folders to say: give one of them, or leave the job out: --only."
            )
        if key not in found or found[key]["status"] == "failed":
            found[key], seen[key] = record, path
    return list(found.values())


def _same_scores(one: Record, other: Record) -> bool:
    """Of a job that is in two places; a failed run has none and agrees with any."""
    if "failed" in (one["status"], other["status"]):
        return True
    ours, theirs = ({name: scores["miou"] for name, scores in run["answers"].items()} for run in (one, other))
    return ours == theirs


def part_of(records: Sequence[Record], only: Mapping[str, Sequence[str]]) -> list[Record]:
    """The records, or rows of a CSV, of a part of the grid: {"arms": ["plain", "tuned"], "seeds": ["0"]}."""
    check_known("axis", only, list(AXES))
    kept = list(records)
    for axis, names in only.items():
        there = dict.fromkeys(str(record[AXES[axis]]) for record in records)
        check_known(f"value of {axis}", names, list(there))
        kept = [record for record in kept if str(record[AXES[axis]]) in names]
    return kept


def _records_of(source: Path) -> Iterator[tuple[Path, Record]]:
    if source.suffix == ".csv":
        for record in read_csv(source):
            yield source, record
        return
    records = read_folder(source)
    if not records:
        raise FileNotFoundError(
            f"{source} holds no results of a study: there is no {source / JOBS}/*.json.{_hint(source)}"
        )
    for key, record in records.items():
        yield record_path(source, key), record


def _hint(source: Path) -> str:
    """What may have been meant by a name without records."""
    if source.name == JOBS:
        return f" Did you mean {source.parent}?"
    if source.suffix == ".toml":
        return f" It is the plan of a study: cacseg study run {source}."
    if (other := source.with_suffix(".csv")).is_file():
        return f" Did you mean {other}?"
    files = sorted(source.glob("*.csv"))
    return f" Did you mean one of its files, such as {files[0]}?" if files else ""


def read_csv(path: Path) -> list[Record]:
    """What summaries need of the jobs in a results.csv."""
    found: dict[str, Record] = {}
    for line, row in enumerate(read_rows(path, _FIRST_COLUMNS, f"{CSV} of a study", later=_LATER_COLUMNS), 2):
        key = ".".join(row[name] for name in AXES.values())
        record = found.setdefault(key, {**row, "id": key, "answers": {}})
        try:
            record |= {"steps": int(row["steps"]), "seed": int(row["seed"])}
            if row["answer"]:
                scores = ("miou", "mean_accuracy", "pixel_accuracy")
                values = {name: _finite(row[name]) if row[name] else None for name in scores}
                if record["answers"].setdefault(row["answer"], values) != values:
                    raise ValueError(f"the answer {row['answer']!r} of {key} has two scores")
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}. Take the file that `cacseg study` wrote.") from error
        if row["own"] == "yes":
            record["default_output"] = row["answer"]
    for key, record in found.items():
        if record["status"] != "failed" and "default_output" not in record:
            raise ValueError(f"{path} lacks the own answer of {key}: is it cut off? Take the file that was written.")
    return list(found.values())


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a score must be finite; got {text}")
    return value


def read_rows(path: Path, columns: Sequence[str], what: str, later: Sequence[str] = ()) -> list[dict[str, str]]:
    """The rows of a CSV file with these very columns; an error says which file, and which line of it is cut.

    Files from before there were `later` columns have none of them.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = tuple(reader.fieldnames or ())
            if names not in (tuple(columns), (*columns, *later)):
                hint = _OTHERS.get(names[-1] if names else "", "")
                raise ValueError(f"{path} is no {what}: its columns must be {', '.join((*columns, *later))}.{hint}")
            found = list(reader)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no {path}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no {what}: it is no text ({error}).") from error
    for line, row in enumerate(found, 2):
        if None in row or None in row.values():
            raise ValueError(f"{path}, line {line}: it must have {len(names)} values. Is the file cut off?")
    if not found:
        raise ValueError(f"{path} holds no results: it has no line but the names of its columns.")
    return found


def rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One row for each answer of each job, scores in percent; a failed job has one row without scores."""
    found = []
    for record in records:
        job = {column: record.get(column) for column in COLUMNS}
        if "config" in record:  # not in one that was read from a CSV, which has these as they are
            optimiser, training = record["config"]["optimiser"], record["config"]["training"]
            job |= {"rate": optimiser["rate"], "batch": training["batch"], "precision": training.get("precision")}
        if "versions" in record:
            job |= {name: record["versions"].get(name) for name in ("device", "torch")}
        if "seconds_training" in record:
            job["seconds"] = round(record["seconds_training"] + record["seconds_evaluation"], 2)
        for answer, values in (record.get("answers") or {"": {}}).items():
            of_answer = {name: values.get(name) for name in ("miou", "mean_accuracy", "pixel_accuracy")}
            own = "yes" if answer and answer == record["default_output"] else "no"
            found.append({**job, "answer": answer, "own": own, **of_answer})
    return found


def write_csv(folder: Path, records: Sequence[Record]) -> None:
    """results.csv of the folder, whole or as it was."""
    write_rows(folder / CSV, COLUMNS, rows(sorted(records, key=lambda record: record["id"])))


def write_rows(path: Path, columns: Sequence[str], found: Iterable[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    write_file(path, text.getvalue())
