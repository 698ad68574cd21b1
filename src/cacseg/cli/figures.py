"""`cacseg figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cacseg.cli import _options as options
from cacseg.cli._console import note, progress_bar, say, typer

if TYPE_CHECKING:
    from cacseg.data.sample import SegmentationData

GRID_ROWS = 4


def figures(
    run: Annotated[Path, typer.Argument(metavar="MODEL", help=options.MODEL)],
    second: Annotated[
        Path | None, typer.Argument(metavar="MODEL2", help="Another, of the same classes, to compare with.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A folder for the figures: new, empty, or with --overwrite.")
    ] = Path("figures"),
    root: Annotated[
        str | None,
        typer.Option("--root", "--data", help="The data set's folder or .zip; the run's own where there is a run."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which data set it is; the run's, or guessed by its layout.")] = None,
    split: Annotated[str | None, typer.Option(help="Which split; val by default.")] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", help="Whose features t-SNE shows; by default the one whose rows move most.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="Images to look at, taken evenly from the split.")] = 24,
    image: Annotated[
        list[str] | None, typer.Option("--image", help="The name of an image to look at instead, again for more.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Images that the grids show; 4 by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="The folder may hold earlier figures.")] = False,
    device: options.Device = "auto",
) -> None:
    """Draw the paper's figures from a trained model.

    \b
    cacseg figures runs/mine -o figures                  all four, from the run's own validation split
    cacseg figures runs/plain runs/context -o figures    the grid compares both; the rest is of the context-aware one
    cacseg figures model.safetensors --root my_data      weights without their run
    cacseg figures runs/mine --class car --image a/001 --image a/002

    \b
    tsne          features of one class in up to six images, with the plain row and each image's own row
    moves         how far each image's classifier moves from the plain one, images x classes (and moves.csv)
    entropy       input, truth, prediction and entropy of the plain and the context-aware classifier
    predictions   input, truth, and the predictions of one or two runs

    Each is written as PNG and SVG. A model with a plain classifier has no rows that move: of it there are entropy
    and predictions alone.
    """
    import cacseg
    from cacseg._files import open_folder
    from cacseg.engine.device import choose_device
    from cacseg.engine.evaluate import compare_classes
    from cacseg.engine.features import adapts
    from cacseg.engine.inference import Inference
    from cacseg.models.saved import find_weights
    from cacseg.recipes.protocol import data_to_evaluate, open_split
    from cacseg.reports.write_figures import Shown, class_number, main_run, write_figures

    place = choose_device(device)
    paths = [run] if second is None else [run, second]
    files = [find_weights(path) for path in paths]
    first = data_to_evaluate(files[0], name=name, root=root, split=split)
    data = open_split(first, "val")
    runs = []
    for title, file in zip(_titles(paths), files, strict=True):
        # Each is shown images as its own run has it.
        protocol = data_to_evaluate(file, name=first.name, root=first.root, split=first.val_split)
        model = cacseg.load(file)
        compare_classes(model, data)
        inference = Inference(window=protocol.window, stride=protocol.stride)
        runs.append(Shown(title, model, inference, protocol.val_scale))
    moving = adapts(main_run(runs).model)
    if class_name is not None:
        class_number(class_name, data.class_names)
        if not moving:
            raise ValueError(f"--class is for t-SNE, which a plain classifier ({main_run(runs).title}) has not.")
    looked_at = _choose(data, images, image or [])
    in_grids = _evenly(looked_at, rows or (len(looked_at) if image else GRID_ROWS))
    open_folder(output, overwrite)
    with progress_bar() as bar:
        task = bar.add_task("looking at images", total=len(in_grids) * len(runs) + len(looked_at) * moving)
        written = write_figures(
            output,
            runs,
            data,
            looked_at,
            in_grids,
            class_name=class_name,
            device=place,
            done=lambda: bar.advance(task),
        )
    for left_out, reason in written.left_out.items():
        note(f"{left_out} is left out: {reason}")
    for title, file in zip(_titles(paths), files, strict=True):
        say(f"{title}: {file}")
    for figure, shown in written.figures.items():
        say(f"{output / figure}.png: {shown}")


def _titles(paths: list[Path]) -> list[str]:
    """The runs by the ends of their paths, as long as it takes to tell them apart."""
    whole = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, whole)) + 1):
        ends = ["/".join(parts[-count:]) for parts in whole]
        if len(set(ends)) == len(ends):
            return ends
    raise ValueError(f"RUN and RUN2 are the same, {paths[0]}. Give two runs, or one.")


def _choose(data: SegmentationData, count: int, names: list[str]) -> list[int]:
    """Places of the named images, else of as many images, taken evenly."""
    from cacseg._checks import did_you_mean

    if not names:
        if len(data) == 0:
            raise ValueError(f"the split {data.split!r} of {data.name} has no images.")
        return _evenly(range(len(data)), count)
    places = {data.image_name(index): index for index in range(len(data))}
    for name in names:
        if name not in places:
            hint = did_you_mean(name, places) or f"The first is {next(iter(places), None)!r}."
            raise ValueError(f"--image must name an image of {data.split!r} of {data.name}; got {name!r}. {hint}")
    return [places[name] for name in dict.fromkeys(names)]


def _evenly(places: Sequence[int], count: int) -> list[int]:
    count = min(count, len(places))
    return [places[k * len(places) // count] for k in range(count)]
