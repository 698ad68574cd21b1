"""The typed configuration of a run: recipes return it, --set changes it, config.json holds it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from cacseg._checks import ask, did_you_mean
from cacseg._text import parse_json, shorten
from cacseg.data.layout import Crowd, EmptyClasses, Overlap, Uncovered
from cacseg.engine.inference import Inference
from cacseg.engine.options import (
    Count,
    NotNegative,
    OptimiserOptions,
    Positive,
    ScheduleOptions,
    Section,
    Share,
    TrainingOptions,
    pair,
)
from cacseg.models import MODELS
from cacseg.presets import DEFAULT, PresetName
from cacseg.runtime.decode import MAX_PIXELS

Size = Annotated[tuple[Count, Count], pair("HEIGHT,WIDTH, e.g. 512,640", one=True)]
Sides = Annotated[tuple[Count, Count], pair("LONG,SHORT, e.g. 2048,512")]
Ratios = Annotated[tuple[Positive, Positive], pair("LEAST,MOST, e.g. 0.5,2")]
_several = BeforeValidator(lambda value: (value,) if isinstance(value, int | float) else value)  # one is a list of one
Dilations = Annotated[tuple[Annotated[int, Field(ge=1, strict=True)], ...], Field(min_length=1), _several]


class ModelConfig(Section):
    """Arguments of `cacseg.create_model`; None is the model's own."""

    name: str
    """Name a model of `cacseg models`, or a head (fcn, deeplabv3plus, upernet, ocrnet) with a model.backbone."""
    backbone: str | None = None
    """Name a backbone of timm, where model.name is a head; none: the model's own backbone."""
    head_channels: Count = 512
    """Set the channels of the features that the classifier reads; fewer need less memory."""
    classifier: Literal["context", "plain"] = "context"
    """Choose the context-aware classifier, or plain: the 1x1 convolution of the baseline."""
    preset: PresetName = DEFAULT
    """Choose defaults for the context-aware classifier and its losses, and for the average of the auxiliary loss."""
    variant: str | None = None
    """Train a row of the paper's ablation tables (`cacseg.variants`), e.g. design_d; none: the method of the preset."""
    overlap_weight: NotNegative | None = None
    """Add the soft-Jaccard loss with this weight; none: the preset's weight, 0 with a plain classifier."""
    weights: str | None = None
    """Start from a whole model, a .safetensors that cacseg saved; none: only the backbone may start from weights."""
    reset_classifier: bool = False
    """Initialise the classifiers anew instead of from model.weights, e.g. where its classes are others."""
    pretrained: bool = False
    """Download timm's weights of the backbone, where neither model.weights nor model.backbone_weights is given."""
    backbone_weights: str | None = None
    """Load backbone weights with timm's names from a .safetensors or .pth file; none: as model.pretrained says."""
    padding: Literal["", "same"] | None = None
    """Pad the backbone's convolutions as TensorFlow (same) or PyTorch (empty); none: as its weights state, or empty."""
    pad_to_stride: bool = True
    """Pad images to a multiple of the output stride, where a backbone pads as TensorFlow does."""
    mean: Annotated[tuple[float, ...], Field(min_length=1), _several] | None = None
    """Subtract this from each channel of an image; none: as the weights state, or timm's; measured for data.bands."""
    std: Annotated[tuple[Positive, ...], Field(min_length=1), _several] | None = None
    """Divide each channel of an image by this, after model.mean; none: chosen as model.mean is."""
    auxiliary: bool = True
    """Add the loss of an auxiliary head."""
    auxiliary_weight: NotNegative = 0.4
    """Multiply the loss of the auxiliary head by this."""
    auxiliary_average: Literal["labelled", "all"] | None = None
    """Average the auxiliary loss over labelled or all pixels; none: as model.preset, with plain classifiers too."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Drop channels before the plain and the auxiliary logits with this probability; none: 0.1, for OCRNet 0."""
    drop_path: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Set the rate of stochastic depth in the backbone; none: the model's own."""
    output_stride: Literal[8, 16, 32] | None = None
    """Set the stride of the backbone's last feature map, in pixels; none: the model's own."""
    dilated_blocks: Literal["first", "all", "auto"] = "auto"
    """Dilate these blocks of a MobileNetV2 stage; auto: as model.weights, else all at stride 8 and the first at 16."""
    dilations: Dilations | None = None
    """Set the dilations of deeplabv3plus, which alone takes them; none: those of model.weights, else 12,24,36."""
    class_weights: tuple[NotNegative, ...] | Literal["frequency"] | None = None
    """Weight each class in every cross-entropy; frequency: the median frequency over that of the class; none: all 1."""
    label_smoothing: Share = 0.0
    """Smooth the labels of every cross-entropy by this share; 0: one-hot labels."""
    classifier_arguments: dict[str, Any] = Field(default={})
    """Pass further arguments to ContextAwareClassifier: model.classifier_arguments.NAME=VALUE."""
    loss_arguments: dict[str, Any] = Field(default={})
    """Pass further arguments to ContextLoss: model.loss_arguments.NAME=VALUE."""


