"""Options and printing that the commands of `cacseg bench` share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import Progress
from rich.table import Table

from cacseg._files import check_target, write_file
from cacseg.cli._console import messages, say, show, typer

if TYPE_CHECKING:
    import torch

    from cacseg.bench.compare import Row

Device = Annotated[str, typer.Option(help="cpu or cuda; cuda if there is one by default.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Batch = Annotated[int, typer.Option(min=1, help="Images in a batch.")]
Classes = Annotated[int, typer.Option(min=2, help="Number of classes.")]
Rounds = Annotated[int, typer.Option(min=1, help="Timed rounds; the median is shown.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Mode = Annotated[
    str,
    typer.Option(help="eager, compile, graph (replayed as a CUDA graph, without the host) or compiled-graph (both)."),
]
Preset = Annotated[str, typer.Option(help="Preset of the context-aware classifier: paper, released or tuned.")]
Model = Annotated[str, typer.Option(help="A name of `cacseg models`.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file, with all settings.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the JSON file if it exists.")]


def prepare(
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


def timed(steps: dict[str, Any], device: torch.device, rounds: int, warm_up: int = 3) -> dict[str, Row]:
    from cacseg.bench.compare import compare

    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("timing", total=rounds + warm_up)
        return compare(steps, device, rounds=rounds, warm_up=warm_up, progress=lambda _: bar.advance(task))


def show_rows(title: str, rows: dict[str, Row], batch: int | None = None) -> None:
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


def write_json(path: Path | None, content: dict[str, Any] | list[dict[str, Any]]) -> None:
    if path is not None:
        write_file(path, json.dumps(content, indent=2) + "\n")
        say(f"wrote {path}")
