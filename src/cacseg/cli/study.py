"""`cacseg study run`, `table`, `classes` and `plot`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cacseg.cli._console import fail, messages, note, say, show, typer
from cacseg.cli._study_display import Display

if TYPE_CHECKING:
    from cacseg.study.plan import Job
    from cacseg.study.tables import TextTable

STOPPED = 130  # what a shell gives for Ctrl-C
MOST_JOBS = 12  # at once on a GPU, unless told otherwise

study = typer.Typer(help="Many short runs of one plan, paired by seed.", no_args_is_help=True)


@study.callback()
def _group() -> None:
    """Many short runs of one plan, paired by seed."""


@study.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study, a TOML file such as studies/presets.toml.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The study's folder; runs/NAME by default.")
    ] = None,
    roots: Annotated[
        list[str] | None,
        typer.Option("--root", metavar="NAME=PATH", help="The folder or .zip of a data set. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of every job, before all others. Repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="AXIS=NAME,NAME", help="A part of the grid, e.g. arms=plain,paper. Repeatable."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="0,1,2", help="In place of the study's.")] = None,
    steps: Annotated[str | None, typer.Option(metavar="400,1600", help="In place of the study's.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs at once; by default up to 12 on a GPU, two fewer than CPU cores, 1 on a CPU."),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cuda:1 or cpu; cuda if there is one by default.")] = "auto",
    mps: Annotated[
        bool, typer.Option("--mps", help="Start NVIDIA's Multi-Process Service: kernels of all jobs run side by side.")
    ] = False,
    graphs: Annotated[
        bool,
        typer.Option("--graphs/--no-graphs", help="On a GPU: record a step once and replay it, or run each anew."),
    ] = True,
    list_jobs: Annotated[bool, typer.Option("--list", help="Print the jobs and stop.")] = False,
) -> None:
    """Run a study: every data set x model x optimiser x number of steps x arm x seed, several at once on one device.

    \b
    cacseg study run studies/synthetic.toml                             a first try, a minute on a CPU
    cacseg study run studies/presets.toml --root camvid=data/camvid --root msrc21=data/msrc21 -o runs/presets
    cacseg study run studies/presets.toml ... --only data=msrc21 --only arms=plain,released --seeds 0

    The folder gets one JSON file for each job, results.csv, one row for each answer of each job, and classes.csv, one
    row for each class in each of them. The same command again runs what is missing or has failed, and nothing else.
    Jobs of one seed see the same crops in the same order.
    """
    from cacseg.recipes.config import parse_setting
    from cacseg.study.file import read_study
    from cacseg.study.plan import make_plan

    plan_of = read_study(file)
    if seeds is not None:
        plan_of = replace(plan_of, seeds=_integers("--seeds", seeds))
    if steps is not None:
        plan_of = replace(plan_of, steps=_integers("--steps", steps))
    changes = dict(parse_setting(text) for text in settings or ())
    plan = make_plan(plan_of, _pairs("--root", roots), changes, _lists("--only", only))
    if list_jobs:
        for job in plan:
            say(job.id)
        return
    _run(plan, output or Path("runs") / plan_of.name, jobs, device, mps, graphs)


Folders = Annotated[
    list[Path], typer.Argument(metavar="FOLDER...", help="Folders of `cacseg study run`, or their results.csv.")
]
Classes = Annotated[
    list[Path], typer.Argument(metavar="FOLDER...", help="Folders of `cacseg study run`, or their classes.csv.")
]
Baseline = Annotated[str | None, typer.Option(help="The arm that others are compared with; the study's by default.")]


@study.command()
def table(
    folders: Folders,
    baseline: Baseline = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the tables there as well.")] = None,
) -> None:
    """Mean mIoU of each arm, standard errors, and paired differences from the baseline.

    An arm is ahead where it gains a point of mIoU or more and more than two standard errors of the difference, behind
    where it loses more than two. Oracle answers have seen the labels: they show what is left to gain.
    """
    from cacseg.engine.files import write_file
    from cacseg.study.results import read_records
    from cacseg.study.summary import baseline_of, pool, summarise
    from cacseg.study.tables import arms_table, pooled_table
    from cacseg.study.tables import markdown as in_markdown

    records = read_records(folders)
    base = baseline_of(records, baseline)
    lines = summarise(records, base)
    tables = [arms_table(lines, base), pooled_table(pool(lines, base))]
    _draw(tables)
    failed = sum(record["status"] == "failed" for record in records)
    if failed:
        note(f"{failed} of {len(records)} jobs failed and take no part; their records say why")
    if markdown is not None:
        write_file(markdown, "\n".join(in_markdown(one) for one in tables))


@study.command()
def classes(
    folders: Classes,
    baseline: Annotated[str, typer.Option(help="The arm that comes first.")] = "plain",
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the tables there as well.")] = None,
) -> None:
    """Mean IoU of each class over seeds, in each arm's own answer: where an arm gains and where it loses."""
    from cacseg.engine.files import write_file
    from cacseg.study.classes import classes_tables, read_classes
    from cacseg.study.tables import markdown as in_markdown

    tables = classes_tables(read_classes(folders), baseline)
    _draw(tables)
    if markdown is not None:
        write_file(markdown, "\n".join(in_markdown(one) for one in tables))


