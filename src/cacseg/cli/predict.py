"""`cacseg predict`."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

from cacseg.cli import _options as options
from cacseg.cli._console import fail, progress_bar, say, typer


def predict(
    checkpoint: Annotated[Path, typer.Argument(help="A .safetensors of ours, or the folder of a run.")],
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
    precision: options.Precision = "fp32",
    batch: options.Batch = 4,
    window_batch: options.WindowBatch = 4,
    workers: options.Workers = options.WORKERS,
) -> None:
    """Segment images: masks as index PNGs with a palette, overlays, maps of confidence and entropy.

    Writes masks/NAME.png, overlays/NAME.jpg, confidence/NAME.png and entropy/NAME.png at the size of the image; NAME is
    its path below the given folder. Run it again to resume: finished images are skipped, images that changed are
    predicted anew. An image that cannot be read is named at the end and the exit code is 1; 2 means that nothing was
    begun or that a file could not be written.
    """
    import cacseg
    from cacseg.data.class_list import distinct_colours
    from cacseg.engine.device import autocast, choose_device
    from cacseg.engine.inputs import Journal, find_images
    from cacseg.engine.predict import SaveOptions, predict_images
    from cacseg.engine.weights import find_weights, fingerprint
    from cacseg.recipes.protocol import data_of_run

    weights = find_weights(checkpoint)
    run = data_of_run(weights)
    inference = options.make_inference(run, slide, stride, whole, multi_scale, flip, window_batch)
    image_scale = options.parse_scale(scale, None if run is None else run.val_scale)
    save = SaveOptions(overlays, confidence, entropy, opacity, bits)
    chosen = choose_device(device)
    autocast(chosen, precision)  # an unknown precision is an error here, before the folder is made
    inputs = find_images(paths, output)
    model = cacseg.load(weights)
    shown = {key: value for key, value in dataclasses.asdict(inference).items() if key != "window_batch"}
    chosen_options: dict[str, Any] = {"weights_sha256": fingerprint(weights), **shown, "scale": image_scale}
    logits = "plain" if plain else model.default_output
    chosen_options |= {"precision": precision, "output": logits, "opacity": opacity, "bits": bits}
    palette = [(int(r), int(g), int(b)) for r, g, b in model.palette or distinct_colours(model.num_classes)]
    start = time.perf_counter()
    with Journal(output, chosen_options, overwrite=overwrite) as journal, progress_bar("failed") as bar:
        task = bar.add_task("predicting", total=len(inputs), failed="")

        def update(done: int, failed: int) -> None:
            bar.update(task, completed=done, failed=f"{failed} failed" if failed else "")

        found = predict_images(
            model,
            inputs,
            journal,
            palette,
            save=save,
            inference=inference,
            scale=image_scale,
            output=logits,
            device=chosen,
            precision=precision,
            batch=batch,
            workers=workers,
            progress=update,
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
