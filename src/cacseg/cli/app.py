"""`cacseg app`."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cacseg.cli import _options as options
from cacseg.cli._console import note, say, typer

if TYPE_CHECKING:
    from cacseg.app.server import Example
    from cacseg.recipes.config import DataConfig
    from cacseg.runtime.bands import Pixels

EXAMPLES = 24  # pictures to choose from, evenly spaced where there are more


def app(
    checkpoint: Annotated[Path, typer.Argument(metavar="MODEL", help=options.MODEL)],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    examples: Annotated[
        Path | None, typer.Option(help="A folder of images to choose from; by default the run's validation images.")
    ] = None,
    device: options.Device = "auto",
) -> None:
    """Try a model on a local web page.

    \b
    cacseg app runs/mine                                     then open the address that it prints
    cacseg app model.safetensors --examples photos --port 9000

    The page shows the plain and the context mask side by side, confidence, entropy and the pixels that changed.
    The page works without a network. Images are predicted as `cacseg predict` does it, one at a time; those beyond 2
    megapixels are predicted at that size and their masks returned at full size. Files go to a temporary folder, which
    is removed when Ctrl-C ends the server.
    """
    import cacseg
    from cacseg.engine.device import choose_device
    from cacseg.models.saved import find_weights
    from cacseg.recipes.protocol import data_of_run

    try:
        from cacseg.app.predict import Predictor
        from cacseg.app.server import Server, bind, is_local, is_predicting, serve
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"the app needs {error.name}: pip install starlette uvicorn") from error

    weights = find_weights(checkpoint)
    run = data_of_run(weights)
    inference = options.make_inference(run, None, None, False, False, False, 4)
    predictor = Predictor(
        cacseg.load(weights), inference, None if run is None else run.val_scale, choose_device(device)
    )
    chosen = _examples_below(examples, predictor.model.bands) if examples is not None else _examples_of(run)
    title = weights.parent.resolve().name if run is not None else weights.stem
    hosts = ("localhost", "127.0.0.1", "::1", "[::1]", host) if is_local(host) else ("*",)
    with bind(host, port) as listening:
        address = f"[{host}]" if ":" in host else host
        say(f"http://{address}:{listening.getsockname()[1]}/ shows {weights} on {predictor.device}; Ctrl-C ends it")
        if not is_local(host):
            note(f"note: whoever reaches {host} may upload images and see the model's classes; there is no password")
        with suppress(KeyboardInterrupt):
            serve(Server(predictor, title, chosen, hosts), listening)
    note("ended", "")
    if is_predicting():
        os._exit(0)  # all is closed and removed; torch aborts a process whose interpreter ends under a running model


def _examples_below(folder: Path, bands: int | None) -> list[Example]:
    from cacseg.app.predict import MAX_PIXELS, read_image
    from cacseg.app.server import Example
    from cacseg.runtime.decode import max_bytes
    from cacseg.runtime.files import read_file
    from cacseg.runtime.inputs import find_images

    found = find_images([folder])

    def read(index: int) -> Pixels:
        path = found[index].path
        return read_image(read_file(path, max_bytes(MAX_PIXELS, bands)).content, path.name, bands)

    return [Example(found[k].name, partial(read, k)) for k in _spaced(len(found))]


def _examples_of(run: DataConfig | None) -> list[Example]:
    """Validation images of the run; none where they are no longer where they were."""
    from cacseg.app.server import Example
    from cacseg.recipes.protocol import open_split

    if run is None:
        return []
    try:
        data = open_split(run, "val")
    except (OSError, ValueError) as error:
        note(f"note: no examples: {error}")
        return []

    def read(index: int) -> Pixels:
        return data.read(index).image

    return [Example(data.image_name(k), partial(read, k)) for k in _spaced(len(data))]


def _spaced(count: int) -> list[int]:
    return [k * count // min(count, EXAMPLES) for k in range(min(count, EXAMPLES))]
