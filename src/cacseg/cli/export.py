"""`cacseg export`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cacseg.cli import _options as options
from cacseg.cli._console import messages, note, say, typer

if TYPE_CHECKING:
    from cacseg.engine.export import Exported
    from cacseg.recipes.config import DataConfig

SCORED = 100  # images of int8, unless --score says otherwise


def export(
    checkpoint: Annotated[str, typer.Argument(metavar="MODEL", help=options.MODEL)],
    file: Annotated[Path, typer.Option("-o", "--file", help="The file to write: .onnx, or .pt2.")],
    file_format: Annotated[
        str, typer.Option("--format", help="onnx, torch-export, or aotinductor (machine code for machines like this).")
    ] = "onnx",
    output: Annotated[str, typer.Option(help="What comes out: logits, probabilities or classes.")] = "logits",
    size: Annotated[str, typer.Option(help="Size of what comes out: that of the input, or of the features.")] = "input",
    plain: Annotated[
        bool, typer.Option("--plain", help="The fixed classifier instead of the context-aware one.")
    ] = False,
    normalise: Annotated[
        bool,
        typer.Option(
            help="Images are uint8 pixels, or bands in their own units, normalised within the file; else by the caller."
        ),
    ] = True,
    precision: Annotated[str, typer.Option(help="fp32, fp16, or int8 (of ONNX alone).")] = "fp32",
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IMAGES", help="For int8: images, folders or globs; by default the run's training images."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A data set to score the file on; the run's own where there is a run.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which data set it is, as of `cacseg eval`.")] = None,
    score: Annotated[
        int | None,
        typer.Option(
            min=0, help=f"Compare mIoU with the model's on so many images; {SCORED} for int8 if there are data."
        ),
    ] = None,
    scale: options.Scale = None,
    whole: options.Whole = False,
    fixed_size: Annotated[
        str | None,
        typer.Option(
            help="HEIGHTxWIDTH of every image, one at a time, for runtimes that need it; by default any size."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="What aotinductor compiles for: cpu or cuda.")] = "cpu",
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Keep an int8 file that lost over 5 points of mIoU, or gives over 20 % of the pixels another class.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a model as ONNX, torch.export or AOTInductor.

    \b
    cacseg export runs/mine -o mine.onnx                                 logits at the size of the image
    cacseg export runs/mine -o mine.onnx --output classes                the class of each pixel, uint8
    cacseg export runs/mine -o small.onnx --precision int8               calibrated and scored on the run's data
    cacseg export mine.safetensors -o mine.onnx --precision int8 --calibrate photos --data my_data
    cacseg export runs/mine -o mine.pt2 --format torch-export            torch.export.load("mine.pt2").module()

    The file takes any number of images of any size from 33x33 on (with ConvNeXt from 64x64 on), and holds class names,
    palette and normalisation as metadata. It is compared with the model at two sizes; where it differs by more than
    rounding, no file is left and the exit code is 2.
    """
    import cacseg
    from cacseg.engine.device import choose_device
    from cacseg.engine.evaluate import compare_classes
    from cacseg.engine.export import export as write
    from cacseg.engine.export.quantise import mean_iou
    from cacseg.models.saved import find_weights
    from cacseg.recipes.protocol import data_of_run, data_to_evaluate, open_split

    weights = find_weights(checkpoint)
    run = data_of_run(weights)
    known = run is not None or data is not None
    protocol = data_to_evaluate(weights, name=name, root=None if data is None else str(data)) if known else None
    if score is None:
        score = SCORED if precision == "int8" and protocol is not None else 0
    if score and protocol is None:
        raise ValueError("--score needs labelled images: give them with --data.")
    model = cacseg.load(weights, choose_device(device) if file_format == "aotinductor" else "cpu")
    images = _calibration(calibrate, protocol) if precision == "int8" else None
    split, score_on = None, None
    if score and protocol is not None:
        split = open_split(protocol, "val")
        compare_classes(model, split)
        score_on = partial(mean_iou, data=split, most=score, device=model.classifier.weight.device)
    window, stride = (None, None) if run is None or whole else (run.window, run.stride)
    if window is not None and output == "classes":
        size = f"{window[1]}x{window[0]}"
        note(f"the run has windows of {size}, whose classes have no mean: the file shows images whole, unlike logits.")
        window = stride = None
    fixed, usual = None, None if run is None else run.val_scale
    if fixed_size is not None:
        fixed, window, stride, usual = options.parse_pair(fixed_size, "--fixed-size"), None, None, None
    with messages.status("") as status:
        written = write(
            model,
            file,
            format=file_format,  # type: ignore[arg-type]
            output=output,  # type: ignore[arg-type]
            size=size,  # type: ignore[arg-type]
            plain=plain,
            normalise=normalise,
            precision=precision,  # type: ignore[arg-type]
            calibration=images,
            scale=options.parse_scale(scale, usual),
            window=window,
            stride=stride,
            fixed_size=fixed,
            score=score_on,
            accept=accept,
            overwrite=overwrite,
            progress=status.update,
        )
    _tell(written, file_format)
    if written.scores is not None and split is not None:
        count, of = min(score, len(split)), written.scores
        say(
            f"  mIoU on {count} images of {split.name} {split.split}: {100 * of.of_file:.2f} ({precision}), "
            f"{100 * of.of_model:.2f} (PyTorch, fp32)"
        )


def _calibration(paths: Sequence[str] | None, protocol: DataConfig | None) -> Sequence[Any]:
    """The given paths, else images of the split that the run was trained on."""
    from cacseg.engine.export.quantise import CALIBRATION, evenly
    from cacseg.recipes.protocol import open_split

    if paths:
        return paths
    if protocol is None:
        raise ValueError("int8 needs images to calibrate with, some dozens like those to come: --calibrate IMAGES.")
    split = open_split(protocol, "train")
    return [split.read(i).image for i in evenly(len(split), CALIBRATION)]


def _tell(written: Exported, file_format: str) -> None:
    from cacseg.engine.export.formats import OPSET

    described, kind = written.described, f"ONNX, opset {OPSET}" if file_format == "onnx" else file_format
    images = "uint8 pixels" if described.bands is None else f"images of {described.bands} band(s), float32"
    images = images if described.normalises else "float32, normalised"
    say(
        f"wrote {written.path} ({kind}, {described.precision}, {written.path.stat().st_size / 2**20:.1f} MiB) in "
        f"{written.seconds:.0f} s: {images} to {described.output} at the size of the {described.size}"
    )
    for check in written.checks if described.precision != "int8" else ():
        b, _, height, width = check.shape
        say(
            f"  {b} image(s) of {width}x{height}: largest difference {check.difference:.2g} of {check.allowed:.2g} "
            f"allowed, {100 * check.agreement:.2f} % of pixels have the same class"
        )
    if described.precision == "int8":
        same = 100 * sum(check.agreement for check in written.checks) / len(written.checks)
        largest = max(check.difference for check in written.checks)
        say(
            f"  {len(written.checks)} calibration images: largest difference {largest:.2g}, {same:.2f} % of the pixels "
            "have the same class"
        )
