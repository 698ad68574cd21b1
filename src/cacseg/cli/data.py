"""`cacseg data list`, `cacseg data check` and `cacseg data convert`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.table import Table

from cacseg.cli._console import naming_images, progress_bar, say, show, typer
from cacseg.cli._options import (
    WORKERS,
    Crowd,
    EmptyClasses,
    IgnoreIndex,
    MaxPixels,
    ShapeOverlap,
    Uncovered,
    make_rules,
)

if TYPE_CHECKING:
    from cacseg.data.check import Report

data = typer.Typer(
    help="""List, check and convert data sets.

    \b
    cacseg data list                                              the data sets and their folders
    cacseg data check my_data                                     is all well with my images and masks?
    cacseg data convert labelme_folder -o my_data                 index PNGs from polygons""",
    no_args_is_help=True,
)

SHOWN = 20  # problems of a split that are printed


@data.command("list")
def list_data(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """List the known data sets and their folder layouts.

    \b
    cacseg data list
    cacseg data list --json
    """
    from cacseg.data import DATA_SETS
    from cacseg.data.class_list import builtin_classes
    from cacseg.data.layouts import OWN
    from cacseg.data.synthetic import CLASSES

    counts = {**dict.fromkeys(OWN), "synthetic": len(CLASSES), "pascal_context60": 60}
    rows = [
        {"name": name, "classes": counts[name] if name in counts else len(builtin_classes(name).names), "layout": tree}
        for name, tree in DATA_SETS.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "classes", "layout, in a folder or a .zip")
    for row in rows:
        table.add_row(str(row["name"]), str(row["classes"] or "yours"), escape(str(row["layout"])))
    show(table)


@data.command()
def check(
    root: Annotated[Path, typer.Argument(metavar="DATA", help="The folder or .zip of the data set.")],
    name: Annotated[str | None, typer.Option(help="Which data set it is; guessed by its layout otherwise.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="A split to check, again for more; all by default.")] = None,
    ignore_index: IgnoreIndex = None,
    overlap: ShapeOverlap = "later",
    uncovered: Uncovered = "background",
    crowd: Crowd = "class",
    empty_classes: EmptyClasses = "keep",
    bands: Annotated[
        int | None,
        typer.Option(min=1, help="Read images as so many bands, of 16 bits or floats; else as 8-bit colours."),
    ] = None,
    max_pixels: MaxPixels = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes; one for each core by default.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A folder for contact sheets and report.json; none are written otherwise."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files in the output folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Read every file of a data set and list what is wrong.

    \b
    cacseg data check my_data
    cacseg data check my_data -o sheets                           pictures of images and labels, faulty ones first
    cacseg data check coco.zip --name coco --split val

    The exit code is 0 where `cacseg train` takes the data, else 1. Unpaired files, sizes that differ, labels out of
    range, files that cannot be read, a missing train or val split; and how often each class occurs. The sheets of
    --output show faulty images first, each with what is wrong.
    """
    from cacseg._files import check_target
    from cacseg.data.check import check_data, guess_name

    chosen = guess_name(root) if name is None else name
    if name is None and not as_json:
        say(f"{root} is read as {chosen!r}, guessed from its folders; --name NAME reads it as another data set.")
    if output is not None:  # before the long work
        check_target(output / "report.json", overwrite)
    with progress_bar() as bar:
        tasks = {}

        def progress(split: str, done: int, total: int) -> None:
            if split not in tasks:
                tasks[split] = bar.add_task(escape(f"checking {split}"), total=total)
            bar.update(tasks[split], completed=done)

        report = check_data(
            chosen,
            root,
            split or (),
            rules=make_rules(ignore_index, overlap, uncovered, crowd, empty_classes, bands, max_pixels),
            workers=workers,
            sheet_rows=6 if output else 0,
            progress=progress,
        )
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _print(report)
    if output is not None:
        for path in _write(report, output, overwrite):
            if not as_json:
                say(f"wrote {path}")
    if not report.ok:
        raise typer.Exit(1)


