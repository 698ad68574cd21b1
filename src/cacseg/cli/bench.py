"""`cacseg bench`: loss, step and infer (plain and ours side by side); whole jobs, train and predict; and data."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import Progress
from rich.table import Table

from cacseg._files import check_target, write_file
from cacseg.cli import _options as options
from cacseg.cli._console import messages, say, show, typer
from cacseg.cli._options import integers

if TYPE_CHECKING:
    import torch

    from cacseg.bench.compare import Row
    from cacseg.bench.jobs import Rate

bench = typer.Typer(help="Timings that you can repeat.", no_args_is_help=True)

Device = Annotated[str, typer.Option(help="cpu or cuda; cuda if there is one by default.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Batch = Annotated[int, typer.Option(min=1, help="Images a step.")]
Classes = Annotated[int, typer.Option(min=2, help="Classes.")]
Rounds = Annotated[int, typer.Option(min=1, help="Timed rounds, of which medians count.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Mode = Annotated[
    str,
    typer.Option(help="eager, compile, graph (replayed as a CUDA graph, without the host) or compiled-graph (both)."),
]
Preset = Annotated[str, typer.Option(help="Of the context-aware classifier: paper, released or tuned.")]
Model = Annotated[str, typer.Option(help="A name of `cacseg models`.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures there, with what repeats them.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the JSON file if it exists.")]


def _prepare(
    device: str,
    dtype: str,
    threads: int,
    file: Path | None,
    overwrite: bool,
    mode: str = "eager",
    preset: str = "tuned",
) -> tuple[torch.device, torch.dtype]:
    """Checks the options before minutes of timing."""
    import torch

    from cacseg._checks import check_choice
    from cacseg.bench.steps import MODES
    from cacseg.engine.device import choose_device
    from cacseg.presets import PRESETS

    check_choice("--dtype", dtype, ("float32", "bfloat16", "float16"))
    check_choice("--mode", mode, MODES)
    check_choice("--preset", preset, tuple(PRESETS))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_choice("--device", device, ("cpu", "cuda"))
    if file is not None:
        check_target(file, overwrite)
    torch.set_num_threads(threads)
    return choose_device(device), getattr(torch, dtype)


def _timed(steps: dict[str, Any], device: torch.device, rounds: int, warm_up: int = 3) -> dict[str, Row]:
    from cacseg.bench.compare import compare

    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("timing", total=rounds + warm_up)
        return compare(steps, device, rounds=rounds, warm_up=warm_up, progress=lambda _: bar.advance(task))


def _show(title: str, rows: dict[str, Row], batch: int | None = None) -> None:
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    rate = ("fps",) if batch is not None else ()
    for name in ("ms", *rate, "x first", "least", "most", "MiB", "x first"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in rows.items():
        speed = [] if batch is None else [f"{batch * 1e3 / row.time_ms:.1f}"]
        ratios = [f"{ratio:.3f}" for ratio in (row.time_ratio, row.time_ratio_least, row.time_ratio_most)]
        held = "" if row.memory_mib is None else f"{row.memory_mib:.0f}"
        held_ratio = "" if row.memory_ratio is None else f"{row.memory_ratio:.3f}"
        table.add_row(name, f"{row.time_ms:.2f}", *speed, *ratios, held, held_ratio)
    show(table)


def _write(path: Path | None, content: dict[str, Any] | list[dict[str, Any]]) -> None:
    if path is not None:
        write_file(path, json.dumps(content, indent=2) + "\n")
        say(f"wrote {path}")


@bench.command()
def loss(
    device: Device = "",
    dtype: Dtype = "float32",
    batch: Batch = 4,
    classes: Classes = 150,
    channels: Annotated[int, typer.Option(min=2, help="Channels of the features.")] = 512,
    size: Annotated[int, typer.Option(min=1, help="Height and width of the features.")] = 128,
    ratio: Annotated[int, typer.Option(min=1, help="Labels are this many times larger.")] = 4,
    mode: Mode = "eager",
    looped: Annotated[
        bool, typer.Option("--looped/--no-looped", help="With the authors' way of computing as a row.")
    ] = True,
    rounds: Rounds = 10,
    threads: Threads = 2,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Classifier and loss from the features on, forward and backward.

    plain: conv, F.interpolate and F.cross_entropy; beside it conv and cacseg.upsampled_cross_entropy, the presets, and
    the authors' way of computing.
    """
    from cacseg.bench.compare import record
    from cacseg.bench.steps import loss_steps

    place, kind = _prepare(device, dtype, threads, json_file, overwrite, mode)
    facts = dict(batch=batch, classes=classes, channels=channels, size=size, ratio=ratio, mode=mode)
    steps = loss_steps(place, kind, looped=looped, **facts)  # type: ignore[arg-type]
    rows = _timed(steps, place, rounds, warm_up=3 if place.type == "cuda" else 1)
    shape = f"b={batch} n={classes} d={channels} {size}x{size} -> {size * ratio}x{size * ratio}"
    _show(f"loss, forward + backward, {place} {dtype} {mode}: {shape}", rows)
    _write(json_file, record(rows, place, dtype=dtype, **facts, threads=threads, rounds=rounds))


