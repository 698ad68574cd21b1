"""`cacseg study table`, `answers`, `classes` and `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cacseg.cli._console import note, say, show, typer
from cacseg.cli._options import lists

if TYPE_CHECKING:
    from cacseg.study.results import Record
    from cacseg.study.tables import TextTable

Folders = Annotated[
    list[Path], typer.Argument(metavar="FOLDER", help="Folders of `cacseg study run`, or their results.csv.")
]
Classes = Annotated[
    list[Path], typer.Argument(metavar="FOLDER", help="Folders of `cacseg study run`, or their classes.csv.")
]
Baseline = Annotated[str | None, typer.Option(help="The arm that others are compared with; the study's by default.")]
Part = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="AXIS=NAME,NAME", help="A part of the results, e.g. seeds=0,1,2. Repeatable."),
]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Write the tables there as well.")]


def table(
    folders: Folders,
    baseline: Baseline = None,
    only: Part = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="A row for each cell and a column for each arm: mIoU alone.")
    ] = False,
    markdown: Markdown = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the results there, those of all folders as one results.csv.")
    ] = None,
) -> None:
    """Mean mIoU of each arm, standard errors, and paired differences from the baseline.

    \b
    cacseg study table runs/presets                                     all of it
    cacseg study table runs/presets --wide --only models=fcn_mobilenetv2
    cacseg study table runs/presets runs/more --csv presets.csv         two folders as one file

    A cell is a data set, a model, an optimiser and a number of steps. There an arm is ahead where it gains a point of
    mIoU or more and more than two standard errors of the difference, above where it gains more than two but less than a
    point, behind where it loses more than two, and even otherwise. Fewer than three seeds give no verdict. Oracle
    answers have seen the labels.
    """
    from cacseg._files import write_file
    from cacseg.study.results import COLUMNS, read_records, rows, write_rows
    from cacseg.study.summary import baseline_of, pool, summarise
    from cacseg.study.tables import arms_table, pooled_table, wide_table
    from cacseg.study.tables import markdown as in_markdown

    _check_place("--csv", csv_file, ".csv", folders)
    _check_place("--markdown", markdown, ".md", folders)
    records = read_records(folders, lists("--only", only))
    base = baseline_of(records, baseline)
    lines = summarise(records, base)
    tables = [(wide_table if wide else arms_table)(lines, base), pooled_table(pool(lines, base))]
    _draw(tables)
    _note_failed(records)
    if markdown is not None:
        write_file(markdown, "\n".join(in_markdown(one) for one in tables))
    if csv_file is not None:
        write_rows(csv_file, COLUMNS, rows(sorted(records, key=lambda record: record["id"])))


def answers(
    folders: Folders,
    beside: Annotated[str, typer.Option(metavar="ANSWER", help="The answer that others are compared with.")] = "plain",
    of: Annotated[
        str | None, typer.Option("--of", metavar="ANSWER,ANSWER", help="The answers to show; all others by default.")
    ] = None,
    only: Part = None,
    markdown: Markdown = None,
) -> None:
    """The answers of the same models beside each other.

    \b
    cacseg study answers runs/presets                                   context, mean and oracle beside plain
    cacseg study answers runs/presets --of context --only arms=tuned

    Every job scores all answers of its model from one pass: plain, context, the mean of both, and oracle, which has
    seen the labels. Two of them share the features, so that their difference is without the noise of training twice; a
    difference between arms (cacseg study table) is not. What follows a sign of plus or minus is the standard error
    over seeds; verdicts are those of table, and are counted for each arm's own answer.
    """
    from cacseg._files import write_file
    from cacseg.study.file import check_known
    from cacseg.study.results import read_records
    from cacseg.study.summary import pool, summarise_answers
    from cacseg.study.tables import answers_table, pooled_table
    from cacseg.study.tables import markdown as in_markdown

    _check_place("--markdown", markdown, ".md", folders)
    records = read_records(folders, lists("--only", only))
    lines = summarise_answers(records, beside)
    if of is not None:
        shown = of.split(",")
        check_known("answer (of --of)", shown, sorted({line.answer for line in lines}))
        lines = [line for line in lines if line.answer in shown]
    if not lines:
        raise ValueError(f"no model has another answer than {beside!r}. There is nothing to compare.")
    tables = [answers_table(lines, beside)]
    counts = pool(lines)
    if counts:  # the arms' own answers are among them
        tables.append(pooled_table(counts))
    _draw(tables)
    _note_failed(records)
    ended = [record for record in records if record["status"] != "failed"]
    without = sorted({record["arm"] for record in ended if beside not in record["answers"]})
    if without:
        note(f"models without the answer {beside!r} take no part: of {', '.join(without)}")
    if markdown is not None:
        write_file(markdown, "\n".join(in_markdown(one) for one in tables))


def classes(
    folders: Classes,
    baseline: Annotated[str | None, typer.Option(help="The arm that comes first; plain by default.")] = None,
    differences: Annotated[
        bool, typer.Option("--differences", help="How far each arm is from the first one, with errors.")
    ] = False,
    only: Part = None,
    markdown: Markdown = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the results there, those of all folders as one classes.csv.")
    ] = None,
) -> None:
    """Mean IoU of each class over seeds, in each arm's own answer: where an arm gains and where it loses.

    \b
    cacseg study classes runs/full --only data=camvid
    cacseg study classes runs/full --differences                        beside the baseline at equal seeds

    What follows a sign of plus or minus is the standard error of a difference over seeds.
    """
    from cacseg._files import write_file
    from cacseg.study.classes import COLUMNS, classes_tables, read_classes
    from cacseg.study.results import part_of, write_rows
    from cacseg.study.tables import markdown as in_markdown

    _check_place("--csv", csv_file, ".csv", folders)
    _check_place("--markdown", markdown, ".md", folders)
    rows = part_of(read_classes(folders), lists("--only", only))
    tables = classes_tables(rows, baseline, differences=differences)
    _draw(tables)
    if markdown is not None:
        write_file(markdown, "\n".join(in_markdown(one) for one in tables))
    if csv_file is not None:
        write_rows(csv_file, COLUMNS, rows)


def _note_failed(records: Sequence[Record]) -> None:
    failed = sum(record["status"] == "failed" for record in records)
    if failed:
        note(f"{failed} of {len(records)} jobs failed and take no part; their records say why")


def _check_place(option: str, path: Path | None, suffix: str, sources: Sequence[Path]) -> None:
    """What is read is never overwritten, nor a file of another kind."""
    if path is None:
        return
    if path.suffix.lower() != suffix:
        raise ValueError(f"{option} must be a file whose name ends in {suffix}; got {path}.")
    if any(path.resolve() in (source.resolve(), *map(Path.resolve, source.glob("*.csv"))) for source in sources):
        raise ValueError(f"{option} {path} is one of the files that are read. Give another name.")


def _draw(tables: Sequence[TextTable]) -> None:
    from rich.table import Table

    for one in tables:
        drawn = Table(title=one.title, min_width=len(one.title))
        for place, name in enumerate(one.header):
            drawn.add_column(name, justify="left" if place < one.words else "right", no_wrap=True)
        for row in one.rows:
            drawn.add_row(*row)
        show(drawn, full_width=True)


def plot(
    folders: Folders,
    baseline: Baseline = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="A .png, .svg or .pdf; FOLDER/differences.png by default, of a NAME.csv NAME.png where you are.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Above the picture; the study's name by default.")] = None,
    only: Part = None,
) -> None:
    """Draw the differences from the baseline: each seed, means, two standard errors."""
    from cacseg._files import write_file
    from cacseg.study.plots import difference_picture
    from cacseg.study.results import read_records
    from cacseg.study.summary import baseline_of, summarise

    first = folders[0]
    path = output or (Path(f"{first.stem}.png") if first.suffix == ".csv" else first / "differences.png")
    records = read_records(folders, lists("--only", only))
    base = baseline_of(records, baseline)
    names = ", ".join(dict.fromkeys(str(record["study"]) for record in records))
    picture = difference_picture(summarise(records, base), base, title or names, path.suffix.lower().lstrip("."))
    write_file(path, picture)
    say(str(path))
