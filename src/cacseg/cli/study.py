"""`cacseg study run`; what shows its results is in `study_results`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cacseg.cli._console import fail, messages, note, say, typer
from cacseg.cli._options import integers, lists, pairs
from cacseg.cli._study_display import Display
from cacseg.cli.study_results import answers, classes, plot, table

if TYPE_CHECKING:
    from cacseg.study.plan import Job

STOPPED = 130  # what a shell gives for Ctrl-C
MOST_JOBS = 12  # at once on a GPU, unless told otherwise

study = typer.Typer(help="Many short runs of one plan, paired by seed.", no_args_is_help=True)


@study.callback()
def _group() -> None:
    """Many short runs of one plan, paired by seed."""


@study.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study, a TOML file such as studies/yours.toml.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The study's folder; runs/NAME by default.")
    ] = None,
    roots: Annotated[
        list[str] | None,
        typer.Option("--root", metavar="NAME=PATH", help="The folder or .zip of a data set. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of every job; wins over the study's. Repeatable."),
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
    save_every: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds after which a job that runs is saved, to go on from there; 0: never."),
    ] = 60.0,
    list_jobs: Annotated[bool, typer.Option("--list", help="Print the jobs and stop.")] = False,
) -> None:
    """Run a study: every data set x model x optimiser x number of steps x arm x seed, several at once on one device.

    \b
    cacseg study run studies/yours.toml --root yours=my_data --set model.pretrained=true -o runs/yours
    cacseg study run studies/yours.toml --root yours=my_data --only arms=plain,tuned --seeds 0 --steps 500

    The folder gets one JSON file for each job, results.csv, one row for each answer of each job, and classes.csv, one
    row for each class in each of them. The same command again runs what is missing or has failed, and nothing else; a
    job that was interrupted goes on from its last saved step. Jobs of one seed see the same crops in the same order.
    """
    from cacseg.recipes.config import parse_setting
    from cacseg.study.file import read_study
    from cacseg.study.plan import make_plan

    plan_of = read_study(file)
    if seeds is not None:
        plan_of = replace(plan_of, seeds=integers("--seeds", seeds))
    if steps is not None:
        plan_of = replace(plan_of, steps=integers("--steps", steps))
    changes = dict(parse_setting(text) for text in settings or ())
    plan = make_plan(plan_of, pairs("--root", roots), changes, lists("--only", only))
    if list_jobs:
        for job in plan:
            say(job.id)
        return
    _run(plan, output or Path("runs") / plan_of.name, jobs, device, mps, graphs, save_every or None)


for view in (table, answers, classes, plot):
    study.command()(view)


def _run(
    plan: list[Job],
    folder: Path,
    jobs: int | None,
    device_name: str,
    mps: bool,
    graphs: bool,
    save_every: float | None,
) -> None:
    from cacseg.study.pool import start_server

    try:
        start_server()
        with messages.status("looking at data, models and devices"):
            from cacseg.engine.device import choose_device
            from cacseg.study.mps import mps_service
            from cacseg.study.run import check_jobs, look_at, run_study

            chosen = choose_device(device_name)
            if chosen.type not in ("cpu", "cuda"):
                if device_name != "auto":
                    raise ValueError(f"--device must be cuda, cuda:N or cpu in a study; got {device_name!r}.")
                chosen = choose_device("cpu")
            todo = look_at(folder, plan).jobs
            check_jobs(todo)
    except KeyboardInterrupt:
        note("stopped before the first job")
        raise typer.Exit(STOPPED) from None
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
                save_every=save_every,
            )
        except KeyboardInterrupt:
            display.close()
            ended = display.done - display.failed
            note(f"stopped: {ended} of {len(todo)} jobs are done; the same command goes on with the rest")
            raise typer.Exit(STOPPED) from None
    failed = [record for record in records if record["status"] == "failed"]
    for error, ids in _grouped(failed).items():
        fail(f"{ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}: {error}")
    done = len(records) - len(failed)
    hint = f"; look at them: cacseg study table {folder}" if done else ""
    say(f"{folder}: {done} of {len(records)} jobs done{hint}")
    if failed:
        raise typer.Exit(1)


def _grouped(failed: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The jobs that failed, by what went wrong."""
    found: dict[str, list[str]] = {}
    for record in failed:
        found.setdefault(record["error"], []).append(record["id"])
    return found


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM as Ctrl-C: the processes are ended, what is finished or saved stays."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _default_jobs(device_type: str) -> int:
    from cacseg.engine.device import available_cores

    if device_type == "cpu":
        return 1
    return max(1, min(MOST_JOBS, available_cores() - 2))
