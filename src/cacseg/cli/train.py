"""`cacseg train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from rich.table import Table

from cacseg.cli._console import STOPPED, messages, note, out, say, show, typer
from cacseg.cli._options import open_recipe, read_changes
from cacseg.cli.report import NAME, WantReport, explain_failure, write_page


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A name of --list, an earlier run or its config.json, or what --print-config wrote. With --resume it "
            "may be left out.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one setting, e.g. optimiser.rate=0.001; `--settings` lists them all. Repeatable.",
        ),
    ] = None,
    root: Annotated[
        str | None, typer.Option(help="The folder or .zip of the data set; short for --set data.root=.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The run's folder; runs/RECIPE by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder exactly where its checkpoint was taken.")
    ] = False,
    list_recipes: Annotated[
        bool, typer.Option("--list", help="List the recipes (RECIPE filters by name) and stop.")
    ] = False,
    list_settings: Annotated[
        bool, typer.Option("--settings", help="List every setting, with its value in RECIPE if given, and stop.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the whole configuration as JSON and stop.")
    ] = False,
    progress: Annotated[bool, typer.Option(help="Draw a progress bar.")] = True,
    report: WantReport = True,
) -> None:
    """Train a model by a recipe, on one CPU, one GPU or many.

    \b
    cacseg train synthetic                                        a first try, minutes on a CPU
    cacseg train folder --root my_data -o runs/mine               images/{train,val}, labels/{train,val}, classes.txt
    cacseg train folder --root my_data --set model.pretrained=true               from ImageNet weights, not random ones
    cacseg train ade20k/upernet_swin_tiny --root data             as the paper does
    cacseg train folder --root my_data --set schedule.steps=2000 --set training.precision=bf16
    cacseg train --resume -o runs/mine                            after a crash or Ctrl-C
    torchrun --nproc-per-node 4 -m cacseg.cli train ade20k/upernet_swin_tiny --root data

    The folder gets config.json, last.ckpt (to resume from), last.safetensors and best.safetensors (for cacseg.load,
    `cacseg eval` and `cacseg predict`), metrics.csv, TensorBoard files and report.html. A folder that holds a run is
    never overwritten. Before the first step one batch of training and of validation is run through, so that what is
    wrong with data, model, memory or disk shows at once. Batch, steps and intervals are those of the whole run,
    whatever the number of devices.
    """
    from cacseg.recipes.config import change
    from cacseg.recipes.files import read_config

    if list_recipes:
        _list(recipe or "")
        return
    if list_settings and recipe is None and not resume:
        _list_settings(None)
        return
    if recipe is not None:
        name, config = open_recipe(recipe)
    elif resume and output is not None:
        name, config, *_ = read_config(output)
    else:
        raise ValueError("a recipe is needed; `cacseg train --list` shows them. To continue a run: --resume -o FOLDER.")
    config = change(config, read_changes(settings, root))
    if list_settings:
        _list_settings(config)
        return
    if print_config:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        return
    folder = output or Path("runs") / name.replace("/", "_")
    with messages.status("loading"):
        from torch import distributed

        from cacseg.engine._lightning import is_first_process
        from cacseg.engine.callbacks import Stopped
        from cacseg.recipes.build import run

    def tell(text: str) -> None:
        if is_first_process():
            note(text, "")

    try:
        result = run(config, folder, recipe=name, resume=resume, report=tell, progress=progress)
    except Stopped as stopped:
        tell(f"{stopped}; continue with: cacseg train --resume -o {folder}")
        raise typer.Exit(STOPPED) from None
    if is_first_process():
        best = f"best mIoU {100 * result.best_mean_iou:.2f} at step {result.best_step} (best.safetensors)"
        none = "no validation gave a mIoU: are all labels of the validation split ignored? (last.safetensors)"
        say(f"{folder}: {result.step} steps, {best if result.best_step else none}")
    if distributed.is_initialized():
        distributed.destroy_process_group()  # the report is the work of one process
    if report and is_first_process():
        explain_failure(lambda: write_page([folder], folder / NAME))


def _list_settings(config) -> None:  # type: ignore[no-untyped-def]
    from cacseg.recipes.settings import describe_settings

    table = Table(title="settings: cacseg train RECIPE --set KEY=VALUE")
    most = max(8, out.width // 4 - 11) if out.is_terminal else None  # half of what keys leave is for the descriptions
    table.add_column("key", no_wrap=True)
    table.add_column("type", max_width=most, overflow="fold")
    table.add_column("default" if config is None else "value", max_width=most, overflow="fold")
    table.add_column("what", overflow="fold")
    for setting in describe_settings(config):
        table.add_row(*map(escape, setting))
    show(table)


def _list(match: str) -> None:
    from cacseg.recipes.named import RECIPES

    names = [name for name in RECIPES if match in name]
    if not names:
        raise ValueError(f"no recipe's name contains {match!r}. There are folder, camvid, ade20k/..., and others.")
    table = Table(title="recipes: cacseg train NAME")
    for column in ("name", "model", "data", "crop", "optimiser", "batch", "steps", "note"):
        least = max(map(len, names)) if column == "name" else None  # which is what one came for
        table.add_column(column, no_wrap=column != "note", min_width=least)
    for name in names:
        recipe = RECIPES[name]
        config = recipe.make()
        table.add_row(
            name,
            config.model.name,
            config.data.name,
            "x".join(map(str, config.data.crop)),
            f"{config.optimiser.name} {config.optimiser.rate:g}",
            str(config.training.batch),
            str(config.schedule.steps),
            recipe.note,
        )
    show(table)
