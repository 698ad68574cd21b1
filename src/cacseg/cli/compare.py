"""`cacseg compare` and `cacseg ablate`: several runs, and a table of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cacseg.cli._console import note, say, show, typer
from cacseg.cli._options import integers, open_recipe, read_changes
from cacseg.cli._runs import train_all
from cacseg.cli.report import NAME, WantReport, explain_failure, write_page

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run, as of `cacseg train`. Repeatable."),
]
Root = Annotated[str | None, typer.Option(help="The folder or .zip of the data set.")]
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="500,2000", help="Steps of each run, the recipe's by default; with commas, several schedules."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at once; by default up to 12 on each GPU and CPU cores - 2 in all; 1 on a CPU."),
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
        typer.Argument(metavar="RECIPE|DIR", help="A recipe, as of `cacseg train`; or folders of comparisons."),
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
    seeds: Annotated[str, typer.Option(metavar="3|0,5,7", help="How many seeds, from 0 on; or which.")] = "3",
    steps: Steps = None,
    settings: Settings = None,
    root: Root = None,
    jobs: Jobs = None,
    devices: Devices = "auto",
    mps: Mps = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="runs/compare-RECIPE by default.")
    ] = None,
    report: WantReport = True,
) -> None:
    """Compare classifiers on your images, at equal seeds.

    \b
    cacseg compare folder --root my_data --set model.pretrained=true --steps 2000 -o runs/mine
    cacseg compare folder --root my_data --arms plain,tuned --seeds 5 --steps 500,2000 --jobs 6 --mps
    cacseg compare camvid --root data --arms plain,tuned --arm slow:tuned,optimiser.rate=1e-4
    cacseg compare runs/mine                                     show the results again
    cacseg compare runs/here runs/there -o runs/both             join results of two machines

    Every run is one of `cacseg train`, in DIR/runs/ARM-STEPS-SEED; runs of one seed see the same crops in the same
    order. The warm-up is at most a tenth of the steps, and each run is validated four times (schedule.warmup_steps and
    training.validate_every change that). DIR gets report.html, report.md, results.csv, classes.csv, costs.csv and
    pictures. The same command again goes on where it was interrupted. Exit code 1: a run failed; 130: stopped.
    """
    from cacseg.recipes.compare import FILE, choose_arms, describe, make_plan, naming_file
    from cacseg.recipes.config import change

    folders = [Path(source) for source in sources]
    if all((folder / FILE).is_file() for folder in folders):
        present(folders, output or (folders[0] if len(folders) == 1 else None), report)
        return
    if len(sources) > 1:
        wrong = next(str(folder) for folder in folders if not (folder / FILE).is_file())
        raise ValueError(
            f"give one recipe, or folders of comparisons; got {wrong!r}, which has no {FILE}. Data: --root PATH."
        )
    name, base = open_recipe(sources[0])
    changes = read_changes(settings, root)
    counts = integers("--steps", steps) if steps else ()
    with naming_file(arms):
        chosen = choose_arms(arms, more or ())
        plan = make_plan(base, chosen, read_seeds(seeds), counts, changes)
    folder = output or Path("runs") / f"compare-{name.replace('/', '_')}"
    failed = train_all(folder, describe(name, change(base, changes), chosen), plan, jobs=jobs, devices=devices, mps=mps)
    if len(failed) < len(plan):
        present([folder], folder, report)
    if failed:
        raise typer.Exit(1)


def ablate(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="loss, distillation, similarity or design, of the paper; or all.")
    ],
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="As of `cacseg train`; small generated scenes by default.")
    ] = None,
    preset: Annotated[str, typer.Option(help="What the rows are variants of: paper, released or tuned.")] = "paper",
    seeds: Annotated[str, typer.Option(metavar="2|0,5,7", help="How many seeds, from 0 on; or which.")] = "2",
    steps: Steps = None,
    settings: Settings = None,
    root: Root = None,
    jobs: Jobs = None,
    devices: Devices = "auto",
    mps: Mps = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="runs/ablate-RECIPE by default.")
    ] = None,
) -> None:
    """Run the paper's ablation tables.

    \b
    cacseg ablate design                                          on generated scenes, on a CPU
    cacseg ablate all --seeds 3                                   all four tables
    cacseg ablate loss camvid --root data --steps 2000 --mps      on photographs
    cacseg train synthetic --set model.preset=paper --set model.variant=design_d       one row

    The paper's figures stand beside ours. Rows that are the same thing run once, also those of different tables in
    one DIR. Every run is one of `cacseg train`; the same command again goes on where it was interrupted. DIR gets
    TABLE.md, TABLE.csv and TABLE.png. On a CPU as many runs as it has cores go at once by default. On generated
    scenes the tables show that the rows can be run, not what they give on photographs.
    """
    from cacseg.engine.device import available_cores
    from cacseg.recipes.ablate import TABLES, ablation_arms, rows_of, scenes
    from cacseg.recipes.compare import describe, make_plan
    from cacseg.recipes.config import change

    tables = list(TABLES) if table == "all" else [table]
    for one in tables:
        rows_of(one)  # or an error
    name, base = ("scenes", scenes()) if recipe is None else open_recipe(recipe)
    changes = read_changes(settings, root)
    arms = ablation_arms(tables, preset)
    counts = integers("--steps", steps) if steps else ()
    plan = make_plan(base, arms, read_seeds(seeds), counts, changes, validations=1)
    folder = output or Path("runs") / f"ablate-{name.replace('/', '_')}"
    comparison = describe(name, change(base, changes), arms)
    failed = train_all(folder, comparison, plan, jobs=jobs, devices=devices, mps=mps, cpu_jobs=available_cores())
    if len(failed) < len(plan):
        _present_tables(folder, tables)
    if failed:
        raise typer.Exit(1)


def _present_tables(folder: Path, tables: list[str]) -> None:
    from cacseg._files import write_file
    from cacseg.recipes.ablate import with_paper
    from cacseg.recipes.results import read_results
    from cacseg.reports.comparison import ablation_table, own
    from cacseg.reports.comparison_plots import FORMATS, ablation_figure
    from cacseg.reports.pictures import saved
    from cacseg.reports.tables import markdown_table

    found = read_results([folder])
    if found.unfinished:
        note(f"{len(found.unfinished)} runs are not finished and take no part")
    scored = own(found.results)
    for name in tables:
        pages = []
        for steps, of_steps in scored.groupby("steps"):
            lines = with_paper(name, of_steps)
            if lines.empty:
                continue
            suffix = "" if scored["steps"].nunique() == 1 else f"-{steps}"
            title = f"{name}, {scored['data'].iloc[0]}, {scored['model'].iloc[0]}, {steps} steps"
            table = ablation_table(lines, title)
            show_table(*table, words=2)
            write_file(folder / f"{name}{suffix}.csv", lines.to_csv(index=False, float_format="%.4f"))
            figure = ablation_figure(lines, title)
            for format in FORMATS:
                write_file(folder / f"{name}{suffix}.{format}", saved(figure, format))
            pages += [f"# {title}", "", *markdown_table(table.header, table.rows), "", f"![]({name}{suffix}.png)", ""]
        write_file(folder / f"{name}.md", "\n".join(pages))
        say(f"{folder}/{name}.md")


def read_seeds(text: str) -> Sequence[int]:
    """ "3" is three seeds, "0,5,7" are those."""
    found = integers("--seeds", text)
    if "," in text:
        return found
    if found[0] < 1:
        raise ValueError(f"--seeds must be how many, 1 or more, or which, e.g. 0,5,7; got {text!r}.")
    return range(found[0])


def present(folders: Sequence[Path], output: Path | None, report: bool = False) -> None:
    """Prints the results of comparisons, and writes them, with `report` as a page too."""
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
        if report:
            explain_failure(lambda: write_page(folders, output / NAME))


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> None:
    from cacseg.reports.tables import rich_table

    table = rich_table(title, header, rows, words=words, no_wrap=0)
    table.min_width = len(title)
    show(table, full_width=True)
