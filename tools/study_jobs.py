"""The command line that the measuring scripts beside this file share: a part of a study, as jobs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from cacseg.cli._options import lists, pairs
from cacseg.recipes.config import parse_setting
from cacseg.study.file import read_study
from cacseg.study.plan import Job, make_plan


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Which jobs of which study, with how many steps."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="a study's TOML file")
    parser.add_argument("--root", action="append", default=[], metavar="DATA=FOLDER", help="where a data set lies")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of every job")
    parser.add_argument("--only", action="append", default=[], metavar="AXIS=A,B", help="a part of the grid")
    parser.add_argument("--steps", type=int, required=True, help="steps of each job")
    return parser


def run_jobs(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    seeds: tuple[int, ...],
    header: str,
    measure: Callable[[Job], None],
) -> None:
    """Prints the header of a table and lets each job add its rows; what is wrong is said in one line."""
    if given.steps < 1:
        parser.error(f"--steps must be at least 1; got {given.steps}.")
    try:
        study = replace(read_study(given.study), seeds=seeds, steps=(given.steps,))
        settings = dict(map(parse_setting, given.set))
        jobs = make_plan(study, pairs("--root", given.root), settings, lists("--only", given.only))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(header, flush=True)
    for job in jobs:
        measure(job)
