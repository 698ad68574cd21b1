"""The settings that the engine takes, in frozen groups. They are spelled here and passed on whole."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
_NUMBER = re.compile(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*")


def pair(words: str, *, one: bool = False) -> BeforeValidator:
    """Two numbers as a list, "512x640" or "512,640"; where `one` may stand for both, a whole number too."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = re.split("[x,]", value.lower())
        elif one and isinstance(value, int) and not isinstance(value, bool):
            value = (value, value)
        two = isinstance(value, list | tuple) and len(value) == 2
        if not two or not all(_NUMBER.fullmatch(str(part)) for part in value):
            raise ValueError(f"must be {words}")
        return value

    return BeforeValidator(read)


Betas = Annotated[tuple[Share, Share], pair("two shares, e.g. 0.9,0.999")]
LoggerNames = Annotated[
    tuple[Literal["csv", "tensorboard", "wandb"], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),  # one word is a list of one
]


class Section(BaseModel):
    """Frozen; unknown keys are errors. The string below a field is its description in `--settings`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class OptimiserOptions(Section):
    """The optimiser and its learning rates."""

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


class ScheduleOptions(Section):
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


class TrainingOptions(Section):
    """How a run trains, validates and logs."""

    batch: Count | Literal["auto"]
    """Images a step, over all devices; auto: the largest power of two that fits into the memory of one GPU."""
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
    graph: bool | Literal["auto"] = "auto"
    """Record a step once as a CUDA graph and replay it; auto: on one GPU, without fp16, accumulate and compile."""
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
    patience: Count | None = None
    """Stop after so many validations without a better mIoU; none: never."""
    scored_train_images: Annotated[int, Field(ge=0)] = 64
    """Training images that each validation scores beside the validation split, always the same; 0: none."""
    save_every: Count = 1000
    """Steps from one checkpoint to the next; a validation saves one anyway."""
    log_every: Count = 50
    """Steps from one line of losses to the next; at most a twentieth of the run, so that short runs have curves."""
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

    def logged_every(self, steps: int) -> int:
        """`log_every` in a run of so many steps."""
        return max(1, min(self.log_every, steps // 20))
