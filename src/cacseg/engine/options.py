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
    """Choose SGD with momentum, or AdamW."""
    rate: Positive
    """Set the base learning rate, which the schedule changes during the run."""
    weight_decay: NotNegative = 0.0
    """Decay the weights by this factor, as the optimiser defines it; 0: no decay."""
    momentum: Share = 0.9
    """Set the momentum of SGD; AdamW has none."""
    betas: Betas = (0.9, 0.999)
    """Set the two decay rates of AdamW's moments; SGD has none."""
    decay_normalisation: bool = True
    """Decay the weights of normalisations, position embeddings and relative-position biases too."""
    multipliers: dict[str, NotNegative] = {}
    """Scale the rate of backbone, head, classifier, projectors or auxiliary: optimiser.multipliers.PART=FACTOR."""
    clip: Positive | None = None
    """Clip the norm of the gradients at this; none: no clipping."""


class ScheduleOptions(Section):
    """Linear warm-up times a polynomial that ends at `minimum`."""

    steps: Count
    """Train for so many steps."""
    power: NotNegative = 0.9
    """Set the exponent of the polynomial decay of the rate; 1: linear, 0: no decay."""
    minimum: NotNegative = 0.0
    """End at this learning rate."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Raise the rate linearly during so many first steps; 0: no warm-up."""
    warmup_ratio: Share = 1e-6
    """Start the warm-up from this share of the rate."""


class TrainingOptions(Section):
    """How a run trains, validates and logs."""

    batch: Count | Literal["auto"]
    """Train on so many images a step, over all devices; auto: the largest power of two that one GPU's memory takes."""
    accumulate: Count = 1
    """Split the batch into so many parts, run one after the other, and accumulate their gradients."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed the random weights, the order of the images and the augmentation."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Choose the precision; tf32: TF32 in matrix products too; bf16, fp16: autocast, fp16 on GPUs only."""
    channels_last: bool = False
    """Store images and features channels-last; faster for convolutions on GPUs."""
    compile: bool = False
    """Compile the training step with torch.compile."""
    graph: bool | Literal["auto"] = "auto"
    """Record a step once as a CUDA graph and replay it; auto: on one GPU, without fp16, accumulate and compile."""
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Validate and save an exponential moving average of the weights with this decay, e.g. 0.999; none: no average."""
    synchronise_batch_norm: bool = True
    """Compute batch statistics over all devices, where there are several; needs CUDA."""
    freeze_batch_norm: bool = False
    """Normalise with the running statistics and leave them as they are."""
    deterministic: bool = False
    """Use only deterministic algorithms; slower on GPUs."""
    validate_every: Count = 1000
    """Validate every so many steps."""
    patience: Count | None = None
    """Stop after so many validations without a better mIoU; none: never."""
    scored_train_images: Annotated[int, Field(ge=0)] = 64
    """Score so many training images in each validation too, always the same ones; 0: only the validation split."""
    save_every: Count = 1000
    """Save a checkpoint every so many steps, and after each validation."""
    log_every: Count = 50
    """Log the losses every so many steps, and at least twenty times a run."""
    workers: Annotated[int, Field(ge=0)] = 4
    """Read images with so many processes for each device, at most one a core; 0: in the training process."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Train on CPU or GPU; auto: on GPUs where there are any."""
    devices: Count | Literal["auto"] = "auto"
    """Use so many devices of each machine; auto: all."""
    nodes: Count = 1
    """Train on so many machines together."""
    loggers: LoggerNames = ("csv", "tensorboard")
    """Write losses and scores with these loggers, separated by commas; wandb must be installed."""

    def logged_every(self, steps: int) -> int:
        """`log_every` in a run of so many steps."""
        return max(1, min(self.log_every, steps // 20))
