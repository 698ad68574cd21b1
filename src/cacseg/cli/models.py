"""`cacseg models` and `cacseg import-weights`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from rich.progress import track

from cacseg.cli._console import messages, out, say, show, typer


def models(
    match: Annotated[str, typer.Argument(metavar="TEXT", help="Only names that contain this, e.g. 'swin'.")] = "",
    backbone: Annotated[
        str | None, typer.Option(help="List the heads on this backbone of timm instead, e.g. convnext_tiny.")
    ] = None,
    num_classes: Annotated[int, typer.Option(min=2, help="Classes of the classifier.")] = 150,
    size: Annotated[int, typer.Option(min=32, help="Height and width of the image that FLOPs are counted for.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the paper's models with parameters and FLOPs.

    \b
    cacseg models
    cacseg models swin --num-classes 19 --size 1024
    cacseg models upernet --backbone convnext_tiny

    Each with the plain and with the context-aware classifier.
    FLOPs are two for each multiply-add, of one image. 'deployed' leaves out what only training needs: the auxiliary
    head and the oracle projector. Any name works in cacseg.create_model(NAME); a head also with backbone=.
    """
    from cacseg.models import MODELS
    from cacseg.models.summary import summarise
    from cacseg.models.zoo import HEADS
    from cacseg.reports.tables import rich_table

    known = list(MODELS if backbone is None else HEADS)
    names = [name for name in known if match.lower() in name]
    if not names:
        raise ValueError(f"no model's name contains {match!r}. There are {', '.join(known)}.")
    rows = []
    for name in track(names, "counting", console=messages, transient=True):
        plain, context = (
            summarise(name, num_classes, classifier, backbone=backbone, size=(size, size))
            for classifier in ("plain", "context")
        )
        rows.append((name, plain, context))
    if as_json:
        entries = [{"name": name, "plain": p._asdict(), "context": c._asdict()} for name, p, c in rows]
        print(json.dumps({"num_classes": num_classes, "size": size, "backbone": backbone, "models": entries}, indent=2))
        return
    on = "" if backbone is None else f" on {backbone}"
    header = ["model", "plain\nM", "context\nM", "deployed\nM", "plain\nGFLOPs", "context\nGFLOPs"]
    cells = []
    for name, plain, context in rows:
        millions = (plain.parameters, context.parameters, context.deployed_parameters)
        flops = (plain.flops, context.flops)
        cells.append([name, *(f"{count / 1e6:.2f}" for count in millions), *(f"{count / 1e9:.1f}" for count in flops)])
    show(rich_table(f"{num_classes} classes{on}, FLOPs of one {size}x{size} image", header, cells, no_wrap=0))
    if backbone is None:
        out.print("Heads for any hierarchical backbone of timm: fcn, deeplabv3plus, upernet, ocrnet (--backbone NAME).")


def import_weights(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A .pth of the authors' code or of mmsegmentation.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="Its model, a name of `cacseg models`.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; CHECKPOINT with .safetensors by default.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Name every tensor and where it went.")] = False,
) -> None:
    """Convert a checkpoint of the authors or mmsegmentation.

    \b
    cacseg import-weights iter_160000.pth --model upernet_swin_tiny
    cacseg import-weights iter_160000.pth --model upernet_swin_tiny -o swin.safetensors --verbose

    Classes and classifier (plain or context-aware) are read from the checkpoint. A tensor that the model needs and
    the checkpoint lacks, or that no part of the model takes, is an error: it is then of another model, and nothing is
    written. Nothing in the checkpoint is executed. Load the result with
    cacseg.load(OUTPUT).
    """
    from cacseg._files import check_target
    from cacseg.models.released import import_checkpoint

    target = checkpoint.with_suffix(".safetensors") if output is None else output
    if target.exists() and checkpoint.exists() and target.samefile(checkpoint):
        raise ValueError(f"{target} is the checkpoint itself. Give another file with --output.")
    check_target(target, overwrite)
    with messages.status(f"reading {checkpoint}"):
        imported, report = import_checkpoint(checkpoint, model)
        imported.save(target, overwrite=overwrite)

    say(
        f"{model}, {imported.num_classes} classes, {report.arguments['classifier']} classifier: {len(report.used)} "
        f"tensors used, {len(report.unused)} not used."
    )
    for name, ours in report.used.items() if verbose else ():
        say(f"  {name} -> {ours}")
    for reason in dict.fromkeys(report.unused.values()):
        names = [name for name, one in report.unused.items() if one == reason]
        rest = f" and {len(names) - 1} more" if len(names) > 1 and not verbose else ""
        say(f"  not used: {', '.join(names if verbose else names[:1])}{rest}: {reason}")
    for note in report.notes:
        say(f"  note: {note}")
    say(f"wrote {target}")
