"""`cacseg hub`."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from cacseg.cli import _options as options
from cacseg.cli._console import messages, note, say, typer

if TYPE_CHECKING:
    from cacseg.models import SegmentationModel
    from cacseg.recipes.hub import HubSource

STRIP, NONE = "val", "none"


def hub(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of `cacseg train` (its best model) or of `cacseg eval -o`, a .safetensors file, or a name "
            "on the Hub. With --push alone also a FOLDER that this command wrote.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Write the model and its card here.")
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload to this name; `hf auth login` comes first.")
    ] = None,
    license: Annotated[
        str | None,
        typer.Option(help="The licence of the weights, the Hub's identifier, e.g. cc-by-4.0. None by default."),
    ] = None,
    picture: Annotated[
        str | None,
        typer.Option(
            help="FILE; val: input, truth, plain and context of the first validation image; or none. By default val, "
            "with --push none, so that no image of your data leaves unasked."
        ),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    data: Annotated[Path | None, typer.Option(help="Where the data set is now, for the picture.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="FOLDER may hold files; its card is replaced.")
    ] = False,
    device: options.Device = "auto",
) -> None:
    """Write a model for the Hugging Face Hub, or upload it.

    \b
    cacseg hub runs/mine -o mine --license cc-by-4.0       write a folder; look at mine/README.md, change it
    cacseg hub mine --push me/mine --private               upload that folder as it is
    cacseg hub runs/mine --push me/mine                    both at once, without a picture of your data
    cacseg hub runs/mine/eval -o mine                      with the scores of `cacseg eval runs/mine -o runs/mine/eval`

    \b
    model.safetensors   weights, classes, palette, mean and std: cacseg.load("mine"), cacseg.load("me/mine")
    config.json         the same description, and how `cacseg predict` shows images to the model
    README.md           the model card: scores, classes, parameters, training, licence, how to use it
    picture.png         input, truth and predictions of one validation image

    The card has the scores of the run, or of the evaluation, that the weights had there. It names no path of yours.
    """
    import cacseg
    from cacseg._files import open_folder
    from cacseg._hub import check_hub_name, upload
    from cacseg.recipes.hub import is_hub_folder, read_source, write_folder

    if push is None:
        if output is None:
            raise ValueError("say where the model goes: -o FOLDER, --push OWNER/NAME, or both.")
        if private:
            raise ValueError("--private belongs to --push. Give both, or leave it out.")
    else:
        check_hub_name(push)
    written = is_hub_folder(source)
    if written and (push is None or any(one is not None for one in (output, license, picture, data))):
        raise ValueError(f"{source} is written already: change its files there, and upload it with --push alone.")
    with TemporaryDirectory() as scratch:
        folder = source if written else output or Path(scratch)
        if not written:
            found = read_source(source)
            model = cacseg.load(found.weights)
            picture = picture or (STRIP if push is None else NONE)
            if picture not in (STRIP, NONE) and not Path(picture).is_file():
                raise FileNotFoundError(f"--picture must be a file, {STRIP} or {NONE}; there is no file {picture}.")
            open_folder(folder, overwrite)
            shown = _add_picture(folder, picture, model, found, data, device)
            write_folder(folder, model, found, name=push, license=license, picture=shown)
        if output is not None:
            say(str(output))
        if push is not None:
            with messages.status(f"uploading to {push}"):
                address = upload(folder, push, private=private or None)
            say(address)
            if not written and picture == NONE:
                note(f"without a picture of your data; --picture {STRIP} adds one", "")


def _add_picture(
    folder: Path, picture: str, model: SegmentationModel, source: HubSource, data: Path | None, device: str
) -> str | None:
    """The name of the picture in the folder; None without one."""
    from cacseg.engine.device import choose_device
    from cacseg.recipes.hub import draw_example

    if picture == NONE:
        return None
    if picture != STRIP:
        name = "picture" + Path(picture).suffix.lower()
        shutil.copyfile(picture, folder / name)
        return name
    try:
        root = None if data is None else str(data)
        image = draw_example(model, source, folder / "picture.png", root=root, device=choose_device(device))
    except (ValueError, OSError) as error:
        if data is not None:  # the user said where the data are
            raise
        note(f"no picture: {error}")
        return None
    note(f"picture.png shows the validation image {image}: may others see it? --picture {NONE} leaves it out", "")
    return "picture.png"
