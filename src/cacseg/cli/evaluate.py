"""`cacseg eval`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cacseg.cli import _options as options
from cacseg.cli._console import naming_images, note, progress_bar, say, show, typer
from cacseg.cli.report import NAME, WantReport, explain_failure, write_page

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COUNTS = "counts"  # in OUTPUT, what workers that share it have counted


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(metavar="MODEL", help=options.MODEL)],
    data: Annotated[
        Path | None, typer.Option(help="The data set's folder or .zip; the run's own where there is a run.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="ade20k, cityscapes, folder, ...: layout and protocol; by default the run's, or guessed."),
    ] = None,
    ignore_index: options.IgnoreIndex = None,
    split: Annotated[str | None, typer.Option(help="Which split; val by default.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A folder for report.html, tables and scores.json.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="The folder may hold an earlier result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    oracle: Annotated[bool, typer.Option("--oracle", help="Score the oracle as well, which knows the labels.")] = False,
    boundary: Annotated[bool, typer.Option(help="Score boundary IoU as well.")] = True,
    scale: options.Scale = None,
    slide: options.Slide = None,
    stride: options.Stride = None,
    whole: options.Whole = False,
    multi_scale: options.MultiScale = False,
    flip: options.Flip = False,
    shard: Annotated[
        str | None,
        typer.Option(
            help="3/8: the third of eight workers that share OUTPUT; by default from torchrun, srun or a SLURM array. "
            "1/1: all that is left."
        ),
    ] = None,
    report: WantReport = True,
    device: options.Device = "auto",
    precision: options.Precision = "fp32",
    batch: options.Batch = 1,
    window_batch: options.WindowBatch = 4,
    tile: options.Tile = None,
    overlap: options.Overlap = 128,
    tile_context: options.TileContext = "image",
    keep: options.Keep = 1024,
    max_pixels: options.RunMaxPixels = None,
    workers: options.Workers = options.WORKERS,
) -> None:
    """Score a model: mIoU, Dice, boundary IoU, accuracy.

    \b
    cacseg eval runs/mine                                         on the validation split of the run
    cacseg eval runs/mine --oracle -o runs/mine/eval              and the upper bound; tables and report.html
    cacseg eval model.safetensors --data my_data --split test
    cacseg eval runs/mine --multi-scale                           ratios 0.5 to 1.75, mirrored too

    The plain and the context-aware classifier of one model, the mean of their probabilities, and with --oracle the
    classifier that knows the labels are scored side by side from one pass. Without further options images are shown as
    the model's run, or the data set's published protocol, has it. In OUTPUT: report.html, scores.json, classes.csv,
    images.csv (worst first), and confusion_*.csv of each classifier.

    Workers that share OUTPUT (--shard, torchrun, srun, a SLURM array) count their images into OUTPUT/counts, each
    resumes on its own, and the last one writes the scores. Within torchrun without OUTPUT processes add counts up.

    Where images cannot be read there is no score: each is named, and the exit code is 1. With --shard what was counted
    is kept.
    """
    import cacseg
    from cacseg._files import open_folder
    from cacseg.engine.device import device_name, peak_mib, process_group
    from cacseg.engine.evaluate import compare_classes
    from cacseg.engine.evaluate import evaluate as run
    from cacseg.engine.shared import evaluate_shared
    from cacseg.metrics import scores
    from cacseg.models.saved import find_weights
    from cacseg.recipes.protocol import data_to_evaluate, open_split
    from cacseg.reports import write
    from cacseg.reports.tables import as_json as to_json
    from cacseg.reports.tables import class_table, summary_table
    from cacseg.runtime.inputs import fingerprint
    from cacseg.runtime.shards import parse_shard, shard_of_environment

    weights = find_weights(checkpoint)
    protocol = data_to_evaluate(weights, name=name, root=None if data is None else str(data), split=split)
    if ignore_index is not None:
        protocol = protocol.model_copy(update={"ignore_index": ignore_index})
    if max_pixels is not None:
        protocol = protocol.model_copy(update={"max_pixels": options.pixels(max_pixels)})
    inference = options.make_inference(
        protocol, slide, stride, whole, multi_scale, flip, window_batch, tile, overlap, tile_context, keep
    )
    image_scale = options.parse_scale(scale, protocol.val_scale)
    split_data = open_split(protocol, "val")
    worker = shard_of_environment(os.environ) if shard is None else parse_shard(shard)
    is_shared = output is not None and (shard is not None or worker.count > 1)
    if shard is not None and output is None:
        raise ValueError("--shard needs -o OUTPUT, the folder that all workers share.")
    if output is not None and not (is_shared and _holds_counts(output)):
        open_folder(output, overwrite)
    how: dict[str, Any] = {"inference": inference, "scale": image_scale, "precision": precision}
    model = cacseg.load(weights)
    differing = compare_classes(model, split_data)
    with _alone(device) if is_shared else process_group(device) as (place, is_first):
        if is_first and differing:
            more = f"; and {len(differing) - 3} more" if len(differing) > 3 else ""
            note(f"note: class names differ: {'; '.join(differing[:3])}{more}")
        start, shown_at = time.perf_counter(), 0.0
        # torchrun ends all processes when one fails: others may still count, or the first still print.
        is_launched = "TORCHELASTIC_RUN_ID" in os.environ and worker.count > 1
        code = int(not is_launched or (is_first and not is_shared))
        faults = naming_images(visible=is_first or is_shared, code=code)
        with faults, progress_bar("score", visible=is_first) as bar:
            names = [split_data.image_name(index) for index in range(len(split_data))]
            total = sum(map(worker.owns, names)) if is_shared else len(names)
            task = bar.add_task("evaluating", total=total, score="")

            def update(done: int, counts: Mapping[str, Tensor]) -> None:
                nonlocal shown_at
                bar.update(task, completed=done)
                if is_first and time.monotonic() - shown_at >= 1.0:  # counts are read from the device
                    values = (f"{name} {100 * scores(one).mean_iou:.1f}" for name, one in counts.items())
                    bar.update(task, score="mIoU so far: " + ", ".join(values))
                    shown_at = time.monotonic()

            how |= {"oracle": oracle, "boundaries": boundary, "device": place, "batch": batch, "workers": workers}
            how |= {"progress": update}
            if is_shared:
                assert output is not None
                shared: dict[str, Any] = {"data": f"{split_data.name} {split_data.split}", "images": _digest(names)}
                shared |= {"ignore_index": protocol.ignore_index, "oracle": oracle, "boundary": boundary}
                shared |= {"weights_sha256": fingerprint(weights), **inference.settings()}
                shared |= {"scale": image_scale, "precision": precision}
                found = evaluate_shared(model, split_data, output / COUNTS, worker, shared, overwrite=overwrite, **how)
            else:
                found = run(model, split_data, **how)
        if found is None:
            note(f"{worker}: {total} images are counted in {output}; the last worker writes the scores")
            return
        if not (is_first or is_shared):
            return
        seconds = time.perf_counter() - start
        facts: dict[str, Any] = {
            "cacseg_version": cacseg.__version__,
            "checkpoint": str(weights),
            "data": {
                "name": split_data.name,
                "root": protocol.root,
                "split": split_data.split,
                "ignore_index": protocol.ignore_index,
            },
            "inference": {**dataclasses.asdict(inference), "scale": image_scale},
            "device": device_name(place),
            "precision": precision,
            "seconds": round(seconds, 2),
            "peak_mib": peak_mib(place),
            "parameters": sum(one.numel() for one in model.parameters()),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        # Printed before anything is written: a full disk must not cost the scores.
        if as_json:
            print(json.dumps({**facts, **to_json(found)}, indent=2), flush=True)
        else:
            title = f"{split_data.name} {split_data.split}, {len(split_data)} images"
            show(class_table(found))
            show(summary_table({name: found.scores(name) for name in found.counts}, title))
            if not is_shared:  # which counted a part of them
                say(f"{seconds:.1f} s, {len(found.images) / seconds:.1f} images a second")
        if output is not None:
            write.write_evaluation(output, found, facts)
            if report:
                evaluations = {output.resolve().name: found}
                explain_failure(
                    lambda: write_page([output], output / NAME, device=str(place), evaluations=evaluations),
                    quiet=as_json,
                )
            elif not as_json:
                say(f"wrote {output}")


@contextmanager
def _alone(device: str) -> Iterator[tuple[torch.device, bool]]:
    """The device of a worker that knows nothing of the others, and whether it is the one that shows its progress."""
    from cacseg.engine.device import choose_local_device

    yield choose_local_device(device), os.environ.get("LOCAL_RANK", "0") == "0"


def _holds_counts(output: Path) -> bool:
    """Whether another worker was there first."""
    return output.is_dir() and COUNTS in (path.name for path in output.iterdir())


def _digest(names: Sequence[str]) -> str:
    """Workers must see the same images."""
    listed = hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{len(names)}, {listed}"
