"""The command line. Only this package imports typer; nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cacseg._version import __version__
from cacseg.cli._console import fail, out, typer
from cacseg.cli._groups import DATA, REFERENCE, RESULTS, START, TRAIN, USE, GroupedCommands, TrainCommand
from cacseg.cli.app import app as web_page
from cacseg.cli.bench import bench
from cacseg.cli.compare import ablate, compare
from cacseg.cli.data import data
from cacseg.cli.demo import demo
from cacseg.cli.evaluate import evaluate
from cacseg.cli.export import export
from cacseg.cli.figures import figures
from cacseg.cli.hub import hub
from cacseg.cli.models import import_weights, models
from cacseg.cli.predict import predict
from cacseg.cli.report import report
from cacseg.cli.train import train

app = typer.Typer(
    name="cacseg",
    cls=GroupedCommands,
    help="""Segmentation classifiers that adapt to each image.

    \b
    cacseg demo                                       a first look, without data or GPU
    cacseg data check my_data                         is all well with my images and masks?
    cacseg train folder --root my_data -o runs/mine
    cacseg predict runs/mine photos -o out

    `cacseg COMMAND --help` has examples of each. CACSEG_TRACEBACK=1 shows where an error comes from.""",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


MISTAKES = (ValueError, TypeError, OSError, MemoryError, ModuleNotFoundError)  # of users: one line each


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command(rich_help_panel=START)(demo)
app.add_typer(data, name="data", rich_help_panel=DATA)
app.command(cls=TrainCommand, rich_help_panel=TRAIN)(train)
app.command(rich_help_panel=TRAIN)(compare)
app.command(rich_help_panel=TRAIN)(ablate)
app.command("eval", rich_help_panel=RESULTS)(evaluate)
app.command(rich_help_panel=RESULTS)(report)
app.command(rich_help_panel=RESULTS)(figures)
app.command(rich_help_panel=USE)(predict)
app.command("app", rich_help_panel=USE)(web_page)
app.command(rich_help_panel=USE)(export)
app.command(rich_help_panel=USE)(hub)
app.command(rich_help_panel=REFERENCE)(models)
app.command("import-weights", rich_help_panel=REFERENCE)(import_weights)
app.add_typer(bench, name="bench", rich_help_panel=REFERENCE)


def main() -> None:
    """What a user did wrong is one line and exit code 2; anything else is a bug and keeps its traceback.

    CACSEG_TRACEBACK=1 shows where the one line came from.
    """
    try:
        app()
    except MISTAKES as error:
        if os.environ.get("CACSEG_TRACEBACK", "0") != "0":
            raise
        fail(str(error) or "there is not enough memory. Use a smaller batch, or fewer --workers.")
        sys.exit(2)
