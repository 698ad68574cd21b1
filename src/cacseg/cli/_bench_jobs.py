"""`cacseg bench train`, `predict` and `data`: whole jobs, from files on disk."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import Progress
from rich.table import Table

from cacseg._files import check_target
from cacseg.cli import _options as options
from cacseg.cli._bench import Classes, Device, JsonFile, Overwrite, Rounds, write_json
from cacseg.cli._console import messages, say, show, typer

if TYPE_CHECKING:
    from cacseg.bench.jobs import Rate


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="As of `cacseg train`.")] = "folder",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as of `cacseg train`. Repeatable."),
    ] = None,
    root: Annotated[str | None, typer.Option(help="The data set; generated JPEGs of 683x512 by default.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each row; a quarter more go before.")] = 100,
    rounds: Rounds = 3,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Time `cacseg train` on files against a PyTorch loop.

    \b
    cacseg bench train                                                on generated files
    cacseg bench train msrc21 --root data/msrc21 --set training.precision=bf16

    Images a second. The loop trains the same plain model, its pyramid of features concatenated before it is
    convolved, with a DataLoader of as many workers, torchvision's v2 transforms (with our reader of files),
    F.interpolate, F.cross_entropy and AdamW; where mmsegmentation is installed, another loop with its transforms. Rows
    run in turn; validation is left out.
    """
    from cacseg.bench.compare import describe_machine
    from cacseg.bench.data import write_generated
    from cacseg.bench.jobs import compare_rates, train_jobs
    from cacseg.cli._options import open_recipe, read_changes
    from cacseg.engine.decisions import training_device
    from cacseg.engine.device import available_cores
    from cacseg.recipes.config import change
    from cacseg.recipes.protocol import open_split

    if json_file is not None:
        check_target(json_file, overwrite)
    # Crops are tried once: torchvision has nothing like data.max_share.
    config = change(open_recipe(recipe)[1], {"data.max_share": 1.0, **read_changes(settings, root)})
    facts: dict[str, Any] = {"recipe": recipe, "settings": settings or [], "root": root}
    facts |= {"steps": steps, "rounds": rounds}
    facts |= {"batch": config.training.batch, "crop": config.data.crop, "cores": available_cores()}
    with tempfile.TemporaryDirectory() as scratch, Progress(console=messages, transient=True) as bar:
        if config.data.root is None and config.data.name == "folder":
            write_generated(Path(scratch), 128)
            config = change(config, {"data.name": "ade20k", "data.root": scratch, "data.val_split": "train"})
        data = open_split(config.data, "train")
        facts |= {"images": len(data), "classes": len(data.class_names)}
        jobs = train_jobs(config, steps)
        task = bar.add_task("training", total=rounds * len(jobs))
        rates = compare_rates(jobs, rounds, lambda: bar.advance(task))
    place, crop, run = training_device(config.training), "x".join(map(str, config.data.crop)), config.training
    title = f"{run.batch} crops of {crop} a step, {run.precision}, {run.workers} workers"
    show_rates(f"training {config.model.name} on {place}: {title}", rates)
    write_json(
        json_file, {**describe_machine(place), **facts, "rows": {name: one._asdict() for name, one in rates.items()}}
    )


