"""`cacseg demo`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cacseg.cli._console import messages, note, say, show, typer
from cacseg.cli._runs import train_all
from cacseg.cli.report import NAME, explain_failure, write_page

if TYPE_CHECKING:
    from cacseg.engine.evaluate import Evaluation

KINDS: dict[Literal["plain", "context"], str] = {"plain": "plain", "context": "tuned"}  # and the arms that train them


def demo(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A new folder; runs/demo, or runs/demo-2, ... by default.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=2, help="Training steps of each model; 100 by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of initial weights and of the order of scenes.")] = 0,
    images: Annotated[int, typer.Option(min=1, help="Number of scenes to score both on.")] = 120,
) -> None:
    """Train and compare two small models on generated scenes.

    \b
    cacseg demo
    cacseg demo --steps 400 --seed 1 -o runs/longer

    One has the plain, one the context-aware classifier; both are scored, and pictures shown. No GPU, no download,
    two minutes on two slow cores. The scenes are generated, and made so that a class looks different from image to
    image: whatever comes out says nothing about photographs.
    """
    from cacseg._files import open_folder
    from cacseg.recipes.compare import RUNS, choose_arms, describe, make_plan
    from cacseg.recipes.demo import STEPS
    from cacseg.recipes.demo import demo as make_config
    from cacseg.reports.tables import summary_table

    folder = output or _unused_path(Path("runs/demo"))
    open_folder(folder, overwrite=False)
    steps = steps or STEPS
    start = time.perf_counter()
    base, arms = make_config(steps, images), choose_arms(",".join(KINDS.values()))
    plan = make_plan(base, arms, [seed], validations=4)
    # Two at once, each on half of the cores: small models gain little by more threads.
    if train_all(folder, describe("demo", base, arms), plan, jobs=len(KINDS), devices="cpu"):
        raise typer.Exit(1)
    note(f"scoring both models on {images} scenes", "")
    with messages.status("scoring"):
        plain, context = _evaluate(folder, [folder / RUNS / run.name for run in plan], images)
    rows = {"plain model": plain.scores("plain")}
    rows |= {f"context-aware model, {name} logits": context.scores(name) for name in context.counts}
    show(summary_table(rows, f"{images} scenes never trained on, {steps} steps, seed {seed}"))
    say("The context logits are the output of the context-aware model; its oracle logits know the labels.")
    remark = (
        f"Generated scenes, made so that a class looks different from image to image, and {steps} steps from random "
        "weights, after which neither model has learnt all it could: this says nothing about photographs."
    )
    say(remark)
    note("writing the report", "")
    page = (folder / NAME).resolve()
    evaluations = dict(zip(KINDS.values(), (plain, context), strict=True))
    explain_failure(lambda: write_page([folder], page, remark=remark, evaluations=evaluations), quiet=True)
    seconds = time.perf_counter() - start
    say(f"{seconds:.0f} s on {os.cpu_count()} cores. See {folder}/scenes.png, {folder}/runs/*/eval and the report:")
    if page.exists():
        say(page.as_uri())


def _unused_path(path: Path) -> Path:
    """The path, or with the first number behind it that makes it new."""
    number = 1
    while (found := path if number == 1 else path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return found


def _evaluate(folder: Path, runs: Sequence[Path], images: int) -> list[Evaluation]:
    """Scores both models, and draws the first scenes, not chosen, beside what they predict."""
    import cacseg
    from cacseg.data import open_data
    from cacseg.data.pictures import save_picture
    from cacseg.engine.device import choose_device
    from cacseg.engine.evaluate import evaluate
    from cacseg.engine.inference import Inference, segment
    from cacseg.models.saved import find_weights
    from cacseg.recipes.demo import SIZE
    from cacseg.reports.pictures import comparison_sheet
    from cacseg.reports.tables import percent
    from cacseg.reports.write import write_evaluation

    data, device = open_data("synthetic", None, "val", size=SIZE, length=images), choose_device("cpu")
    described = {"name": data.name, "split": data.split, "size": SIZE, "images": images}
    inference, samples = Inference(), [data.read(index) for index in range(min(8, images))]
    evaluations, masks = [], []
    for kind, run in zip(KINDS, runs, strict=True):
        weights = find_weights(run)
        model = cacseg.load(weights)
        found = evaluate(model, data, oracle=kind == "context", device=device, batch=8, workers=0)
        facts = {"checkpoint": str(weights), "data": described}
        write_evaluation(run / "eval", found, facts)
        evaluations.append(found)
        masks.append([segment(model, one.image, inference=inference, scale=None, device=device) for one in samples])
    names = []
    for k in range(len(samples)):
        plain, context = (
            percent(one.images[k].scores(kind).mean_iou) for kind, one in zip(KINDS, evaluations, strict=True)
        )
        names.append(f"{data.image_name(k)}   mIoU: plain {plain}, context {context}")
    sheet = comparison_sheet(samples, names, masks, ["plain model", "context model"], data)
    save_picture(folder / "scenes.png", sheet)
    return evaluations
