"""A whole run, typed: what a recipe returns, what --set changes and what config.json holds."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cacseg.presets import DEFAULT, PresetName

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Pair = tuple[Count, Count]
LoggerNames = Annotated[
    tuple[Literal["csv", "tensorboard", "wandb"], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),  # one word is a list of one
]

Dilations = Annotated[
    tuple[Annotated[int, Field(ge=1, strict=True)], ...],
    Field(min_length=1),
    BeforeValidator(lambda value: (value,) if isinstance(value, int) else value),  # one number is a list of one
]


class Section(BaseModel):
    """Frozen, and without room for a mistyped key."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    """Arguments of `cacseg.create_model`; None is the model's own."""

    name: str
    backbone: str | None = None
    classifier: Literal["context", "plain"] = "context"
    preset: PresetName = DEFAULT
    weights: str | None = None  # a whole model to start from, a .safetensors of ours
    reset_classifier: bool = False  # with weights of other classes: start the classifiers afresh
    pretrained: bool = False  # timm downloads weights of the backbone, where no file is given
    backbone_weights: str | None = None
    padding: Literal["", "same"] | None = None
    pad_to_stride: bool = True  # images, where a backbone pads as TensorFlow does
    mean: tuple[float, float, float] | None = None
    std: tuple[Positive, Positive, Positive] | None = None
    auxiliary: bool = True
    auxiliary_weight: NotNegative = 0.4
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    drop_path: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    output_stride: Literal[8, 16, 32] | None = None
    # Of MobileNetV2. None and auto: those of model.weights, else the first, or with auto all at a stride of 8.
    dilated_blocks: Literal["first", "all", "auto"] | None = None
    dilations: Dilations | None = None  # of deeplabv3plus alone; None: those of model.weights, else 12, 24, 36
    class_weights: tuple[NotNegative, ...] | None = None
    label_smoothing: Share = 0.0
    classifier_arguments: dict[str, Any] = {}
    loss_arguments: dict[str, Any] = {}


class DataConfig(Section):
    """A data set, its crops in training, and how whole images are predicted in validation."""

    name: str
    root: str | None = None  # a folder or a .zip
    train_split: str = "train"
    val_split: str = "val"
    ignore_index: int | None = None  # of "folder" alone: the value in its files that marks ignored pixels
    crop: Pair  # height, width
    scale: Pair | None = None  # long and short side that images are fitted into; None: as they are
    ratios: tuple[Positive, Positive] = (0.5, 2.0)
    max_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.75
    flip: Share = 0.5
    distort: bool = True
    val_scale: Pair | None = None
    window: Pair | None = None  # height, width of sliding windows; None: whole
    stride: Pair | None = None
    size: Pair | None = None  # of "synthetic" alone: height, width
    length: Count | None = None  # of "synthetic" alone: images to train on
    val_length: Count | None = None


class OptimiserConfig(Section):
    name: Literal["sgd", "adamw"]
    rate: Positive
    weight_decay: NotNegative = 0.0
    momentum: Share = 0.9  # of SGD
    betas: tuple[Share, Share] = (0.9, 0.999)  # of AdamW
    decay_normalisation: bool = True  # False: no decay of normalisations, positions, relative-position biases
    multipliers: dict[str, NotNegative] = {}  # of the rate, by part: backbone, head, classifier, projectors, auxiliary
    clip: Positive | None = None  # the largest norm of the gradients


class ScheduleConfig(Section):
    """Linear warm-up times a polynomial that ends at `minimum`."""

    steps: Count
    power: NotNegative = 0.9
    minimum: NotNegative = 0.0  # a rate
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    warmup_ratio: Share = 1e-6


class TrainingConfig(Section):
    batch: Count  # images a step, over all devices
    accumulate: Count = 1  # parts that a step's batch is split into
    seed: Annotated[int, Field(ge=0)] = 0
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    channels_last: bool = False
    compile: bool = False
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    synchronise_batch_norm: bool = True
    freeze_batch_norm: bool = False
    deterministic: bool = False
    validate_every: Count = 1000
    save_every: Count = 1000
    log_every: Count = 50
    workers: Annotated[int, Field(ge=0)] = 4  # a device, no more than there are cores
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Count | Literal["auto"] = "auto"  # of each machine
    nodes: Count = 1
    loggers: LoggerNames = ("csv", "tensorboard")


class Config(Section):
    model: ModelConfig
    data: DataConfig
    optimiser: OptimiserConfig
    schedule: ScheduleConfig
    training: TrainingConfig

    @model_validator(mode="after")
    def _rate_falls(self) -> Config:
        if self.schedule.minimum > self.optimiser.rate:
            raise ValueError(
                f"schedule.minimum must not exceed optimiser.rate, or the rate would rise; got "
                f"{self.schedule.minimum:g} and {self.optimiser.rate:g}. Change both"
            )
        return self


def change(config: Config, changes: Mapping[str, Any]) -> Config:
    """A configuration that differs in a few places: `change(config, {"optimiser.rate": 0.001})`."""
    values = config.model_dump()
    known = dict(flat(config))
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        field, _, entry = rest.partition(".")
        if f"{section}.{field}" not in known or (entry and not isinstance(values[section][field], dict)):
            nearest = difflib.get_close_matches(key, known, n=3) or [name for name in known if key in name][:3]
            hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "--print-config shows them all."
            raise ValueError(f"there is no setting {key!r}. {hint}")
        if entry:
            values[section][field] = {**values[section][field], entry: value}
        else:
            values[section][field] = value
    return validated(values)


def validated(values: Mapping[str, Any]) -> Config:
    """The configuration of nested dictionaries; an error names each setting that is wrong, in one line."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        found: dict[str, str] = {}
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"][:2])
            if key:
                found.setdefault(key, f"{key}: {problem['msg'].lower()}; got {problem['input']!r}")
            else:  # of the whole, in words of our own
                found.setdefault(key, problem["msg"].removeprefix("Value error, "))
        raise ValueError("; ".join(found.values()) + ".") from None


def parse_setting(text: str) -> tuple[str, Any]:
    """Key and value of "key=value"; a value is JSON where it reads as such, else a word, or words between commas."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"a setting must be key=value; got {text!r}. Example: --set optimiser.rate=0.001")
    for candidate in (value, f"[{value}]"):
        if candidate == value or "," in value:
            try:
                return key, json.loads(candidate)
            except json.JSONDecodeError:
                continue
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return key, words[value.lower()]
    return key, value.split(",") if "," in value else value


def flat(config: Config) -> Iterator[tuple[str, Any]]:
    """Every setting, "section.field", and its value."""
    for section, fields in config.model_dump(mode="json").items():
        for field, value in fields.items():
            yield f"{section}.{field}", value
