"""`cacseg bench ...`: one command for each thing that is timed."""

from __future__ import annotations

from cacseg.cli._console import typer
from cacseg.cli.bench_data import data
from cacseg.cli.bench_speed import infer, loss, step

bench = typer.Typer(help="Timings that you can repeat.", no_args_is_help=True)
for command in (loss, step, infer, data):
    bench.command()(command)


@bench.callback()
def _group() -> None:
    """Timings that you can repeat."""
