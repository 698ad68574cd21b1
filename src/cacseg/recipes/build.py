"""Builds and runs what a configuration describes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from cacseg.data import SegmentationData, TestTransform, TrainTransform
from cacseg.data.bands import count_bands
from cacseg.data.layout import Rules
from cacseg.data.python import PythonData
from cacseg.data.sample import FaultyDataError
from cacseg.engine._lightning import is_first_process
from cacseg.engine.balance import ClassCounts, Weights, balance, count_classes, frequency_weights
from cacseg.engine.callbacks import seed_all
from cacseg.engine.decisions import check_graph, decide_graph, decide_resident, find_batch, training_device
from cacseg.engine.device import choose_precision
from cacseg.engine.inference import Inference
from cacseg.engine.loaders import Loaders
from cacseg.engine.preflight import check_crop, check_folder, check_foreground
from cacseg.engine.stream import Transform
from cacseg.engine.task import SegmentationTask
from cacseg.engine.train import Result, train
from cacseg.engine.weights import load_weights
from cacseg.models import SegmentationModel, create_model
from cacseg.models.backbones import has_choice_of_blocks
from cacseg.models.saved import read_model_file
from cacseg.models.zoo import find_architecture
from cacseg.presets import or_default
from cacseg.recipes.config import Config, DataConfig, ModelConfig, change, suggest
from cacseg.recipes.files import CONFIG, SavedConfig, differences, keep_decisions, read_config, write_config
from cacseg.recipes.protocol import bands_of, of_python, open_split
from cacseg.variants import VARIANTS, Variant

LEFT_ALONE = "brightness, contrast, saturation and hue are left alone: images have bands (data.distort)"


def run(
    config: Config,
    folder: str | Path,
    *,
    recipe: str = "",
    resume: bool = False,
    report: Callable[[str], None] = print,
    progress: bool = True,
) -> Result:
    """Trains what a configuration describes in a new folder, or with `resume` continues the run in the folder."""
    try:
        return _run(config, folder, recipe, resume, report, progress)
    except FaultyDataError as error:
        raise FaultyDataError(f"{error} {check_hint(config.data)}".rstrip()) from error


def check_hint(data: DataConfig) -> str:
    """The command that lists all that is wrong with the files of a data set."""
    if data.root is None:
        return ""
    name = "" if data.name == "folder" else f" --name {data.name}"
    ignored = "" if data.ignore_index is None else f" --ignore-index {data.ignore_index}"
    usual = DataConfig.model_fields
    keys = [key for key in Rules._fields[1:] if getattr(data, key) != usual[key].default]
    shapes = "".join(f" --{key.replace('_', '-')} {getattr(data, key)}" for key in keys)
    return f"`cacseg data check {shlex.quote(data.root)}{name}{ignored}{shapes}` lists all that is wrong."


def _run(
    config: Config, folder: str | Path, recipe: str, resume: bool, report: Callable[[str], None], progress: bool
) -> Result:
    folder = Path(folder)
    if config.data.name == PythonData.name:  # with a transform, perhaps, that is not here either
        raise of_python()
    config, saved = begin(config, folder, resume)
    train_data, validation_data = (open_split(config.data, split) for split in ("train", "val"))
    if config.data.val_share is not None:
        report(held_out(config.data, train_data, validation_data))
    check_crop(config.data.crop, config.data.scale, config.data.ratios, train_data)
    if saved is None:
        check_foreground(train_data)
    seed_all(config.training.seed)
    counts = None
    if config.model.class_weights == "frequency":
        counts = count_classes(train_data, report)
        config = change(config, {"model.class_weights": frequency_weights(counts)})
    if saved is None:
        config = with_bands(config, train_data, report)
        model = make_model(config.model, train_data, report, config.data.bands)
        report(describe(config.model, model))
    else:  # its weights come from the checkpoint; if there is none yet, from where they came before
        begun = (folder / "last.ckpt").exists()
        bands = config.data.bands
        model = create_model(**saved.model_arguments) if begun else make_model(config.model, train_data, report, bands)
    options: Any = {"saved": saved, "recipe": recipe, "counts": counts, "report": report, "progress": progress}
    return fit(config, model, train_data, validation_data, folder, **options)


def begin(config: Config, folder: Path, resume: bool) -> tuple[Config, SavedConfig | None]:
    """Checks the folder; of a resumed run, its saved configuration, and the one given with what that has decided."""
    if is_first_process():
        check_folder(folder, resume=resume)
    if not resume:
        return config, None
    saved = read_config(folder)
    changed = differences(saved.config, config)
    if changed:
        hint = f"`cacseg train --resume -o {folder}`, without a recipe, takes the settings that it has."
        hint = "Give the settings that it has." if config.data.name == PythonData.name else hint
        raise ValueError(f"{folder} can only be resumed as it was started: {'; '.join(changed)}. {hint}")
    return keep_decisions(config, saved.config), saved


def held_out(data: DataConfig, train_data: SegmentationData, validation_data: SegmentationData) -> str:
    return (
        f"{len(validation_data)} of {len(train_data) + len(validation_data)} images are held out for validation, by "
        f"their names (data.val_share={data.val_share:g})"
    )


def fit(
    config: Config,
    model: SegmentationModel,
    train_data: SegmentationData,
    validation_data: SegmentationData,
    folder: Path,
    *,
    saved: SavedConfig | None,
    recipe: str,
    report: Callable[[str], None],
    progress: bool,
    counts: ClassCounts | None = None,
    transform: Transform | None = None,
    python: Mapping[str, str] | None = None,
) -> Result:
    """Trains a model on two splits; `saved` is the configuration of the run to resume.

    `counts` are those of the classes in the training data, where they are known. `transform` takes the place of our
    own; `python` names, for config.json, what a Python program has handed over.
    """
    model.class_names, model.palette = list(train_data.class_names), [list(colour) for colour in train_data.palette]
    config = decide(config, model, train_data, validation_data, report)
    weights = None
    if config.data.balance is not None:
        weights = balance(train_data, counts or count_classes(train_data, report), config.data.balance, report)
    schedule = config.schedule
    if schedule.warmup_steps >= schedule.steps:
        report(
            f"the warm-up of {schedule.warmup_steps} steps does not end within {schedule.steps}: the full rate is "
            "never reached (schedule.warmup_steps)"
        )

    def passed() -> None:
        """Called after the dry run, so that a refused run leaves no folder that blocks a corrected one."""
        if (folder / CONFIG).exists():
            raise FileExistsError(f"another run was started in {folder} meanwhile. Choose another folder with -o.")
        write_config(folder, recipe, config, model.arguments, python)

    return train(
        SegmentationTask(
            model,
            config.optimiser,
            schedule,
            config.training,
            Inference(window=config.data.window, stride=config.data.stride),
        ),
        make_loaders(config, train_data, validation_data, report, weights, transform),
        folder,
        resume=saved is not None,
        passed=passed if saved is None else None,
        report=report,
        progress=progress,
    )


def decide(
    config: Config,
    model: SegmentationModel,
    train_data: SegmentationData,
    validation_data: SegmentationData,
    report: Callable[[str], None],
) -> Config:
    """The configuration with a value in place of every "auto" that is the run's to decide; config.json keeps them."""
    device = training_device(config.training)
    decided: dict[str, Any] = {"training.log_every": config.training.logged_every(config.schedule.steps)}
    if config.data.resident == "auto":
        decided["data.resident"], words = decide_resident((train_data, validation_data), device)
        report(words)
    check_graph(config.training)
    if config.training.precision == "fp32" and choose_precision(device) == "bf16":
        report("float32; bfloat16 is faster here: training.precision=bf16, training.channels_last=true")
    if config.training.graph == "auto":
        decided["training.graph"] = decide_graph(config.training, device)
    if config.training.batch == "auto":
        batch = decided["training.batch"] = find_batch(model, config.data.crop, config.training, device)
        report(f"{batch} images a step fit into the memory of {torch.cuda.get_device_name(device)} (training.batch)")
    return change(config, decided)


