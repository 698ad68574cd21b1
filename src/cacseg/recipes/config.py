"""The typed configuration of a run: recipes return it, --set changes it, config.json holds it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cacseg.presets import DEFAULT, PresetName

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
_NUMBER = re.compile(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*")


def _pair(words: str, *, one: bool = False) -> BeforeValidator:
    """Two numbers as a list, "512x640" or "512,640"; where `one` may stand for both, a whole number too."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = re.split("[x,]", value.lower())
        elif one and isinstance(value, int) and not isinstance(value, bool):
            value = (value, value)
        pair = isinstance(value, list | tuple) and len(value) == 2
        if not pair or not all(_NUMBER.fullmatch(str(part)) for part in value):
            raise ValueError(f"must be {words}")
        return value

    return BeforeValidator(read)


Size = Annotated[tuple[Count, Count], _pair("HEIGHT,WIDTH, e.g. 512,640", one=True)]
Sides = Annotated[tuple[Count, Count], _pair("LONG,SHORT, e.g. 2048,512")]
Ratios = Annotated[tuple[Positive, Positive], _pair("LEAST,MOST, e.g. 0.5,2")]
Betas = Annotated[tuple[Share, Share], _pair("two shares, e.g. 0.9,0.999")]
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
    """Frozen; unknown keys are errors. The string below a field is its description in `--settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class ModelConfig(Section):
    """Arguments of `cacseg.create_model`; None is the model's own."""

    name: str
    """A model of `cacseg models`, or a head (fcn, deeplabv3plus, upernet, ocrnet) with a model.backbone."""
    backbone: str | None = None
    """timm's name of a backbone, for a head alone; none: that of the model."""
    classifier: Literal["context", "plain"] = "context"
    """Context-aware, or the 1x1 convolution of the baseline."""
    preset: PresetName = DEFAULT
    """Of the context-aware classifier and its losses, and of the auxiliary loss of either classifier."""
    variant: str | None = None
    """A row of the paper's ablation tables (`cacseg.variants`), e.g. design_d; none: the method of the preset."""
    overlap_weight: NotNegative | None = None
    """Of a soft-Jaccard loss beside the cross-entropy; none: the preset's, and 0 with a plain classifier."""
    weights: str | None = None
    """A whole model to start from, a .safetensors of ours; none: the backbone alone may have weights."""
    reset_classifier: bool = False
    """With model.weights of other classes: initialise the classifiers anew."""
    pretrained: bool = False
    """timm downloads weights of the backbone, where no file is given."""
    backbone_weights: str | None = None
    """A file of backbone weights in timm's names, .safetensors or .pth; none: as model.pretrained says."""
    padding: Literal["", "same"] | None = None
    """Of the backbone: same for weights of TensorFlow; none: as the file of weights states, else empty."""
    pad_to_stride: bool = True
    """Pad images to a multiple of the output stride, where a backbone pads as TensorFlow does."""
    mean: tuple[float, float, float] | None = None
    """Red, green, blue that images are normalised with; none: as the file of weights states, else timm's."""
    std: tuple[Positive, Positive, Positive] | None = None
    """Red, green, blue that images are divided by; none: as model.mean."""
    auxiliary: bool = True
    """Whether an auxiliary head adds its loss."""
    auxiliary_weight: NotNegative = 0.4
    """A factor on the loss of the auxiliary head."""
    auxiliary_average: Literal["labelled", "all"] | None = None
    """Of the auxiliary loss, a mean over labelled pixels or over all; none: as model.preset, plain classifiers too."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Channel dropout before the plain and the auxiliary logits; none: 0.1, for OCRNet 0."""
    drop_path: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Stochastic depth of the backbone; none: the model's own."""
    output_stride: Literal[8, 16, 32] | None = None
    """Pixels of the image to one of the backbone's last map; none: the model's own."""
    dilated_blocks: Literal["first", "all", "auto"] | None = None
    """Of MobileNetV2; none, auto: those of model.weights, else the first, or with auto all at a stride of 8."""
    dilations: Dilations | None = None
    """Of deeplabv3plus alone; none: those of model.weights, else 12,24,36."""
    class_weights: tuple[NotNegative, ...] | None = None
    """A weight in every cross-entropy for each class; none: all 1."""
    label_smoothing: Share = 0.0
    """Of every cross-entropy, a share."""
    classifier_arguments: dict[str, Any] = {}
    """Further arguments of ContextAwareClassifier: model.classifier_arguments.NAME=VALUE."""
    loss_arguments: dict[str, Any] = {}
    """Further arguments of ContextLoss: model.loss_arguments.NAME=VALUE."""


class DataConfig(Section):
    """A data set, its crops in training, and how whole images are predicted in validation."""

    name: str
    """folder (one's own), or a data set that `cacseg data list` names."""
    root: str | None = None
    """A folder or a .zip; none: for synthetic alone."""
    train_split: str = "train"
    """The split to train on."""
    val_split: str = "val"
    """The split to validate on."""
    ignore_index: int | None = None
    """Of folder alone: the value in its files that marks ignored pixels; none: 255."""
    crop: Size
    """Height and width of what is trained on, in pixels."""
    scale: Sides | None = None
    """Long and short side that images are fitted into, in pixels; none: as they are."""
    ratios: Ratios = (0.5, 2.0)
    """Least and largest random scaling of an image before it is cropped."""
    max_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.75
    """Largest share of a crop's labelled pixels that one class may have, tried ten times; 1: any crop."""
    flip: Share = 0.5
    """The probability that a crop is mirrored."""
    distort: bool = True
    """Change brightness, contrast, saturation and hue at random."""
    val_scale: Sides | None = None
    """Long and short side that validation images are fitted into, in pixels; none: as they are."""
    window: Size | None = None
    """Height and width of sliding windows in validation, in pixels; none: whole images."""
    stride: Size | None = None
    """Pixels from one window to the next, down and across; goes with data.window; none: without it."""
    size: Size | None = None
    """Of synthetic alone: height and width of its scenes, in pixels; none: 128,128."""
    length: Count | None = None
    """Of synthetic alone: images to train on; none: 1000."""
    val_length: Count | None = None
    """Of synthetic alone: images to validate on; none: 200."""