@bench.command()
def step(
    model: Model = "upernet_swin_tiny",
    device: Device = "",
    dtype: Dtype = "float32",
    batch: Batch = 4,
    classes: Classes = 150,
    size: Annotated[int, typer.Option(min=32, help="Height and width of the images.")] = 512,
    auxiliary: Annotated[bool, typer.Option("--auxiliary/--no-auxiliary", help="With the auxiliary head.")] = True,
    preset: Preset = "tuned",
    rounds: Rounds = 10,
    threads: Threads = 2,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """A whole training step of a model with AdamW.

    plain: F.interpolate and F.cross_entropy; beside it the same model with cacseg.upsampled_cross_entropy, and the
    context-aware one.
    """
    from cacseg.bench.compare import record
    from cacseg.bench.steps import train_steps

    place, kind = _prepare(device, dtype, threads, json_file, overwrite, preset=preset)
    facts = dict(batch=batch, classes=classes, size=size, auxiliary=auxiliary, preset=preset)
    rows = _timed(train_steps(model, place, kind, **facts), place, rounds)  # type: ignore[arg-type]
    _show(f"training step of {model}, {place} {dtype}: b={batch} {size}x{size}", rows)
    _write(json_file, record(rows, place, model=model, dtype=dtype, **facts, threads=threads, rounds=rounds))


@bench.command()
def infer(
    model: Model = "upernet_swin_tiny",
    device: Device = "",
    dtype: Dtype = "bfloat16",
    batch: Batch = 1,
    classes: Classes = 150,
    sizes: Annotated[str, typer.Option(help="Heights and widths, with commas.")] = "512",
    table: Annotated[bool, typer.Option("--table", help="The paper's efficiency table: 512, 1280 and 2560.")] = False,
    mode: Mode = "eager",
    preset: Preset = "tuned",
    rounds: Rounds = 20,
    threads: Threads = 2,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Inference of a model at one or several sizes, plain and context-aware: frames a second and memory."""
    from cacseg.bench.compare import record
    from cacseg.bench.steps import inference_steps

    place, kind = _prepare(device, dtype, threads, json_file, overwrite, mode, preset)
    records = []
    for size in (512, 1280, 2560) if table else integers("--sizes", sizes):
        facts = dict(batch=batch, classes=classes, size=size, mode=mode, preset=preset)
        steps = inference_steps(model, place, kind, **facts)  # type: ignore[arg-type]
        rows = _timed(steps, place, rounds)
        _show(f"inference of {model}, {place} {dtype} {mode}: b={batch} {size}x{size}", rows, batch)
        records.append(record(rows, place, model=model, dtype=dtype, **facts, threads=threads, rounds=rounds))
    _write(json_file, records)


@bench.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="As of `cacseg train`.")] = "folder",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as of `cacseg train`. Repeatable."),
    ] = None,
    root: Annotated[str | None, typer.Option(help="Of the data set; generated JPEGs of 683x512 by default.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each row; a quarter more go before.")] = 100,
    rounds: Rounds = 3,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Images a second of `cacseg train` from files on disk, beside a straightforward PyTorch loop.

    \b
    cacseg bench train                                                on generated files
    cacseg bench train msrc21 --root data/msrc21 --set training.precision=bf16

    The loop trains the same plain model with a DataLoader of as many workers, torchvision's v2 transforms (with our
    reader of files), F.interpolate, F.cross_entropy and AdamW. Rows run in turn; validation is left out.
    """
    from cacseg.bench.compare import describe_machine
    from cacseg.bench.data import write_generated
    from cacseg.bench.jobs import compare_rates, train_jobs
    from cacseg.cli._options import open_recipe, read_changes
    from cacseg.engine.decisions import training_device
    from cacseg.recipes.config import change

    if json_file is not None:
        check_target(json_file, overwrite)
    # Crops are tried once: torchvision has nothing like data.max_share.
    config = change(open_recipe(recipe)[1], {"data.max_share": 1.0, **read_changes(settings, root)})
    with tempfile.TemporaryDirectory() as scratch, Progress(console=messages, transient=True) as bar:
        if config.data.root is None and config.data.name == "folder":
            write_generated(Path(scratch), 128)
            config = change(config, {"data.name": "ade20k", "data.root": scratch, "data.val_split": "train"})
        jobs = train_jobs(config, steps)
        task = bar.add_task("training", total=rounds * len(jobs))
        rates = compare_rates(jobs, rounds, lambda: bar.advance(task))
    place, crop, run = training_device(config.training), "x".join(map(str, config.data.crop)), config.training
    title = f"{run.batch} crops of {crop} a step, {run.precision}, {run.workers} workers"
    _show_rates(f"training {config.model.name} on {place}: {title}", rates)
    facts = {"recipe": recipe, "settings": settings or [], "root": root, "steps": steps, "rounds": rounds}
    _write(
        json_file, {**describe_machine(place), **facts, "rows": {name: one._asdict() for name, one in rates.items()}}
    )


@bench.command()
def predict(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Images, folders of images, or globs; generated JPEGs by default.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="Whose model is used, with random weights.")] = "folder",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of it. Repeatable.")
    ] = None,
    classes: Classes = 19,
    images: Annotated[int, typer.Option(min=1, help="At most so many.")] = 128,
    device: Device = "",
    precision: options.Precision = "fp32",
    batch: options.Batch = 4,
    workers: options.Workers = options.WORKERS,
    rounds: Rounds = 3,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Images a second of `cacseg predict`, files read and masks written, beside a straightforward loop.

    The loop opens an image with Pillow, runs the model on it and saves the mask, one image after the other.
    """
    import torch

    import cacseg
    from cacseg.bench.compare import describe_machine
    from cacseg.bench.data import write_generated
    from cacseg.bench.jobs import compare_rates, predict_jobs
    from cacseg.cli._options import open_recipe, read_changes
    from cacseg.engine.device import choose_device
    from cacseg.recipes.config import change
    from cacseg.runtime.inputs import find_images

    if json_file is not None:
        check_target(json_file, overwrite)
    place = choose_device(device or "auto")
    chosen = change(open_recipe(recipe)[1], read_changes(settings, None)).model
    torch.manual_seed(0)
    model = cacseg.create_model(chosen.name, classes, chosen.classifier, backbone=chosen.backbone, preset=chosen.preset)
    with tempfile.TemporaryDirectory() as scratch, Progress(console=messages, transient=True) as bar:
        if not paths:
            write_generated(Path(scratch), images)
            paths = [f"{scratch}/ADEChallengeData2016/images"]
        files = [one.path for one in find_images(paths)][:images]
        jobs = predict_jobs(model, files, place, precision=precision, batch=batch, workers=workers)
        task = bar.add_task("predicting", total=(rounds + 1) * len(jobs))
        compare_rates(jobs, 1, lambda: bar.advance(task))  # fills the file cache, chooses algorithms
        rates = compare_rates(jobs, rounds, lambda: bar.advance(task))
    _show_rates(f"prediction of {len(files)} images with {chosen.name} on {place}, {precision}", rates)
    facts: dict[str, Any] = {"recipe": recipe, "settings": settings or [], "images": len(files), "rounds": rounds}
    facts |= {"precision": precision, "batch": batch, "workers": workers}
    _write(
        json_file, {**describe_machine(place), **facts, "rows": {name: one._asdict() for name, one in rates.items()}}
    )


def _show_rates(title: str, rates: dict[str, Rate]) -> None:
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for name in ("images/s", "x first", "least", "most"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in rates.items():
        table.add_row(name, f"{one.images_per_second:.1f}", *(f"{ratio:.2f}" for ratio in one[1:]))
    show(table)


@bench.command()
def data(
    root: Annotated[
        Path | None, typer.Argument(help="A data set; generated 683x512 JPEGs in ADE20K's layout by default.")
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
    """Images a second that one core reads and transforms for training: decoding, resizing, crop, flip, distortion."""
    from cacseg.bench.data import measure, write_generated
    from cacseg.data import TrainTransform, open_data
    from cacseg.data.check import guess_name

    with tempfile.TemporaryDirectory() as scratch, Progress(console=messages, transient=True) as bar:
        if root is None:
            if name is not None or split != "train":
                raise ValueError("--name and --split belong to a ROOT; without one, files are generated.")
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
