"""Trains a model from Python on data that the program holds, with the engine of `cacseg train`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from cacseg._files import write_file
from cacseg.data import SegmentationData
from cacseg.data.bands import count_bands
from cacseg.data.hold_out import hold_out
from cacseg.data.label_map import IGNORE
from cacseg.data.own_transform import OwnTransform
from cacseg.data.python import PythonData, split_in_two
from cacseg.engine._lightning import is_first_process
from cacseg.engine.decisions import training_device
from cacseg.engine.preflight import check_channels, check_crop, check_data, check_foreground, check_model
from cacseg.engine.train import Result
from cacseg.engine.weights import load_weights
from cacseg.models import SegmentationModel, load
from cacseg.models.saved import LAST
from cacseg.recipes.build import LEFT_ALONE, begin, fit, held_out
from cacseg.recipes.config import Config, ModelConfig, change, setting_names, validated
from cacseg.recipes.files import CONFIG, read_config
from cacseg.recipes.named import folder as folder_recipe
from cacseg.reports.page import make_page
from cacseg.reports.runs import read_runs
from cacseg.reports.strips import Subject, examine

RECIPE = "cacseg.train"
PAGE = "report.html"
IMAGES = 200  # of the validation data, from which the report chooses
# What a transform of the user's takes the place of.
OF_OUR_TRANSFORM: dict[str, Any] = {
    "data.scale": None,
    "data.ratios": (1.0, 1.0),
    "data.max_share": 1.0,
    "data.flip": 0.0,
    "data.distort": False,
    "data.resident": False,
}
OTHERS = ("data.crop", "data.balance", "data.val_scale", "data.window", "data.stride")
DATA_SETTINGS = frozenset({*OF_OUR_TRANSFORM, *OTHERS})


def train(
    model: SegmentationModel,
    train: Any,
    validation: Any = None,
    *,
    folder: str | Path,
    class_names: Sequence[str] | None = None,
    palette: Sequence[Sequence[int]] | None = None,
    ignore_index: int = IGNORE,
    names: Sequence[str] | None = None,
    val_share: float | None = None,
    val_group: str | None = None,
    transform: Callable[..., Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    report: Callable[[str], None] = print,
    progress: bool = True,
    page: bool = True,
) -> Result:
    """Trains a model, in place, on data that a Python program holds.

        model = cacseg.create_model("upernet", 5, backbone="mobilenetv2_100", head_channels=256)
        cacseg.train(model, dataset, val_share=0.2, folder="runs/mine", settings={"schedule.steps": 2000})
        best = cacseg.load("runs/mine")

    Afterwards the model has the weights of last.safetensors. The folder gets the files of `cacseg train`.

    Args:
        model: a model of `cacseg.create_model` or `cacseg.load`.
        train, validation: data of one of these kinds; a dict of splits, or a saved one, holds both.

            - a torch Dataset or a list, whose samples are pairs (image, mask) or dicts with both. Images are Pillow's,
              or 8 bits [H, W, 3] or [3, H, W]; of a model with bands numbers of any kind, [H, W, bands] or [bands, H,
              W]; its mean and std are counted where it has none. Masks are Pillow's, or integers [H, W]. Do not resize
              or normalise them, and return the same sample for the same index.
            - a Dataset of Hugging Face, or the folder that its save_to_disk wrote.
            - what `cacseg.data.open_data` returns.
        folder: the folder of this run.
        class_names, palette: names and colours of the classes; by default those of the model, else numbers and our
            colours.
        ignore_index: the value in the masks that marks ignored pixels.
        names: names of the training images, by which `val_share` chooses; by default their positions.
        val_share, val_group: without `validation`, hold out this share of the images; as data.val_share and
            data.val_group of `cacseg train`.
        transform: replaces our augmentation: of Albumentations, of torchvision.transforms.v2, or a function of an image
            and its mask; see `cacseg.data.own_transform.OwnTransform`.
        settings: as of `cacseg train --set`, e.g. {"schedule.steps": 2000}; changes to the recipe `folder`. Settings of
            the model are arguments of `create_model`.
        resume: continue the run in the folder.
        report: callback for progress messages.
        progress: whether progress is shown.
        page: whether report.html is written at the end.
    """
    if not isinstance(model, SegmentationModel) or not model.arguments:
        raise TypeError(
            f"cacseg.train takes a model of cacseg.create_model or cacseg.load; got {type(model).__name__}. Others, "
            "those of cacseg.convert too, train in a loop of their own: losses = model.loss(images, labels)."
        )
    if model.bands is None and model.arguments["in_channels"] != 3:
        count = model.arguments["in_channels"]
        raise ValueError(f"images of colours have 3 channels; the model takes {count}. Create it with bands={count}.")
    folder, before = Path(folder), distributed.is_initialized()

    def tell(text: str) -> None:
        if is_first_process():
            report(text)

    train, of_both = split_in_two(train)
    validation = of_both if validation is None else split_in_two(validation)[0]
    if (validation is None) == (val_share is None):
        raise ValueError(
            "a run is validated on data of its own, or on a share of the training data; got "
            f"{'neither' if validation is None else 'both'}. Give validation, or val_share=0.2."
        )
    if val_group is not None and val_share is None:
        raise ValueError("val_group belongs to val_share, which is not given. Give it, e.g. val_share=0.2.")
    given: dict[str, Any] = {"class_names": class_names, "palette": palette, "ignored": ignore_index}
    train_data = _as_data(train, "train", model, {**given, "names": names})
    config = configure(model, settings or {}, transform is not None, val_share, val_group)
    if val_share is None:
        validation_data = _as_data(validation, "val", model, {**given, "names": None})
    else:
        train_data, validation_data = hold_out(train_data, val_share, val_group)
        tell(held_out(config.data, train_data, validation_data))
    check_data(train_data, validation_data)
    check_model(model, train_data)
    check_channels(model, train_data)
    config = _normalised(config, model, train_data, folder if resume else None, tell)
    own = None
    if transform is not None:
        own = OwnTransform(transform, config.data.crop, len(train_data.class_names), model.bands)
    python = {"transform": "ours" if own is None else own.described}
    if resume and (folder / CONFIG).is_file():
        _check_resumed(folder, model, python)
    config, saved = begin(config, folder, resume)
    if own is None:
        check_crop(config.data.crop, config.data.scale, config.data.ratios, train_data)
    if saved is None:
        check_foreground(train_data)
    options: Any = {"saved": saved, "recipe": RECIPE, "report": tell, "progress": progress}
    result = fit(config, model, train_data, validation_data, folder, transform=own, python=python, **options)
    load_weights(model, folder / LAST)
    model.source = folder / LAST
    model.eval()
    if distributed.is_initialized() and not before:
        distributed.destroy_process_group()  # the page is the work of one process
    if page and is_first_process():
        _write_page(folder, validation_data, training_device(config.training), tell)
    return result


def configure(
    model: SegmentationModel, settings: Mapping[str, Any], own: bool, val_share: float | None, val_group: str | None
) -> Config:
    """The configuration of a run on Python data: that of the recipe `folder`, with the model as it is."""
    for key in settings:
        if key in setting_names() and key.startswith(("model.", "data.")) and key not in DATA_SETTINGS:
            whose = "an argument of cacseg.create_model" if key.startswith("model.") else "one of data in files"
            raise ValueError(f"{key} is no setting of cacseg.train, but {whose}. Leave it out.")
        if own and key in OF_OUR_TRANSFORM and settings[key] != OF_OUR_TRANSFORM[key]:
            raise ValueError(f"{key} is a setting of our transform, whose place the given one takes. Leave it out.")
    values = folder_recipe().model_dump()
    described = {key: value for key, value in model.arguments.items() if key in ModelConfig.model_fields}
    values["model"] = {**described, "mean": model.mean, "std": model.std}
    data = {"name": PythonData.name, "crop": values["data"]["crop"], "val_share": val_share, "val_group": val_group}
    data["bands"] = model.bands
    config = validated({**values, "data": data})
    return change(config, {**(OF_OUR_TRANSFORM if own else {}), **settings})


def _normalised(
    config: Config, model: SegmentationModel, data: SegmentationData, resumed: Path | None, tell: Callable[[str], None]
) -> Config:
    """With mean and deviation of each band, counted where the model has none of its own; a resumed run has them."""
    if model.bands is None:
        return config
    if config.data.distort:
        tell(LEFT_ALONE)
    if any(model.mean) or set(model.std) != {1.0}:
        return config
    if resumed is not None and (resumed / CONFIG).is_file():
        saved = read_config(resumed).model_arguments
        mean, std = saved["mean"], saved["std"]
    else:
        mean, std = count_bands(data, tell)
    model.mean, model.std = tuple(mean), tuple(std)
    model.arguments |= {"mean": mean, "std": std}
    return change(config, {"model.mean": mean, "model.std": std})


def _as_data(data: Any, split: str, model: SegmentationModel, given: Mapping[str, Any]) -> SegmentationData:
    """Wraps the given data for the engine."""
    if isinstance(data, SegmentationData):
        named = [key for key in ("class_names", "palette", "names") if given[key] is not None]
        if data.ignore_index != IGNORE:
            raise ValueError(f"ignored pixels of samples are {IGNORE}; {data.name} has {data.ignore_index}. Map them.")
        if named or given["ignored"] != IGNORE:
            raise ValueError(
                f"{', '.join(named) or 'ignore_index'} goes with pairs of images and masks; {data.name} has its own. "
                "Leave it out."
            )
        return data
    numbers = [str(number) for number in range(model.num_classes)]
    class_names = given["class_names"] or model.class_names or numbers
    palette = given["palette"] or (model.palette if model.class_names == class_names else None)
    how: dict[str, Any] = {"ignored": given["ignored"], "names": given["names"], "bands": model.bands}
    return PythonData(data, split, class_names, palette, **how)


def _check_resumed(folder: Path, model: SegmentationModel, python: Mapping[str, str]) -> None:
    """Checks that model and transform are those of the run, as far as config.json knows them."""
    arguments, saved = json.loads(json.dumps(model.arguments)), read_config(folder)
    if saved.config.data.name != PythonData.name:
        raise ValueError(f"{folder} was not started from Python. Resume it with: cacseg train --resume -o {folder}")
    before, now = {**saved.model_arguments, **saved.python}, {**arguments, **python}
    changed = [
        f"{key} was {before.get(key)!r}, now {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise ValueError(
            f"{folder} can only be resumed as it was started: {'; '.join(changed)}. Give the model and the transform "
            "that it has."
        )


def _write_page(folder: Path, data: SegmentationData, device: torch.device, tell: Callable[[str], None]) -> None:
    """Writes report.html; a failure is only reported, as the run is done."""
    try:
        found, runs = read_runs([folder])
        ((name, run),) = runs.items()
        weights = folder / LAST if run.weights is None else run.weights
        subject = Subject(name, lambda: load(weights), run.inference, run.scale)
        seen = examine([subject], data, images=IMAGES, device=device, batch=4, workers=1)
        write_file(folder / PAGE, make_page(found._replace(examination=seen, weights=str(weights))))
        tell(str(folder / PAGE))
    except Exception as error:
        tell(f"no {PAGE}: {' '.join(str(error).split()) or type(error).__name__}")
