"""`cacseg bench`: loss, step and infer (plain and ours side by side); whole jobs, train and predict; and data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import Progress

from cacseg.cli._bench import (
    Batch,
    Classes,
    Device,
    Dtype,
    JsonFile,
    Mode,
    Model,
    Overwrite,
    Preset,
    Rounds,
    Threads,
    prepare,
    show_rows,
    timed,
    write_json,
)
from cacseg.cli._bench_jobs import data, predict, train
from cacseg.cli._console import messages, typer
from cacseg.cli._options import integers

if TYPE_CHECKING:
    from cacseg.bench.compare import Row

bench = typer.Typer(
    help="""Measure time and memory.

    \b
    cacseg bench loss --device cpu --batch 2                      classifier and loss alone
    cacseg bench step --model upernet_resnet50 --dtype bfloat16   a training step
    cacseg bench infer --device cpu                               inference, plain and context-aware""",
    no_args_is_help=True,
)


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
    """Time classifier and loss alone, forward and backward.

    \b
    cacseg bench loss --device cpu --batch 2
    cacseg bench loss --dtype bfloat16 --mode graph --json loss.json

    plain: conv, F.interpolate and F.cross_entropy. Timed against it: conv and cacseg.upsampled_cross_entropy, the
    presets, and the authors' way of computing.
    """
    from cacseg.bench.compare import record
    from cacseg.bench.steps import loss_steps

    place, kind = prepare(device, dtype, threads, json_file, overwrite, mode)
    facts = dict(batch=batch, classes=classes, channels=channels, size=size, ratio=ratio, mode=mode)
    steps = loss_steps(place, kind, looped=looped, **facts)  # type: ignore[arg-type]
    rows = timed(steps, place, rounds, warm_up=3 if place.type == "cuda" else 1)
    shape = f"b={batch} n={classes} d={channels} {size}x{size} -> {size * ratio}x{size * ratio}"
    show_rows(f"loss, forward + backward, {place} {dtype} {mode}: {shape}", rows)
    write_json(json_file, record(rows, place, dtype=dtype, **facts, threads=threads, rounds=rounds))


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
    """Time a whole training step of a model, with AdamW.

    \b
    cacseg bench step --model upernet_resnet50 --dtype bfloat16
    cacseg bench step --model fcn_mobilenetv2 --device cpu --batch 2 --size 128 --rounds 3

    plain: F.interpolate and F.cross_entropy. Timed against it: the same model with cacseg.upsampled_cross_entropy, and
    the context-aware one.
    """
    from cacseg.bench.compare import record
    from cacseg.bench.steps import train_steps

    place, kind = prepare(device, dtype, threads, json_file, overwrite, preset=preset)
    facts = dict(batch=batch, classes=classes, size=size, auxiliary=auxiliary, preset=preset)
    rows = timed(train_steps(model, place, kind, **facts), place, rounds)  # type: ignore[arg-type]
    show_rows(f"training step of {model}, {place} {dtype}: b={batch} {size}x{size}", rows)
    write_json(json_file, record(rows, place, model=model, dtype=dtype, **facts, threads=threads, rounds=rounds))


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
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Exported files in ONNX Runtime on the CPU, float32, from pixels to classes.")
    ] = False,
    preset: Preset = "tuned",
    rounds: Rounds = 20,
    threads: Threads = 2,
    json_file: JsonFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Time inference of a model, plain and context-aware.

    \b
    cacseg bench infer --table                                    512, 1280 and 2560, as in the paper
    cacseg bench infer --model fcn_mobilenetv2 --onnx --sizes 256,512
    """
    from cacseg.bench.compare import record
    from cacseg.bench.steps import inference_steps

    if onnx:
        if device == "cuda" or mode != "eager":
            raise ValueError("--onnx measures ONNX Runtime on the CPU. Leave --device and --mode out.")
        device, dtype = "cpu", "float32"
    place, kind = prepare(device, dtype, threads, json_file, overwrite, mode, preset)
    records = []
    for size in (512, 1280, 2560) if table else integers("--sizes", sizes):
        facts: dict[str, Any] = dict(batch=batch, classes=classes, size=size, preset=preset)
        if onnx:
            rows, clock = _time_onnx(model, rounds, threads=threads, **facts)
            facts |= {"runtime": _runtime(), "clock": clock}
        else:
            facts["mode"] = mode
            rows = timed(inference_steps(model, place, kind, **facts), place, rounds)
        how = f"{facts['runtime']} ({facts['clock']} time)" if onnx else mode
        show_rows(f"inference of {model}, {place} {dtype} {how}: b={batch} {size}x{size}", rows, batch)
        records.append(record(rows, place, model=model, dtype=dtype, **facts, threads=threads, rounds=rounds))
    write_json(json_file, records)


def _time_onnx(model: str, rounds: int, *, threads: int, **facts: Any) -> tuple[dict[str, Row], str]:
    """The rows, and which time was measured."""
    from cacseg.bench.onnx import choose_clock, compare_files, write_cases

    with tempfile.TemporaryDirectory() as scratch:
        with messages.status("exporting"):
            cases = write_cases(Path(scratch), model, threads=threads, **facts)
        with Progress(console=messages, transient=True) as bar:
            task = bar.add_task("timing", total=rounds)
            rows = compare_files(cases, rounds=rounds, progress=lambda done: bar.update(task, completed=done))
    return rows, choose_clock(threads)[0]


def _runtime() -> str:
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


bench.command()(train)
bench.command()(predict)
bench.command()(data)
