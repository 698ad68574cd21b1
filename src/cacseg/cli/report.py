"""`cacseg report`, and the report.html that other commands write at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cacseg.cli import _options as options
from cacseg.cli._console import messages, note, progress_bar, say, typer

if TYPE_CHECKING:
    from cacseg.engine.evaluate import Evaluation
    from cacseg.recipes.folders import RunFolder
    from cacseg.reports.page import Report, RunRecord
    from cacseg.reports.strips import Examination

NAME = "report.html"
IMAGES = 200
WantReport = Annotated[bool, typer.Option(help=f"Write {NAME}.")]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of `cacseg train`, `cacseg eval -o` or `cacseg compare`."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.html", help=f"By default {NAME} in RUN; of several runs in this folder."
        ),
    ] = None,
    images: Annotated[
        int, typer.Option(min=0, help="Validation images to choose from, evenly spaced; 0 for none, only numbers.")
    ] = IMAGES,
    data: Annotated[Path | None, typer.Option(help="Where the data set is now, if it was moved.")] = None,
    device: options.Device = "auto",
    batch: options.Batch = 4,
    workers: options.Workers = options.WORKERS,
) -> None:
    """Write one HTML page about one run or several.

    \b
    cacseg report runs/mine                                       runs/mine/report.html
    cacseg report runs/plain runs/tuned -o both.html              what the second gains over the first
    cacseg report runs/compare-folder                             every arm, means over seeds

    Scores, IoU of each class, images beside their labels and predictions with what context changed, curves, the most
    frequent confusions, time and memory, settings. The file needs no network. What cannot be shown, because the data
    set is gone for one, is left out, and the page says why.
    """
    path = output or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    write_page(folders, path, images=images, root=data, device=device, batch=batch, workers=workers)
    say(str(path))


def explain_failure(write: Callable[[], Path], *, quiet: bool = False) -> None:
    """Writes a report at the end of another command and, unless `quiet`, prints its path; a failure is only a line."""
    try:
        path = write()
        if not quiet:
            say(str(path))
    except KeyboardInterrupt:
        note(f"no {NAME}: stopped")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        note(f"no {NAME}: {reason} (`cacseg report` tries again)")


def write_page(
    folders: Sequence[Path],
    path: Path,
    *,
    images: int = IMAGES,
    root: Path | None = None,
    device: str = "auto",
    batch: int = 4,
    workers: int = options.WORKERS,
    remark: str | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,
) -> Path:
    """Reads runs or comparisons and writes their report to `path`, with a remark above all else.

    `evaluations` of the whole split, by the names of runs or arms, are not repeated.
    """
    from cacseg.recipes.folders import is_comparison
    from cacseg.reports.runs import read_runs

    comparisons = [is_comparison(folder) for folder in folders]
    if any(comparisons) and not all(comparisons):
        raise ValueError(f"give runs, or comparisons, not both; got {', '.join(map(str, folders))}.")
    found, runs = _read_comparisons(folders) if all(comparisons) else read_runs(folders)
    check_output(path)
    for words in found.damaged:
        note(words)
    found = found._replace(notes=[*([remark] if remark else []), *found.notes])
    if images > 0:
        try:
            found = found._replace(examination=_examine(runs, images, root, device, batch, workers, evaluations))
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            if root is not None:  # the user said where the data are
                raise
            note(f"no images: {error}")
            found = found._replace(notes=[*found.notes, f"There are no images: {error}"])
    return _write(path, found, runs)


def check_output(path: Path) -> None:
    """Before any work: the file can be written, and is none of somebody else's."""
    from cacseg._files import check_target
    from cacseg.reports.page import MARK

    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(
            f"a report is one HTML file: its name must end in .html; got {path}. A browser prints it as PDF."
        )
    check_target(path, overwrite=True)
    if not path.is_file():
        return
    with path.open("rb") as file:
        if MARK.encode() not in file.read(1000):
            raise FileExistsError(f"{path} exists and is no report of ours. Choose another name: -o FILE.html.")


