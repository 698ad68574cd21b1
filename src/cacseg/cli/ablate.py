"""`cacseg ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cacseg.cli._console import note, say, typer
from cacseg.cli._options import integers, open_recipe
from cacseg.cli._runs import train_all
from cacseg.cli.compare import Devices, Jobs, Mps, Root, Settings, Steps, read_seeds, show_table


def ablate(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="loss, distillation, similarity or design, of the paper; or all.")
    ],
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="As of `cacseg train`; small generated scenes by default.")
    ] = None,
    preset: Annotated[str, typer.Option(help="What the rows are variants of: paper, released or tuned.")] = "paper",
    seeds: Annotated[str, typer.Option(metavar="2|0,5,7", help="How many, from 0 on; or which.")] = "2",
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
    """Run every row of an ablation table of the paper, with the paper's own figures beside ours.

    \b
    cacseg ablate design                                          on generated scenes, on a CPU
    cacseg ablate all --seeds 3                                   all four tables
    cacseg ablate loss camvid --root data --steps 2000 --mps      on photographs
    cacseg train synthetic --set model.preset=paper --set model.variant=design_d       one row

    Rows that are the same thing run once, also those of different tables in one DIR. Every run is one of `cacseg
    train`; the same command again goes on where it was interrupted. DIR gets TABLE.md, TABLE.csv and TABLE.png. On a
    CPU as many runs as it has cores go at once by default. On generated scenes the tables show that the rows can be
    run, not what they give on photographs.
    """
    from cacseg.engine.device import available_cores
    from cacseg.recipes.ablate import TABLES, ablation_arms, rows_of, scenes
    from cacseg.recipes.compare import describe, make_plan
    from cacseg.recipes.config import change, parse_setting

    tables = list(TABLES) if table == "all" else [table]
    for one in tables:
        rows_of(one)  # or an error
    name, base = ("scenes", scenes()) if recipe is None else open_recipe(recipe)
    changes = dict(parse_setting(text) for text in settings or ())
    if root is not None:
        changes["data.root"] = root
    arms = ablation_arms(tables, preset)
    counts = integers("--steps", steps) if steps else ()
    plan = make_plan(base, arms, read_seeds(seeds), counts, changes, validations=1)
    folder = output or Path("runs") / f"ablate-{name.replace('/', '_')}"
    comparison = describe(name, change(base, changes), arms)
    failed = train_all(folder, comparison, plan, jobs=jobs, devices=devices, mps=mps, cpu_jobs=available_cores())
    if len(failed) < len(plan):
        _present(folder, tables)
    if failed:
        raise typer.Exit(1)


def _present(folder: Path, tables: list[str]) -> None:
    from cacseg._files import write_file
    from cacseg.recipes.ablate import with_paper
    from cacseg.recipes.results import read_results
    from cacseg.reports.comparison import ablation_table, own
    from cacseg.reports.comparison_plots import FORMATS, ablation_figure, saved
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
