"""`cacseg predict`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from cacseg.cli import _options as options
from cacseg.cli._console import fail, progress_bar, say, typer


def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A .safetensors of ours, the folder of a run, or an exported .onnx.")
    ],
    paths: Annotated[list[str], typer.Argument(help="Images, folders of images, or globs in quotes.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the predictions.")],
    overlays: Annotated[bool, typer.Option(help="The mask over the image, as overlays/NAME.jpg.")] = True,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="The probability of the predicted class, 0 to 1 as 0 to 255.")
    ] = False,
    entropy: Annotated[
        bool, typer.Option("--entropy", help="Of the probabilities, over that of a uniform guess: 0 to 1 as 0 to 255.")
    ] = False,
    bits: Annotated[int, typer.Option(help="8, or 16 for confidence and entropy from 0 to 65535.")] = 8,
    opacity: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the overlay's colours.")] = 0.5,
    plain: Annotated[bool, typer.Option("--plain", help="Predict with the fixed classifier.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Make everything anew in OUTPUT.")] = False,
    scale: options.Scale = None,
    slide: options.Slide = None,
    stride: options.Stride = None,
    whole: options.Whole = False,
    multi_scale: options.MultiScale = False,
    flip: options.Flip = False,
    device: options.Device = "auto",
    precision: Annotated[
        str, typer.Option(help="fp32, bf16 or fp16; auto is bf16 on a GPU that has it, else fp32.")
    ] = "auto",
    batch: options.Batch = 4,
    window_batch: options.WindowBatch = 4,
    workers: options.Workers = options.WORKERS,
) -> None:
    """Segment images: masks as index PNGs with a palette, overlays, maps of confidence and entropy.

    \b
    cacseg predict runs/mine photos -o out
    cacseg predict model.onnx photos -o out          needs onnxruntime, numpy and Pillow, no torch

    Writes masks/NAME.png, overlays/NAME.jpg, confidence/NAME.png and entropy/NAME.png at the size of the image; NAME is
    its path below the given folder. Run it again to resume: finished images are skipped, images that changed are
    predicted anew. An image that cannot be read is named at the end and the exit code is 1; 2 means that nothing was
    begun or that a file could not be written.
    """
    from cacseg.predictor import Predictor
    from cacseg.runtime.folder import SaveOptions, predict_files
    from cacseg.runtime.inputs import Journal, find_images, fingerprint

    save = SaveOptions(overlays, confidence, entropy, opacity, bits)
    chosen: dict[str, Any] = {}
    if Path(model).suffix == ".onnx":
        if slide or stride or whole or multi_scale or flip:
            raise ValueError("an .onnx file shows images whole, once. Leave out --slide, --multi-scale and --flip.")
        weights = Path(model)
    else:
        from cacseg.engine.weights import find_weights
        from cacseg.recipes.protocol import data_of_run

        weights = find_weights(model)
        inference = options.make_inference(data_of_run(weights), slide, stride, whole, multi_scale, flip, window_batch)
        chosen = {"inference": inference}
    image_scale = "own" if scale == "own" else options.parse_scale(scale, None)
    inputs = find_images(paths, output)
    backend = Predictor(weights, scale=image_scale, device=device, precision=precision, **chosen).backend
    written = {"weights_sha256": fingerprint(weights), **backend.settings(), "plain": plain}
    written |= {"opacity": opacity, "bits": bits}
    start = time.perf_counter()
    with Journal(output, written, overwrite=overwrite) as journal, progress_bar("failed") as bar:
        task = bar.add_task("predicting", total=len(inputs), failed="")

        def update(done: int, failed: int) -> None:
            bar.update(task, completed=done, failed=f"{failed} failed" if failed else "")

        found = predict_files(
            backend, inputs, journal, save=save, plain=plain, batch=batch, workers=workers, progress=update
        )
    seconds = time.perf_counter() - start
    earlier = f", {found.skipped} were done before" if found.skipped else ""
    rate = f" ({found.written / seconds:.1f} a second)" if found.written else ""
    say(f"{found.written} of {len(inputs)} images predicted in {seconds:.1f} s{rate}{earlier}: {output}")
    for failure in found.failed:
        fail(failure.reason)
    if found.failed:
        fail(f"{len(found.failed)} of {len(inputs)} images could not be predicted.")
        raise typer.Exit(1)
