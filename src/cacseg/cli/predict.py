"""`cacseg predict`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cacseg.cli import _options as options
from cacseg.cli._console import fail, note, progress_bar, say, typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from cacseg.runtime.folder import SaveOptions, Summary
    from cacseg.runtime.inputs import Input
    from cacseg.runtime.journal import Journal

LARGE = 100_000_000  # pixels of a file that is decoded whole
LARGE_FILE = 2**20  # bytes: smaller files are not opened to count their pixels


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"{options.MODEL} Or an exported .onnx.")],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES", help="Images, folders of images, or globs in quotes; or a video, or camera:0."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder for the predictions; or a video of overlays, out.mp4.")
    ],
    overlays: Annotated[bool, typer.Option(help="Write the mask over the image, overlays/NAME.jpg.")] = True,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Write the probability of the predicted class, 0 to 1 as 0 to 255.")
    ] = False,
    entropy: Annotated[
        bool,
        typer.Option("--entropy", help="Write the entropy of the probabilities, 0 (sure) to 1 (uniform) as 0 to 255."),
    ] = False,
    bits: Annotated[int, typer.Option(help="Bits of confidence and entropy: 8, or 16 for 0 to 65535.")] = 8,
    target: Annotated[
        str, typer.Option("--format", help="png; labelme, coco or geojson: polygons too, for labelling tools and maps.")
    ] = "png",
    simplify: Annotated[float, typer.Option(min=0.0, help="How far a polygon may be off its edge, in pixels.")] = 1.0,
    coordinates: Annotated[
        str,
        typer.Option(
            help="Coordinates of GeoJSON: wgs84 (longitude, latitude), map (the image's own system) or pixels."
        ),
    ] = "wgs84",
    opacity: Annotated[float, typer.Option(min=0.0, max=1.0, help="How opaque the overlay's colours are.")] = 0.5,
    plain: Annotated[bool, typer.Option("--plain", help="Predict with the fixed classifier.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what OUTPUT holds.")] = False,
    shard: Annotated[
        str | None,
        typer.Option(help="3/8: the third of eight workers; by default from torchrun or a SLURM array. 1/1: all."),
    ] = None,
    carry: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Frames of a stream: the weight of earlier frames' context in the next."),
    ] = 0.0,
    fps: Annotated[
        float | None, typer.Option(min=0.1, help="Frames a second of the video; by default the input's, else 25.")
    ] = None,
    scale: options.Scale = None,
    slide: options.Slide = None,
    stride: options.Stride = None,
    whole: options.Whole = False,
    multi_scale: options.MultiScale = False,
    flip: options.Flip = False,
    device: options.Device = "auto",
    precision: options.AutoPrecision = "auto",
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Images of one size in a batch; 4 on a GPU, 1 on a CPU, by default.", show_default=False
        ),
    ] = None,
    window_batch: options.WindowBatch = 4,
    tile: options.Tile = None,
    overlap: options.Overlap = 128,
    tile_context: options.TileContext = "image",
    keep: options.Keep = 1024,
    max_pixels: options.MaxPixels = None,
    workers: options.Workers = options.WORKERS,
) -> None:
    """Segment images, videos and large rasters.

    \b
    cacseg predict runs/mine photos -o out
    cacseg predict model.onnx photos -o out          needs onnxruntime, numpy and Pillow, no torch
    cacseg predict runs/mine city.tif -o out --tile 1024 --no-overlays
    cacseg predict runs/mine photos -o out --shard 3/8            one of eight workers, on any machine
    cacseg predict runs/mine film.mp4 -o out.mp4 --carry 0.9

    Writes masks/NAME.png, overlays/NAME.jpg, confidence/NAME.png and entropy/NAME.png at the size of the image; NAME is
    its path below the given folder. --format adds polygons, to be corrected in a labelling tool: labelme/NAME.json,
    coco.json of all images, or geojson/NAME.geojson, in map coordinates where the image has them. Run it again to
    resume: finished images are skipped, images that changed are predicted anew. An image that
    cannot be read is named at the end and the exit code is 1; 2 means that nothing was begun or that a file could not
    be written.

    With --tile the classifier is made from the whole image all the same. TIFF and GeoTIFF files are then read by
    windows and become masks/NAME.tif with their georeference, in bounded memory; JPEG and PNG are decoded whole. A file
    that is decoded whole may have 256 megapixels; --max-pixels 1e9 allows more, by tiles unless --whole is given.

    A video or camera:0, or a folder of frames with --carry or with a video as OUTPUT, is predicted frame by frame in
    order; to a folder, as masks/000000.png and so on. Ctrl-C ends a camera. What was
    interrupted goes on where it stopped; until a video is whole, its masks are in OUTPUT.part.
    """
    from cacseg.cli._stream import open_stream, predict_stream
    from cacseg.predictor import Predictor
    from cacseg.runtime.decode import count_pixels
    from cacseg.runtime.folder import Polygons, SaveOptions, Summary, join_coco, predict_files
    from cacseg.runtime.inputs import find_images, fingerprint, is_tiff, left_out
    from cacseg.runtime.journal import Journal
    from cacseg.runtime.onnx_file import OnnxBackend, is_onnx
    from cacseg.runtime.shards import parse_shard, shard_of_environment

    if target not in ("png", *get_args(Polygons)):
        raise ValueError(f"--format must be png, {', '.join(get_args(Polygons))}; got {target!r}.")
    polygons = None if target == "png" else target
    save = SaveOptions(overlays, confidence, entropy, opacity, bits, polygons, simplify, coordinates)  # type: ignore[arg-type]
    chosen: dict[str, Any] = {}
    colours = False  # of an .onnx unknown until it is loaded
    if is_onnx(model):
        if slide or stride or multi_scale or flip or tile or options.options_of_tiles(overlap, tile_context, keep):
            raise ValueError(
                "an .onnx file has its own windows. Leave out --slide, --tile, --overlap, --flip and so on."
            )
        weights = Path(model)
    else:
        from cacseg.engine.device import choose_local_device
        from cacseg.models.saved import find_weights
        from cacseg.recipes.protocol import bands_of, data_of_run

        weights, device = find_weights(model), str(choose_local_device(device))
        colours, data = bands_of(weights) is None, data_of_run(weights)
        asked_for = slide or whole or multi_scale or flip or carry or target in ("coco", "labelme")
        if tile is None and not asked_for and (data is None or data.window is None):
            tile = options.tiles_of_large(max_pixels)
        windows = (slide, stride, whole, multi_scale, flip, window_batch, tile, overlap, tile_context, keep)
        chosen = {"inference": options.make_inference(data, *windows)}
    worker = shard_of_environment(os.environ) if shard is None else parse_shard(shard)
    image_scale = "own" if scale == "own" else options.parse_scale(scale, None)
    most = options.pixels(max_pixels)
    frames = open_stream(paths, output, carry, plain, save, worker, most)
    found = find_images(paths, output, colours=colours) if frames is None else []
    if frames is None and (words := left_out(paths, output)) and os.environ.get("LOCAL_RANK", "0") == "0":
        note(words)
    if tile is not None and target in ("coco", "labelme") and any(map(is_tiff, found)):
        raise ValueError(
            f"--format {target} is of images decoded whole, which TIFF files by --tile are not. Use --format geojson."
        )
    inputs = [item for item in found if worker.owns(item.name)]
    if worker.count > 1:
        note(f"{worker}: {len(inputs)} of {len(found)} images", "")
    backend = Predictor(weights, scale=image_scale, device=device, precision=precision, **chosen).backend
    batch = batch or backend.batch
    if isinstance(backend, OnnxBackend):
        backend.check(maps=confidence or entropy, plain=plain)
        backend.window = None if whole else backend.window
    written = {"weights_sha256": fingerprint(weights), **backend.settings(), "plain": plain}
    written |= {"opacity": opacity, "bits": bits}
    written |= {} if target == "png" else {"format": target, "simplify": simplify}
    written |= {"coordinates": coordinates} if target == "geojson" else {}
    if frames is not None:
        how: dict[str, Any] = {"carry": carry, "fps": fps, "plain": plain, "batch": batch, "workers": workers}
        how |= {"max_pixels": most}
        predict_stream(backend, paths[0], frames, output, written, save=save, overwrite=overwrite, **how)
        return
    start, finish = time.perf_counter(), join_coco(output, backend.classes.names, save)
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"  # the one that shows its progress
    with (
        Journal(output, written, overwrite=overwrite, shard=worker, finish=finish) as journal,
        progress_bar("failed", visible=is_first) as bar,
    ):
        large = _predict_rasters(backend, inputs, journal, save, plain, bar) if tile else Summary(0, 0, [])
        others = [item for item in inputs if not (tile and is_tiff(item))]
        for item in others:
            if item.name in journal.rows or not item.path.is_file() or item.path.stat().st_size < LARGE_FILE:
                continue
            if LARGE < (pixels := count_pixels(item.path)) <= most:
                advice = "" if tile else " Scores of it too, without --tile 1024."
                note(f"{item.path}: {pixels / 1e6:.0f} megapixels are decoded whole; of a tiled TIFF, windows.{advice}")
        task = bar.add_task("predicting", total=len(others), failed="", visible=bool(others))

        def update(done: int, failed: int) -> None:
            bar.update(task, completed=done, failed=f"{failed} failed" if failed else "")

        small = predict_files(
            backend,
            others,
            journal,
            save=save,
            plain=plain,
            batch=batch,
            workers=workers,
            max_pixels=most,
            progress=update,
        )
    total = Summary(large.written + small.written, large.skipped + small.skipped, large.failed + small.failed)
    seconds = time.perf_counter() - start
    earlier = f", {total.skipped} were done before" if total.skipped else ""
    rate = f" ({total.written / seconds:.1f} a second)" if total.written else ""
    who = f"{worker}: " if worker.count > 1 else ""
    say(f"{who}{total.written} of {len(inputs)} images predicted in {seconds:.1f} s{rate}{earlier}: {output}")
    for failure in total.failed:
        fail(failure.reason)
    if total.failed:
        fail(f"{len(total.failed)} of {len(inputs)} images could not be predicted.")
        if "TORCHELASTIC_RUN_ID" not in os.environ or worker.count == 1:  # torchrun ends all workers when one fails
            raise typer.Exit(1)


def _predict_rasters(
    backend: Any, inputs: list[Input], journal: Journal, save: SaveOptions, plain: bool, bar: Progress
) -> Summary:
    """The TIFF files among the inputs, by windows."""
    from cacseg.engine.rasters import predict_rasters
    from cacseg.runtime.inputs import is_tiff

    rasters = [item for item in inputs if is_tiff(item)]
    tasks: dict[str, Any] = {}

    def step(item: Input, done: int, total: int) -> None:
        if item.name not in tasks:
            tasks[item.name] = bar.add_task(item.path.name, total=total, failed="tiles")
        bar.update(tasks[item.name], completed=done)

    return predict_rasters(backend, rasters, journal, save=save, plain=plain, step=step)