class DataConfig(Section):
    """A data set, its crops in training, and how whole images are predicted in validation."""

    name: str
    """Name a data set of `cacseg data list`, or folder for your own images."""
    root: str | None = None
    """Read the data set from this folder or .zip; none: for synthetic only."""
    train_split: str = "train"
    """Train on this split."""
    val_split: str = "val"
    """Validate on this split."""
    val_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Validate on this share of the images of data.train_split, chosen by their names; none: data.val_split."""
    val_group: str | None = None
    """Keep images together by the first group of this regular expression, with data.val_share; none: each alone."""
    ignore_index: int | None = None
    """Ignore pixels labelled with this value, in folder only; none: 255."""
    overlap: Overlap = "later"
    """Draw this shape on top where labels are overlapping shapes: the later or the smaller one."""
    uncovered: Uncovered = "background"
    """Make pixels outside all shapes a class of their own, or ignore them, where labels are shapes."""
    crowd: Crowd = "class"
    """Give COCO's crowd regions their class, or ignore them."""
    empty_classes: EmptyClasses = "keep"
    """Keep or drop classes that no image of any split has, where labels are shapes."""
    bands: Count | None = None
    """Read so many bands, in the units of the files (16 bits, floats; TIFF, .npy, PNG); none: 8-bit colours."""
    max_pixels: Annotated[int, Field(ge=1)] = MAX_PIXELS
    """Refuse an image or a file of labels with more pixels, before it is decoded."""
    resident: bool | Literal["auto"] = "auto"
    """Keep all images on the device and crop them there; auto: if they fit into a tenth of a GPU's memory."""
    crop: Size
    """Train on crops of this height and width, in pixels."""
    scale: Sides | None = None
    """Resize images to fit into this long and short side, in pixels; none: as they are."""
    ratios: Ratios = (0.5, 2.0)
    """Scale each image by a random ratio in this range before it is cropped."""
    balance: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Show images with rare classes (in less than this share of the images, e.g. 0.1) more often; none: all alike."""
    max_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.75
    """Draw another crop, up to ten, while one class has this share of its labelled pixels or more; 1: take any crop."""
    flip: Share = 0.5
    """Mirror a crop left to right with this probability."""
    distort: bool = True
    """Change brightness, contrast, saturation and hue at random."""
    val_scale: Sides | None = None
    """Resize validation images to fit into this long and short side, in pixels; none: as they are."""
    window: Size | None = None
    """Validate by sliding windows of this height and width, in pixels; none: whole images."""
    stride: Size | None = None
    """Move windows by so many pixels down and across; goes with data.window; none: whole images."""
    size: Size | None = None
    """Generate scenes of this height and width, in pixels, for synthetic only; none: 128,128."""
    length: Count | None = None
    """Generate so many training images, for synthetic only; none: 1000."""
    val_length: Count | None = None
    """Generate so many validation images, for synthetic only; none: 200."""


class Config(Section):
    model: ModelConfig
    data: DataConfig
    optimiser: OptimiserOptions
    schedule: ScheduleOptions
    training: TrainingOptions

    @model_validator(mode="after")
    def _rate_falls(self) -> Config:
        if self.schedule.minimum > self.optimiser.rate:
            raise ValueError(
                f"schedule.minimum must not exceed optimiser.rate, or the rate would rise; got "
                f"{self.schedule.minimum:g} and {self.optimiser.rate:g}. Change both"
            )
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> Config:
        Inference(self.data.window, self.data.stride)  # refuses what does not go together
        return self


def change(config: Config, changes: Mapping[str, Any]) -> Config:
    """A configuration that differs in a few places: `change(config, {"optimiser.rate": 0.001})`.

    A model of the paper, named without a backbone, brings its own instead of the recipe's.
    """
    values = config.model_dump()
    if changes.get("model.name") in MODELS and "model.backbone" not in changes:
        values["model"]["backbone"] = None
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
                words = words.removeprefix("Value error, ").rstrip(".") if own else words.lower()
                wrong.setdefault(key, f"{key}: {words}; got {shorten(problem['input'])}" if key else words)
        raise ValueError(" ".join([*unknown, *(["; ".join(wrong.values()) + "."] if wrong else [])])) from None


def setting_names() -> list[str]:
    """Every setting, "section.field"."""
    sections = ((name, field.annotation) for name, field in Config.model_fields.items())
    return [f"{section}.{field}" for section, kind in sections for field in cast(type[Section], kind).model_fields]


def unknown_setting(key: str) -> str:
    """An error for a setting that does not exist, with the same field of another section, or the nearest settings."""
    known = setting_names()
    section, _, field = key.partition(".")
    elsewhere = [name for name in known if name.endswith(f".{field or section}")]
    if elsewhere:
        hint = ask(elsewhere)
    elif field and section in Config.model_fields:  # by the field alone: the section would make all of them alike
        inside = [name.removeprefix(f"{section}.") for name in known if name.startswith(f"{section}.")]
        hint = ask(f"{section}.{name}" for name in difflib.get_close_matches(field, inside, n=3))
    else:
        hint = did_you_mean(key, known)
    return f"there is no setting {key!r}. {hint or '`cacseg train --settings` lists them all.'}"


def suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known names nearest to a mistyped one, as a question; `otherwise` where none is near."""
    return did_you_mean(name, known) or otherwise


def parse_setting(text: str) -> tuple[str, Any]:
    """Key and value of "key=value"; a value is JSON where it reads as such, else a word, or words between commas."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"a setting must be key=value; got {text!r}. Example: --set optimiser.rate=0.001")
    for candidate in (value, f"[{value}]"):
        if candidate == value or "," in value:
            try:
                return key, parse_json(candidate)
            except ValueError:
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