@data.command()
def convert(
    root: Annotated[Path, typer.Argument(metavar="DATA", help="The folder or .zip of the data set.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A folder, new or of a conversion that was stopped.")],
    target: Annotated[str, typer.Option("--format", help="folder: images/, labels/, classes.txt; or coco.")] = "folder",
    name: Annotated[str | None, typer.Option(help="Which data set it is; guessed by its layout otherwise.")] = None,
    ignore_index: IgnoreIndex = None,
    overlap: ShapeOverlap = "later",
    uncovered: Uncovered = "background",
    crowd: Crowd = "class",
    empty_classes: EmptyClasses = "keep",
    max_pixels: MaxPixels = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads.")] = WORKERS,
) -> None:
    """Write a data set as index PNGs or as COCO.

    \b
    cacseg data convert labelme_folder -o my_data                 images/, labels/ (index PNGs), classes.txt
    cacseg data convert my_data -o my_coco --format coco

    The same command again goes on where it was stopped. Images are copied as they are. At the end every file is
    read back and compared with the source. Images that cannot be read are named, and the exit code is 1: the others
    are in OUTPUT.part, which gets its name once all are there.
    """
    from cacseg.data.check import guess_name
    from cacseg.data.convert import convert as convert_data
    from cacseg.data.sample import FaultyDataError, FaultyImagesError

    rules = make_rules(ignore_index, overlap, uncovered, crowd, empty_classes, max_pixels=max_pixels)
    with naming_images(), progress_bar() as bar:
        tasks = {}

        def progress(split: str, done: int, total: int) -> None:
            if split not in tasks:
                tasks[split] = bar.add_task(escape(f"writing {split}"), total=total)
            bar.update(tasks[split], completed=done)

        chosen = name or guess_name(root)
        try:
            counts = convert_data(
                chosen,
                root,
                output,
                target=target,  # type: ignore[arg-type]
                rules=rules,
                workers=workers,
                progress=progress,
            )
        except FaultyImagesError:  # names each
            raise
        except FaultyDataError as error:
            from cacseg.recipes.build import check_hint
            from cacseg.recipes.config import DataConfig

            made = {key: value for key, value in rules._asdict().items() if value is not None}
            hint = check_hint(DataConfig(name=chosen, root=str(root), crop=(16, 16), **made))  # crops play no part
            raise FaultyDataError(f"{error} {hint}") from error
    listed = ", ".join(f"{count} of {split}" for split, count in counts.items())
    hint = " Read it with --set data.uncovered=ignore: every class has its masks." if target == "coco" else ""
    say(f"{output}: {listed}; read back and compared.{hint}")


def _print(report: Report) -> None:
    from cacseg.data.check import bands_as_json
    from cacseg.reports.tables import rich_table

    for one in report.splits:
        sizes = sorted(one.sizes, key=lambda size: -one.sizes[size])
        listed = ", ".join(f"{w}x{h} ({one.sizes[h, w]})" for h, w in sizes[:3]) + (", ..." if len(sizes) > 3 else "")
        title = f"{report.name} {one.split}: {one.images} images, {listed or 'none readable'}"
        labelled = max(1, int(one.pixels[: len(report.class_names)].sum()))
        rows = [
            [f"{k} {name}", f"{one.pixels[k]:,}", f"{100 * one.pixels[k] / labelled:.2f}", f"{one.images_with[k]:,}"]
            for k, name in enumerate(report.class_names)
        ]
        ignored, total = int(one.pixels[255]), max(1, int(one.pixels.sum()))
        rows.append(["ignored", f"{ignored:,}", f"({100 * ignored / total:.2f} of all)", ""])
        show(rich_table(title, ["class", "pixels", "share %", "images"], rows, no_wrap=0))
        if one.bands is not None:
            rows = band_rows(bands_as_json(one.bands))
            show(rich_table(f"{report.name} {one.split}: bands", BAND_TITLES, rows, no_wrap=0))
        for problem in one.problems[:SHOWN]:
            say(f"  wrong: {problem}")
        if len(one.problems) > SHOWN:
            say(f"  ... and {len(one.problems) - SHOWN} more (--json lists them all)")
    for problem in report.missing:
        say(f"  wrong: {problem}")
    for note in report.notes:
        say(f"  note: {note}")
    say(report.verdict)


BAND_TITLES = ["band", "mean", "deviation", "least", "most", "no data %"]


def band_rows(bands: list[dict[str, float]]) -> list[list[str]]:
    rows = []
    for place, one in enumerate(bands, 1):
        empty = 100.0 * one["no_data"] / max(1.0, one["no_data"] + one["pixels"])
        rows.append([str(place), *(f"{one[key]:.6g}" for key in ("mean", "std", "least", "most")), f"{empty:.2f}"])
    return rows


def _write(report: Report, folder: Path, overwrite: bool) -> Iterator[Path]:
    from cacseg._files import write_file
    from cacseg.data.pictures import save_picture

    for one in report.splits:
        if one.sheet is not None:
            save_picture(folder / f"{one.split}.png", one.sheet, overwrite=overwrite)
            yield folder / f"{one.split}.png"
    write_file(folder / "report.json", json.dumps(report.as_json(), indent=2) + "\n", overwrite=overwrite)
    yield folder / "report.json"
