"""`cacseg demo`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cacseg.cli._console import messages, say, show, typer
from cacseg.cli._runs import train_all

if TYPE_CHECKING:
    from cacseg.data import SegmentationData
    from cacseg.engine.evaluate import Evaluation
    from cacseg.models import SegmentationModel

Kind = Literal["plain", "context"]
KINDS: dict[Kind, str] = {"plain": "plain", "context": "tuned"}  # and the arms that train them


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
    from cacseg.recipes.compare import RUNS, choose_arms, describe, make_plan
    from cacseg.recipes.demo import STEPS
    from cacseg.recipes.demo import demo as make_config
    from cacseg.reports.tables import summary_table

    folder = output or _unused_path(Path("runs/demo"))
    open_folder(folder, overwrite=False)
    steps = steps or STEPS
    start = time.perf_counter()
    base, arms = make_config(steps, images), choose_arms(",".join(KINDS.values()))
    plan = make_plan(base, arms, [seed], validations=1)
    # Two at once, each on half of the cores: small models gain little by more threads.
    if train_all(folder, describe("demo", base, arms), plan, jobs=len(KINDS), devices="cpu"):
        raise typer.Exit(1)
    found: dict[Kind, Evaluation] = {}
    models: dict[Kind, SegmentationModel] = {}
    for kind, run in zip(KINDS, plan, strict=True):
        models[kind], data, found[kind] = _evaluate(folder / RUNS / run.name, kind, images)
    rows = {"plain model": found["plain"].scores("plain")}
    rows |= {f"context-aware model, {name} logits": found["context"].scores(name) for name in found["context"].counts}
    title = f"{images} scenes never trained on, {steps} steps, seed {seed}"
    show(summary_table(rows, title))
    _draw(folder, models, found, data)
    say("The context logits are the output of the context-aware model; its oracle logits know the labels.")
    seconds = time.perf_counter() - start
    say(f"{seconds:.0f} s on {os.cpu_count()} cores. See {folder}/scenes.png and {folder}/runs/*/eval.")


def _unused_path(path: Path) -> Path:
    """The path, or with the first number behind it that makes it new."""
    number = 1
    while (found := path if number == 1 else path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return found


def _evaluate(folder: Path, kind: Kind, images: int) -> tuple[SegmentationModel, SegmentationData, Evaluation]:
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
        found = evaluate(model, data, oracle=kind == "context", device=device, batch=8, workers=1)
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