def describe(config: ModelConfig, model: SegmentationModel) -> str:
    """What is about to be trained, and what it starts from."""
    kind = "plain" if config.classifier == "plain" else f"context-aware ({config.preset})"
    named = config.name if config.backbone is None else f"{config.name} on {config.backbone}"
    size = sum(one.numel() for one in model.parameters()) / 1e6
    if config.weights is not None:
        start = "from trained weights"
    elif config.backbone_weights is not None:
        start = f"backbone from {config.backbone_weights}"
    elif config.pretrained:
        start = "backbone from timm's weights"
    else:
        start = "from random weights (model.pretrained=true downloads ImageNet weights of the backbone)"
    return f"{named}, {kind}, {size:.1f} M parameters, {start}"


def with_bands(config: Config, data: SegmentationData, report: Callable[[str], None]) -> Config:
    """With mean and deviation of each band, counted where neither they nor weights of such a model are given."""
    bands, model = config.data.bands, config.model
    if bands is None:
        return config
    if config.data.distort:
        report(LEFT_ALONE)
    if model.weights is not None and bands_of(model.weights) == bands:
        return config
    given = {"model.mean": model.mean, "model.std": model.std}
    if all(given.values()):
        return config
    counted = dict(zip(given, count_bands(data, report), strict=True))
    return change(config, {key: value for key, value in counted.items() if given[key] is None})