def _draw(tables: Sequence[TextTable]) -> None:
    from rich.table import Table

    for one in tables:
        drawn = Table(title=one.title, min_width=len(one.title))
        for place, name in enumerate(one.header):
            drawn.add_column(name, justify="left" if place < one.words else "right", no_wrap=True)
        for row in one.rows:
            drawn.add_row(*row)
        show(drawn, whole=True)


@study.command()
def plot(
    folders: Folders,
    baseline: Baseline = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .png, .svg or .pdf; FOLDER/differences.png by default.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Above the picture; the study's name by default.")] = None,
) -> None:
    """Draw the differences from the baseline: each seed, means, two standard errors."""
    from cacseg.engine.files import write_file
    from cacseg.study.plots import difference_picture
    from cacseg.study.results import read_records
    from cacseg.study.summary import baseline_of, summarise

    folder = folders[0].parent if folders[0].suffix == ".csv" else folders[0]
    path = output or folder / "differences.png"
    records = read_records(folders)
    base = baseline_of(records, baseline)
    names = ", ".join(dict.fromkeys(str(record["study"]) for record in records))
    picture = difference_picture(summarise(records, base), base, title or names, path.suffix.lstrip("."))
    write_file(path, picture)
    say(str(path))


def _run(plan: list[Job], folder: Path, jobs: int | None, device_name: str, mps: bool, graphs: bool) -> None:
    from cacseg.study.pool import start_server

    start_server()
    with messages.status("looking at data, models and devices"):
        from cacseg.engine.device import choose_device
        from cacseg.study.mps import mps_service
        from cacseg.study.run import check_jobs, look_at, run_study

        chosen = choose_device(device_name)
        if chosen.type not in ("cpu", "cuda"):
            chosen = choose_device("cpu")
        todo = look_at(folder, plan).jobs
        check_jobs(todo)
    if mps and chosen.type != "cuda":
        raise ValueError(f"--mps is for CUDA devices; this study would run on {chosen}. Leave it out.")
    workers = min(jobs or _default_jobs(chosen.type), max(1, len(todo)))
    begun = f"{len(plan)} jobs, {len(plan) - len(todo)} done before" if len(todo) < len(plan) else f"{len(plan)} jobs"
    note(f"{folder}: {begun}; {workers} at a time on {chosen}")
    service = mps_service() if mps else nullcontext(dict[str, str]())
    with Display(todo) as display, _stoppable(), service as environment:
        try:
            records = run_study(
                folder,
                plan,
                display.report,
                device=str(chosen),
                workers=workers,
                threads=1 if workers > 1 else None,
                environment=environment,
                graphs=graphs,
            )
        except KeyboardInterrupt:
            display.close()
            note(f"stopped: {display.done} of {len(todo)} jobs are done; the same command runs the rest")
            raise typer.Exit(STOPPED) from None
    failed = [record for record in records if record["status"] == "failed"]
    for record in failed:
        fail(f"{record['id']}: {record['error']}")
    say(
        f"{folder}: {len(records) - len(failed)} of {len(records)} jobs done; look at them: cacseg study table {folder}"
    )
    if failed:
        raise typer.Exit(1)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM as Ctrl-C: the processes are ended, what is finished stays."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _default_jobs(device_type: str) -> int:
    if device_type == "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_JOBS, cores - 2))


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals or not value:
            raise ValueError(f"{option} must be NAME=VALUE; got {text!r}.")
        if name in found:
            raise ValueError(f"{option} {name}= is given twice.")
        found[name] = value
    return found


def _lists(option: str, texts: list[str] | None) -> dict[str, list[str]]:
    return {name: value.replace("+", ",").split(",") for name, value in _pairs(option, texts).items()}


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be whole numbers between commas; got {text!r}.") from None
    if len(set(values)) < len(values):
        raise ValueError(f"{option} must be different numbers; got {text!r}.")
    return values
