"""`cacseg compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from rich.table import Table

from cacseg.cli._console import note, say, show, typer
from cacseg.cli._options import integers, open_recipe
from cacseg.cli._runs import train_all

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run, as of `cacseg train`. Repeatable."),
]
Root = Annotated[str | None, typer.Option(help="The folder or .zip of the data set.")]
Steps = Annotated[
    str | None,
    typer.Option(metavar="500,2000", help="Of a run; several are several schedules. The recipe's by default."),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once; up to 12 on each GPU by default, two fewer than CPU cores; 1 on a CPU."),
]
Devices = Annotated[
    str, typer.Option(metavar="cpu|0,1", help="GPUs by their numbers, or cpu; all GPUs by default, else the CPU.")
]
Mps = Annotated[
    bool, typer.Option("--mps", help="Start NVIDIA's Multi-Process Service: runs share a GPU instead of taking turns.")
]


def compare(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="RECIPE | DIR...", help="A recipe, as of `cacseg train`; or folders of comparisons."),
    ],
    arms: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME|FILE.toml",
            help="plain, overlap (plain with a soft-Jaccard loss), tuned, released, paper, unadapted (the losses of "
            "tuned, one classifier for all images); or a file with a table [NAME] of settings for each. The first is "
            "the baseline.",
        ),
    ] = "plain,overlap,tuned",
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--arm", metavar="NAME:KEY=VALUE,...", help="A further arm; may begin with a known one. Repeatable."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="3|0,5,7", help="How many, from 0 on; or which.")] = "3",
    steps: Steps = None,
    settings: Settings = None,
    root: Root = None,
    jobs: Jobs = None,
    devices: Devices = "auto",
    mps: Mps = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="runs/compare-RECIPE by default.")
    ] = None,
) -> None:
    """Does it help on my images? Train one recipe with several classifiers and seeds, and compare at equal seeds.

    \b
    cacseg compare folder --root my_data --set model.pretrained=true --steps 2000 -o runs/mine
    cacseg compare folder --root my_data --arms plain,tuned --seeds 5 --steps 500,2000 --jobs 6 --mps
    cacseg compare camvid --root data --arms plain,tuned --arm slow:tuned,optimiser.rate=1e-4
    cacseg compare runs/mine                                     show the results again
    cacseg compare runs/here runs/there -o runs/both             join results of two machines

    Every run is one of `cacseg train`, in DIR/runs/ARM-STEPS-SEED; runs of one seed see the same crops in the same
    order. The warm-up is at most a tenth of the steps, and each run is validated four times (schedule.warmup_steps and
    training.validate_every change that). DIR gets report.md, results.csv, classes.csv, costs.csv and pictures. The
    same command again goes on where it was interrupted. Exit code 1: a run failed; 130: stopped.
    """
    from cacseg.recipes.compare import FILE

    folders = [Path(source) for source in sources]
    if all((folder / FILE).is_file() for folder in folders):
        present(folders, output or (folders[0] if len(folders) == 1 else None))
        return
    if len(sources) > 1:
        wrong = next(str(folder) for folder in folders if not (folder / FILE).is_file())
        raise ValueError(f"give one recipe, or folders of comparisons; got {wrong!r}, which has no {FILE}.")
    from cacseg.recipes.compare import choose_arms, describe, make_plan
    from cacseg.recipes.config import change, parse_setting

    name, base = open_recipe(sources[0])
    changes = dict(parse_setting(text) for text in settings or ())
    if root is not None:
        changes["data.root"] = root
    chosen = choose_arms(arms, more or ())
    plan = make_plan(base, chosen, read_seeds(seeds), integers("--steps", steps) if steps else (), changes)
    folder = output or Path("runs") / f"compare-{name.replace('/', '_')}"
    failed = train_all(folder, describe(name, change(base, changes), chosen), plan, jobs=jobs, devices=devices, mps=mps)
    if len(failed) < len(plan):
        present([folder], folder)
    if failed:
        raise typer.Exit(1)


def read_seeds(text: str) -> Sequence[int]:
    """ "3" is three seeds, "0,5,7" are those."""
    found = integers("--seeds", text)
    if len(found) == 1 and "," not in text:
        if found[0] < 1:
            raise ValueError(f"--seeds must be how many, 1 or more, or which, e.g. 0,5,7; got {text!r}.")
        return range(found[0])
    return found


def present(folders: Sequence[Path], output: Path | None) -> None:
    """Prints the results of comparisons, and writes them."""
    from cacseg.recipes.results import read_results
    from cacseg.reports.comparison import arm_tables, class_tables, sentences, write_report
    from cacseg.reports.comparison_plots import comparison_pictures

    found = read_results(folders)
    if found.unfinished:
        note(f"{len(found.unfinished)} runs are not finished, {found.unfinished[0]} for one, and take no part")
    if found.results.empty:
        raise ValueError(f"no run of {', '.join(map(str, folders))} is finished: run the same command again.")
    for table in (*arm_tables(found.results, found.arms), *class_tables(found.classes, found.arms, groups=True)):
        show_table(table.title, table.header, table.rows)
    for sentence in sentences(found.results, found.arms):
        say(sentence)
    if output is not None:
        title = ", ".join(dict.fromkeys(found.results["data"]))
        pictures = comparison_pictures(found.results, found.classes, found.arms)
        write_report(output, found, f"Comparison on {title}", pictures)
        say(f"{output}/report.md")


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> None:
    table = Table(title=escape(title), min_width=len(title))
    for place, name in enumerate(header):
        table.add_column(escape(name), justify="left" if place < words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    show(table, full_width=True)