class OptimiserConfig(Section):
    name: Literal["sgd", "adamw"]
    """SGD with momentum, or AdamW."""
    rate: Positive
    """The learning rate, after the warm-up."""
    weight_decay: NotNegative = 0.0
    """As the algorithm defines it; 0: none."""
    momentum: Share = 0.9
    """Of SGD alone."""
    betas: Betas = (0.9, 0.999)
    """Of AdamW alone."""
    decay_normalisation: bool = True
    """false: no decay of normalisations, positions, relative-position biases."""
    multipliers: dict[str, NotNegative] = {}
    """Of the rate, by part (backbone, head, classifier, projectors, auxiliary): optimiser.multipliers.PART=FACTOR."""
    clip: Positive | None = None
    """The largest norm of the gradients; none: any."""


class ScheduleConfig(Section):
    """Linear warm-up times a polynomial that ends at `minimum`."""

    steps: Count
    """Steps of the whole run."""
    power: NotNegative = 0.9
    """Of the polynomial decay; 1: linear, 0: none."""
    minimum: NotNegative = 0.0
    """The rate at the end."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of the linear warm-up; 0: none."""
    warmup_ratio: Share = 1e-6
    """The share of the rate that the warm-up starts from."""


class TrainingConfig(Section):
    batch: Count
    """Images a step, over all devices."""
    accumulate: Count = 1
    """Parts that a step's batch is split into, one after the other."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the weights, the order of images and what is done to them at random."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """tf32: TF32 in matrix products too; bf16, fp16: autocast, fp16 on GPUs only."""
    channels_last: bool = False
    """The memory format, quicker for convolutions on GPUs."""
    compile: bool = False
    """torch.compile of the training step."""
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Of an exponential moving average of the weights, which is validated and saved, e.g. 0.999; none: no average."""
    synchronise_batch_norm: bool = True
    """Batch statistics over all devices, where there are several; needs CUDA."""
    freeze_batch_norm: bool = False
    """Normalise with the running statistics and leave them as they are."""
    deterministic: bool = False
    """Deterministic algorithms alone; slower on GPUs."""
    validate_every: Count = 1000
    """Steps from one validation to the next."""
    save_every: Count = 1000
    """Steps from one checkpoint to the next; a validation saves one anyway."""
    log_every: Count = 50
    """Steps from one line of losses to the next."""
    workers: Annotated[int, Field(ge=0)] = 4
    """Processes that read images, for each device, no more than there are cores; 0: none but the run's own."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: GPUs where there are any."""
    devices: Count | Literal["auto"] = "auto"
    """How many of each machine; auto: all."""
    nodes: Count = 1
    """Machines that train together."""
    loggers: LoggerNames = ("csv", "tensorboard")
    """Where losses and scores go, words between commas; wandb if it is installed."""


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
    known = setting_names()
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        field, _, entry = rest.partition(".")
        if f"{section}.{field}" not in known or (entry and not isinstance(values[section][field], dict)):
            raise ValueError(unknown_setting(key))
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
        unknown: list[str] = []
        wrong: dict[str, str] = {}
        for problem in error.errors():
            key, words = ".".join(str(part) for part in problem["loc"][:2]), problem["msg"]
            if problem["type"] == "extra_forbidden" and "." in key:
                unknown.append(unknown_setting(key))
            elif problem["type"] == "extra_forbidden":
                sections = list(Config.model_fields)
                hint = suggest(key, sections, f"There are {', '.join(sections)}.")
                unknown.append(f"there is no section {key!r}. {hint}")
            elif problem["type"] == "missing":
                wrong.setdefault(key, f"{key} is missing")
            else:
                own = problem["type"] == "value_error"
                words = words.removeprefix("Value error, ") if own else words.lower()
                wrong.setdefault(key, f"{key}: {words}; got {problem['input']!r}" if key else words)
        raise ValueError(" ".join([*unknown, *(["; ".join(wrong.values()) + "."] if wrong else [])])) from None


def setting_names() -> list[str]:
    """Every setting, "section.field"."""
    sections = ((name, field.annotation) for name, field in Config.model_fields.items())
    return [f"{section}.{field}" for section, kind in sections for field in cast(type[Section], kind).model_fields]


def unknown_setting(key: str) -> str:
    """An error for a setting that does not exist, with the same field of another section, or the nearest settings."""
    known, otherwise = setting_names(), "`cacseg train --settings` lists them all."
    section, _, field = key.partition(".")
    elsewhere = [name for name in known if name.endswith(f".{field or section}")]
    if elsewhere:
        hint = _question(elsewhere)
    elif field and section in Config.model_fields:  # by the field alone: the section would make all of them alike
        inside = [name.removeprefix(f"{section}.") for name in known if name.startswith(f"{section}.")]
        nearest = difflib.get_close_matches(field, inside, n=3)
        hint = _question(f"{section}.{name}" for name in nearest) if nearest else otherwise
    else:
        hint = suggest(key, known, otherwise)
    return f"there is no setting {key!r}. {hint}"


def suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known names nearest to a mistyped one, as a question; `otherwise` where none is near."""
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=3) or [one for one in known if name in one][:3]
    return _question(nearest) if nearest else otherwise


def _question(names: Iterable[str]) -> str:
    return f"Did you mean {' or '.join(names)}?"


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