def predict(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="IMAGES", help="Images, folders, or globs; generated JPEGs by default."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="Whose model is used, with random weights.")] = "folder",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of it. Repeatable.")
    ] = None,
    classes: Classes = 19,
    images: Annotated[int, typer.Option(min=1, help="How many images at most.")] = 128,
    device: Device = "",
    precision: options.AutoPrecision = "auto",
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Images in a batch; what `cacseg predict` takes, by default.", show_default=False),
    ] = None,
    workers: options.Workers = options.WORKERS,
    rounds: Rounds = 3,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Time `cacseg predict` on files against a PyTorch loop.

    \b
    cacseg bench predict                                              on generated files
    cacseg bench predict photos --set model.name=fcn_mobilenetv2 --precision fp32

    Images a second, files read and masks written.
    The loop opens an image with Pillow, runs the model on it and saves the mask, one image after the other; the model's
    pyramid of features is concatenated before it is convolved.
    """
    import torch

    from cacseg.bench.compare import describe_machine
    from cacseg.bench.data import write_generated
    from cacseg.bench.jobs import compare_rates, predict_jobs, random_model
    from cacseg.cli._options import open_recipe, read_changes
    from cacseg.engine.backend import TorchBackend
    from cacseg.engine.device import available_cores, choose_device
    from cacseg.recipes.config import change
    from cacseg.runtime.inputs import find_images

    if json_file is not None:
        check_target(json_file, overwrite)
    place = choose_device(device or "auto")
    chosen = change(open_recipe(recipe)[1], read_changes(settings, None)).model
    torch.manual_seed(0)
    backend = TorchBackend(random_model(chosen, classes).eval(), device=place, precision=precision)
    batch = batch or backend.batch
    with tempfile.TemporaryDirectory() as scratch, Progress(console=messages, transient=True) as bar:
        if not paths:
            write_generated(Path(scratch), images)
            paths = [f"{scratch}/ADEChallengeData2016/images"]
        files = [one.path for one in find_images(paths)][:images]
        jobs = predict_jobs(backend, files, batch=batch, workers=workers)
        task = bar.add_task("predicting", total=(rounds + 1) * len(jobs))
        compare_rates(jobs, 1, lambda: bar.advance(task))  # fills the file cache, chooses algorithms
        rates = compare_rates(jobs, rounds, lambda: bar.advance(task))
    show_rates(f"prediction of {len(files)} images with {chosen.name} on {place}, {backend.precision}", rates)
    facts: dict[str, Any] = {"recipe": recipe, "settings": settings or [], "images": len(files), "rounds": rounds}
    facts |= {"precision": backend.precision, "batch": batch, "workers": workers}
    facts |= {"classes": classes, "cores": available_cores()}
    write_json(
        json_file, {**describe_machine(place), **facts, "rows": {name: one._asdict() for name, one in rates.items()}}
    )


def show_rates(title: str, rates: dict[str, Rate]) -> None:
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for name in ("images/s", "x first", "least", "most"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in rates.items():
        table.add_row(name, f"{one.images_per_second:.1f}", *(f"{ratio:.2f}" for ratio in one[1:]))
    show(table)


def data(
    root: Annotated[
        Path | None,
        typer.Argument(metavar="DATA", help="A data set; generated 683x512 JPEGs in ADE20K's layout by default."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which data set it is; guessed by its layout otherwise.")] = None,
    split: Annotated[str, typer.Option(help="The split to read.")] = "train",
    crop: Annotated[tuple[int, int], typer.Option(help="Height and width of the crops.")] = (512, 512),
    scale: Annotated[
        tuple[int, int], typer.Option(help="Long and short side that images are fitted into at ratio 1.")
    ] = (2048, 512),
    images: Annotated[int, typer.Option(min=1, help="Images a round.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the median counts; one more is left out.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time reading and transforming images for training.

    \b
    cacseg bench data                                                 on generated files
    cacseg bench data my_data --crop 512 512

    Images a second of one core: decoding, resizing, crop, flip, distortion.
    """
    from cacseg.bench.data import measure, write_generated
    from cacseg.data import TrainTransform, open_data
    from cacseg.data.check import guess_name

    with tempfile.TemporaryDirectory() as scratch, Progress(console=messages, transient=True) as bar:
        if root is None:
            if name is not None or split != "train":
                raise ValueError("--name and --split belong to DATA; without it, files are generated.")
            task = bar.add_task("generating files", total=None)
            write_generated(Path(scratch), min(images, 64))
            bar.remove_task(task)
        place = Path(scratch) if root is None else root
        source = open_data(guess_name(place) if name is None else name, place, split)
        task = bar.add_task("timing", total=rounds + 1)
        transform = TrainTransform(crop, scale)
        result = measure(source, transform, images=images, rounds=rounds, progress=lambda _: bar.advance(task))
    if as_json:
        described = {"data": "generated 683x512" if root is None else str(root), "crop": crop, "scale": scale}
        print(json.dumps({**described, **result.as_json()}, indent=2))
        return
    bounds = f"{min(result.rounds):.1f} to {max(result.rounds):.1f}"
    say(f"{result.images_per_second:.1f} images a second a core ({bounds} in {rounds} rounds of {images})")
    say(f"  {result.read_ms:.2f} ms to read and decode, {result.transform_ms:.2f} ms to transform")