def _read_comparisons(folders: Sequence[Path]) -> tuple[Report, dict[str, RunFolder]]:
    """The same of the finished runs of comparisons; the folders are those of the longest runs, one of each arm."""
    from cacseg.recipes.compare import RUNS, is_finished, read_comparison
    from cacseg.recipes.folders import read_folder
    from cacseg.recipes.results import read_results
    from cacseg.reports.page import Report, RunRecord

    found = read_results(folders)
    if found.costs.empty:
        raise ValueError(f"no run of {', '.join(map(str, folders))} is finished: run `cacseg compare` again first.")
    notes = [f"{len(found.unfinished)} runs are not finished and take no part."] if found.unfinished else []
    records: list[RunRecord] = []
    read: dict[Any, RunFolder] = {}  # by cell, arm and seed
    chosen: dict[str, RunFolder] = {}
    rows = sorted(found.costs.itertuples(), key=lambda row: found.arms.index(row.arm))
    known = {folder: read_comparison(folder) for folder in folders}
    for row in rows:
        name = f"{row.arm}-{row.steps}-{row.seed}"
        places = [folder for folder, one in known.items() if (one.data, one.model) == (row.data, row.model)]
        one = read_folder(next(folder / RUNS / name for folder in places if is_finished(folder / RUNS / name)))
        cell = (row.data, row.model, row.steps)
        records.append(RunRecord(row.arm, cell, one.facts, one.settings, one.scores, one.metrics, row.seed))
        read[cell, row.arm, row.seed] = one
    shown = max((cell for cell, *_ in read if cell[:2] == records[0].cell[:2]), key=lambda cell: cell[2])
    seeds = {arm: [one.pair for one in records if (one.cell, one.arm) == (shown, arm)] for arm in found.arms}
    common = set.intersection(*(set(one) for one in seeds.values() if one))
    for arm, of_arm in seeds.items():
        if of_arm:
            chosen[arm] = read[shown, arm, min(common or of_arm)]
    title = f"{', '.join(found.arms)} on {', '.join(dict.fromkeys(found.costs['data']))}"
    damaged = [words for one in read.values() for words in one.damaged]
    return Report(title, records, notes=notes + damaged, paired=True, damaged=damaged), chosen


def _examine(
    runs: Mapping[str, RunFolder],
    images: int,
    root: Path | None,
    device: str,
    batch: int,
    workers: int,
    evaluations: Mapping[str, Evaluation] | None,
) -> Examination:
    import cacseg
    from cacseg.engine.device import choose_device
    from cacseg.recipes.protocol import open_split
    from cacseg.reports.strips import Subject, examine

    for name, run in runs.items():
        if run.weights is None or not run.weights.is_file():
            raise FileNotFoundError(f"{name} has no weights ({run.weights or 'last.safetensors'}).")
    first = next(iter(runs.values()))
    if first.validation is None:
        raise ValueError("nothing says on what the run was validated.")
    change = {} if root is None else {"root": str(root)}
    data, place = open_split(first.validation.model_copy(update=change), "val"), choose_device(device)
    subjects = [
        Subject(
            name,
            lambda weights=run.weights: cacseg.load(weights),  # type: ignore[misc]
            run.inference,
            run.scale,
            "fp32" if place.type == "cpu" and run.precision == "fp16" else run.precision,  # which CPUs are slow in
        )
        for name, run in runs.items()
    ]
    with progress_bar(visible=messages.is_terminal) as bar:
        task = bar.add_task("looking at images", total=len(runs) * min(images, len(data)))
        return examine(
            subjects,
            data,
            images=images,
            device=place,
            batch=batch,
            workers=workers,
            evaluations=evaluations,
            progress=lambda done: bar.update(task, completed=done),
        )


def _write(path: Path, found: Report, runs: Mapping[str, RunFolder]) -> Path:
    from cacseg._files import write_file
    from cacseg.reports.page import make_page

    write_file(path, make_page(found._replace(weights=_name_files([one.weights for one in runs.values()]))))
    return path


def _name_files(paths: Iterable[Path | None]) -> str:
    """Names files, those of equal names in folders beside one another once: `last.safetensors of a, b in runs`."""
    found = list(dict.fromkeys(path for path in paths if path is not None))
    names, places = {path.name for path in found}, {path.parent.parent for path in found}
    if len(found) < 2 or len(names) > 1 or len(places) > 1 or places == {Path()}:
        return ", ".join(map(str, found))
    return f"{names.pop()} of {', '.join(path.parent.name for path in found)} in {places.pop()}"