def make_model(
    model: ModelConfig, data: SegmentationData, report: Callable[[str], None], bands: int | None = None
) -> SegmentationModel:
    """The model for the classes of the data, with the weights that it starts from."""
    stated: dict[str, Any] = {}
    if model.weights is not None:
        stated = read_model_file(model.weights)[1]
    theirs, blocks = _dilation_of(stated, model), model.dilated_blocks
    row = variant_of(model)
    arguments = model.model_dump(exclude={"name", "classifier", "variant", "weights", "reset_classifier"})
    kept = ("padding", "mean", "std") if stated.get("bands") == bands else ("padding",)  # others are in other units
    arguments |= {key: stated.get(key) for key in kept if arguments[key] is None}
    made = create_model(
        model.name,
        len(data.class_names),
        model.classifier,
        **{
            **arguments,
            "bands": bands,
            "ignore_index": data.ignore_index,
            "pretrained": model.pretrained and model.backbone_weights is None and model.weights is None,
            "dilations": theirs.get("dilations") if model.dilations is None else model.dilations,
            "dilated_blocks": theirs.get("dilated_blocks", blocks) if blocks == "auto" else blocks,
            "classifier_arguments": {**row.classifier, **model.classifier_arguments},
            "loss_arguments": {**row.loss, **model.loss_arguments},
        },
    )
    if model.weights is not None:
        left = load_weights(made, model.weights, reset_classifier=model.reset_classifier)
        for key, value in theirs.items():
            if value != made.arguments[key]:
                report(f"{key} of {made.arguments[key]!r}, where the model of {model.weights} has {value!r}")
        report(f"weights of {model.weights}" + (f", but {len(left)} tensors of the classifiers" if left else ""))
    return made


def variant_of(model: ModelConfig) -> Variant:
    """The row of the paper's tables that model.variant names; without one a row that changes nothing."""
    if model.variant is None:
        return Variant("", 0.0)
    if model.classifier == "plain":
        raise ValueError(
            f"model.variant must be none with model.classifier=plain; got {model.variant!r}. The rows of the fixed "
            "classifier are variants of classifier=context too: loss_a, design_baseline."
        )
    if model.variant not in VARIANTS:
        hint = suggest(model.variant, VARIANTS, f"There are {', '.join(VARIANTS)}.")
        raise ValueError(f"model.variant: there is no row {model.variant!r} in the paper's tables. {hint}")
    return VARIANTS[model.variant]


def _dilation_of(stated: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """The dilation settings of a saved model, where this one has the same head or backbone."""
    if not stated:
        return {}
    pairs = ((stated["name"], stated.get("backbone")), (model.name, model.backbone))
    theirs, ours = (find_architecture(*pair) for pair in pairs)
    networks = {one.backbone.partition(".")[0] for one in (theirs, ours)}
    found: dict[str, Any] = {}
    if theirs.head == ours.head == "deeplabv3plus":
        found["dilations"] = stated["dilations"]
    if len(networks) == 1 and has_choice_of_blocks(ours.backbone):
        blocks, stride = stated["dilated_blocks"], stated["output_stride"]
        if stride == or_default(model.output_stride, ours.output_stride):
            found["dilated_blocks"] = blocks
        elif blocks == "all" or stride == 32:  # these weights read the same at any stride if every block dilates
            found["dilated_blocks"] = "all"
    return found


def make_loaders(
    config: Config,
    train_data: SegmentationData,
    validation_data: SegmentationData,
    report: Callable[[str], None] = print,
    weights: Weights | None = None,
    transform: Transform | None = None,
) -> Loaders:
    data = config.data
    settings = {field.name: getattr(data, field.name) for field in fields(TrainTransform)}  # by the same names
    if transform is None:
        transform = TrainTransform(**{**settings, "ignore_index": train_data.ignore_index})
    validated = TestTransform(scale=data.val_scale)
    resident = data.resident is True
    return Loaders(
        train_data,
        validation_data,
        transform,
        validated,
        config.training,
        resident=resident,
        weights=weights,
        report=report,
    )
