"""A study in its folder: what is done is left alone, what is not is run, and everything that ends is written down."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cacseg._files import acquire_lock, make_folder
from cacseg.data import SegmentationData
from cacseg.study.classes import write_classes
from cacseg.study.plan import Job
from cacseg.study.pool import Failed, Finished, Message, Report, Saving, run_jobs
from cacseg.study.results import (
    JOBS,
    Record,
    cell_of,
    read_folder,
    record_path,
    state_path,
    write_csv,
    write_record,
)
from cacseg.study.splits import hold_out


class Todo(NamedTuple):
    """A plan beside what its folder holds."""

    records: dict[str, Record]  # by id, of all that the folder holds
    jobs: list[Job]  # still to run: new ones, and those that failed


def look_at(folder: Path, plan: Sequence[Job]) -> Todo:
    """What is left to do. A record of other settings than the plan's is an error: results are never mixed."""
    records = read_folder(folder)
    done = {key: record for key, record in records.items() if record["status"] != "failed"}
    _check_goes_with(folder, done, plan)
    return Todo(records, [job for job in plan if job.id not in done])


def _check_goes_with(folder: Path, done: Mapping[str, Record], plan: Sequence[Job]) -> None:
    """What the folder holds of the plan's cells goes with it: the same arm with any seed, other arms beside it."""
    arms = {(job.cell, job.arm): job for job in plan}
    cells = {job.cell: job for job in plan}
    for key, record in done.items():
        cell = cell_of(record)
        job, beside = arms.get((cell, record["arm"])), cells.get(cell)
        if job is not None and job.digest != record["digest"]:
            other = f"other settings ({_changed(record, job)})"
        elif beside is not None and record.get("shared", beside.shared) != beside.shared:
            words = f"{_changed(record, beside)}; what arms set is left aside"
            other = f"other settings than {beside.arm!r} would have beside it ({words})"
        else:
            continue
        raise ValueError(f"{record_path(folder, key)} was made with {other}. Choose another folder: -o FOLDER.")


def check_jobs(plan: Sequence[Job]) -> None:
    """Before the first job starts: all data can be opened, crops fit, and every model can be made."""
    from cacseg.engine.preflight import check_data
    from cacseg.recipes.build import check_crops, make_model, open_split

    opened: dict[str, SegmentationData] = {}
    made = set()
    for job in plan:
        data, model = job.config.data, job.config.model
        key = f"{job.held_out} {data.model_dump_json()}"
        try:
            if key not in opened:
                opened[key] = open_split(data, "train")
                check_crops(data, opened[key])
                if job.held_out is None:
                    check_data(opened[key], open_split(data, "val"))
                else:
                    hold_out(len(opened[key]), job.held_out)
            if (data.name, model.model_dump_json()) not in made:
                made.add((data.name, model.model_dump_json()))
                with warnings.catch_warnings():  # the jobs will tell
                    warnings.simplefilter("ignore")
                    make_model(model, opened[key], lambda text: None)
        except (ValueError, TypeError, OSError) as error:
            raise ValueError(f"{job.id}: {error}") from error


def run_study(
    folder: Path,
    plan: Sequence[Job],
    report: Report,
    *,
    device: str,
    workers: int,
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    graphs: bool = True,
    save_every: float | None = None,
) -> list[Record]:
    """Runs what is left of a plan; gives the records of all its jobs.

    Each record is written when its job ends, and results.csv and classes.csv with it, and a job that runs is saved
    after so many seconds (None: never), so that whatever interrupts a study it goes on from there.
    """
    make_folder(folder / JOBS)
    with acquire_lock(folder, "running a study"):
        records, jobs = look_at(folder, plan)
        for scratch in (folder / JOBS).glob(".*.tmp"):  # of a process that was ended while it wrote
            scratch.unlink(missing_ok=True)

        def listen(job: Job, message: Message) -> None:
            if isinstance(message, Finished):
                message = _unless_other_data(message, records)
            if isinstance(message, Finished | Failed):
                record = message.record if isinstance(message, Finished) else failed_record(job, message)
                write_record(folder, record)
                if record["status"] != "failed":
                    state_path(folder, job.id).unlink(missing_ok=True)
                records[job.id] = record
                _write_tables(folder, records)
            report(job, message)

        run_jobs(
            jobs,
            listen,
            device=device,
            workers=workers,
            threads=threads,
            environment=environment,
            graphs=graphs,
            saving=None if save_every is None else Saving(folder, save_every),
        )
        _write_tables(folder, records)
    return [records[job.id] for job in plan]


def _unless_other_data(finished: Finished, records: Mapping[str, Record]) -> Finished | Failed:
    """A job whose data are not those that the folder's other jobs of its cell saw has failed."""
    record = finished.record
    for other in records.values():
        if (
            cell_of(other) == cell_of(record)
            and other.get("data_digest", record["data_digest"]) != record["data_digest"]
        ):
            return Failed(
                f"ValueError: {record['config']['data']['root']} does not hold the data that {other['id']} saw. "
                "Choose another folder for the results: -o FOLDER."
            )
    return finished


def _write_tables(folder: Path, records: Mapping[str, Record]) -> None:
    write_csv(folder, list(records.values()))
    write_classes(folder, list(records.values()))


def failed_record(job: Job, failed: Failed) -> Record:
    return {**job.describe(), "status": "failed", "error": failed.error, "details": failed.details}


def _changed(record: Record, job: Job) -> str:
    """The settings that differ, in words."""
    now = job.config.model_dump(mode="json")
    different = [
        f"{section}.{field} was {record['config'].get(section, {}).get(field)!r}, now {value!r}"
        for section, fields in now.items()
        for field, value in fields.items()
        if record["config"].get(section, {}).get(field) != value and f"{section}.{field}" != "data.root"
    ]
    return "; ".join(different) or "other weights, or another share held out"
