"""`cacseg demo`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cacseg.cli._console import messages, say, show, typer

if TYPE_CHECKING:
    from cacseg.data import SegmentationData
    from cacseg.engine.evaluate import Evaluation
    from cacseg.models import SegmentationModel

Kind = Literal["plain", "context"]
KINDS: tuple[Kind, Kind] = ("plain", "context")


def demo(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A new folder; runs/demo, or runs/demo-2, ... by default.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=2, help="Of training, for each model; 150 by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights and the order of the scenes.")] = 0,
    images: Annotated[int, typer.Option(min=1, help="Scenes that both are scored on.")] = 200,
) -> None:
    """Train one small model with the plain and with the context-aware classifier, score both, show pictures.

    No GPU, no download, some three minutes on two cores. The scenes are generated, and made so that a class looks
    different from image to image: whatever comes out says nothing about photographs.
    """
    from cacseg._files import open_folder
    from cacseg.recipes.demo import STEPS
    from cacseg.reports.tables import summary_table

    folder = output or _unused_path(Path("runs/demo"))
    open_folder(folder, overwrite=False)
    steps = steps or STEPS
    start = time.perf_counter()
    _train_both(folder, steps, seed, images)
    found: dict[Kind, Evaluation] = {}
    models: dict[Kind, SegmentationModel] = {}
    for kind in KINDS:
        models[kind], data, found[kind] = _evaluate(folder / kind, images)
    rows = {"plain model": found["plain"].scores("plain")}
    rows |= {f"context-aware model, {name} logits": found["context"].scores(name) for name in found["context"].counts}
    title = f"{images} scenes never trained on, {steps} steps, seed {seed}"
    show(summary_table(rows, title))
    _draw(folder, models, found, data)
    say("The context logits are the output of the context-aware model; its oracle logits know the labels.")
    say(f"{time.perf_counter() - start:.0f} s on {os.cpu_count()} cores. See {folder}/scenes.png and {folder}/*/eval.")


def _unused_path(path: Path) -> Path:
    """The path, or with the first number behind it that makes it new."""
    number = 1
    while (found := path if number == 1 else path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return found


def _train_both(folder: Path, steps: int, seed: int, images: int) -> None:
    """Two runs of `cacseg train` at once, each on half of the cores: small models gain little by more threads."""
    from cacseg.recipes.demo import demo as config_of
    from cacseg.recipes.files import CONFIG, write_config

    threads = str(max(1, (os.cpu_count() or 1) // len(KINDS)))
    runs: dict[Kind, subprocess.Popen[bytes]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with contextlib.ExitStack() as stack, Progress(*columns, console=messages, transient=True) as bar:
        for kind in KINDS:
            recipe = folder / "recipes" / kind
            recipe.mkdir(parents=True)
            write_config(recipe, "demo", config_of(kind, seed, steps, images), {})
            command = [sys.executable, "-m", "cacseg.cli", "train", str(recipe / CONFIG)]
            command += ["-o", str(folder / kind), "--no-progress"]
            log = stack.enter_context((folder / f"{kind}.log").open("wb"))
            environment = {**os.environ, "OMP_NUM_THREADS": threads}
            runs[kind] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            stack.callback(_end, runs[kind])
        tasks = {kind: bar.add_task(f"training, {kind} classifier", total=steps) for kind in KINDS}
        while any(run.poll() is None for run in runs.values()):
            time.sleep(0.5)
            for kind in KINDS:
                bar.update(tasks[kind], completed=_last_step(folder / kind / "metrics.csv"))
                _check(runs[kind], kind, folder / f"{kind}.log")


def _check(run: subprocess.Popen[bytes], kind: Kind, log: Path) -> None:
    if run.poll() not in (None, 0):
        said = log.read_text(errors="replace").strip().splitlines()
        last = said[-1] if said else f"exit code {run.returncode}"
        raise OSError(f"training with the {kind} classifier failed: {last} (all of it: {log})")


def _end(run: subprocess.Popen[bytes]) -> None:
    """Kills a run that an error or Ctrl-C left behind."""
    if run.poll() is None:
        run.kill()
    run.wait()


def _last_step(metrics: Path) -> int:
    """The step of the last whole row."""
    lines = metrics.read_text().splitlines()[1:] if metrics.is_file() else []
    steps = [line.split(",")[0] for line in lines]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def _evaluate(folder: Path, images: int) -> tuple[SegmentationModel, SegmentationData, Evaluation]:
    import cacseg
    from cacseg.data import open_data
    from cacseg.engine.device import choose_device
    from cacseg.engine.evaluate import evaluate
    from cacseg.engine.inference import Inference
    from cacseg.engine.weights import find_weights
    from cacseg.recipes.demo import SIZE
    from cacseg.reports.write import write_evaluation

    weights = find_weights(folder)
    model = cacseg.load(weights)
    data = open_data("synthetic", None, "val", size=SIZE, length=images)
    device = choose_device("cpu")
    with messages.status("scoring"):
        found = evaluate(model, data, oracle=folder.name == "context", device=device, batch=8, workers=1)
        facts = {
            "checkpoint": str(weights),
            "data": {"name": data.name, "split": data.split, "size": SIZE, "images": images},
        }
        write_evaluation(folder / "eval", found, facts, model, data, inference=Inference(), scale=None, device=device)
    return model, data, found


def _draw(
    folder: Path, models: dict[Kind, SegmentationModel], found: dict[Kind, Evaluation], data: SegmentationData
) -> None:
    """Draws the first scenes, not chosen, beside the predictions of both models."""
    from cacseg.data.pictures import save_picture
    from cacseg.engine.device import choose_device
    from cacseg.engine.inference import Inference, segment
    from cacseg.reports.sheets import comparison_sheet
    from cacseg.reports.tables import percent

    device, count = choose_device("cpu"), min(8, len(data))
    samples = [data.read(index) for index in range(count)]
    masks = [
        [segment(models[kind], one.image, inference=Inference(), scale=None, device=device) for one in samples]
        for kind in KINDS
    ]
    scores = [[percent(found[kind].images[k].scores(kind).mean_iou) for kind in KINDS] for k in range(count)]
    sheet = comparison_sheet(
        samples,
        [f"{data.image_name(k)}   mIoU: plain {plain}, context {context}" for k, (plain, context) in enumerate(scores)],
        masks,
        ["plain model", "context model"],
        class_names=data.class_names,
        palette=data.palette,
        ignore_index=data.ignore_index,
    )
    save_picture(folder / "scenes.png", sheet)
