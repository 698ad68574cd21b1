"""`cacseg bench data`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

from rich.progress import Progress

from cacseg.cli._console import messages, say, typer


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
        result = measure(
            source,
            TrainTransform(crop, scale),
            images=images,
            rounds=rounds,
            progress=lambda done: bar.update(task, completed=done + 1),
        )
    if as_json:
        described = {"data": "generated 683x512" if root is None else str(root), "crop": crop, "scale": scale}
        print(json.dumps({**described, **result.as_json()}, indent=2))
        return
    bounds = f"{min(result.rounds):.1f} to {max(result.rounds):.1f}"
    say(f"{result.images_per_second:.1f} images a second a core ({bounds} in {rounds} rounds of {images})")
    say(f"  {result.read_ms:.2f} ms to read and decode, {result.transform_ms:.2f} ms to transform")
