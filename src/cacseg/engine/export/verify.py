"""A written file against the model it was made from, at sizes other than the traced one."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from cacseg.engine.export.formats import Run
from cacseg.engine.export.module import Description, InferenceModule, draw_images, finish
from cacseg.functional._precision import without_tf32

SHAPES = ((1, 97, 130), (3, 144, 75))  # images, height, width
# The largest difference that counts as rounding, over the range of the values; None: whatever it may be. Some CPUs add
# up in float16, which random weights feel most.
TOLERANCES: dict[str, float | None] = {"fp32": 1e-4, "fp16": 5e-2, "int8": None}

# Times the rounding of a model itself, where that is larger: the file rounds in another order. Batch statistics of few
# values can raise differences a thousandfold.
UNSTEADY = 3.0

LARGEST_LOSS = 0.05  # of mIoU, by int8
LEAST_AGREEMENT = 0.8  # of int8 with the model, where no labels tell more


class Scores(NamedTuple):
    """mIoU of a file and of the model it was made from."""

    of_file: float
    of_model: float


class Check(NamedTuple):
    """A file beside its model on a batch of images."""

    shape: tuple[int, ...]
    difference: float  # the largest, of what the file gives; of classes: how far they lie below the highest logit
    allowed: float | None  # None: whatever it may be
    agreement: float  # the share of pixels that get the same class

    @property
    def passed(self) -> bool:
        return math.isfinite(self.difference) and (self.allowed is None or self.difference <= self.allowed)


@torch.no_grad()
def compare(run: Run, reference: InferenceModule, images: Tensor) -> Check:
    """What a file gives for a batch, beside the model in float32."""
    described = reference.described
    logits = reference.logits(images)
    truth, found = finish(logits, described), run(images).to(logits.device)
    if found.shape != truth.shape or found.dtype != truth.dtype:
        raise ValueError(
            f"the file must give {truth.dtype} {tuple(truth.shape)} for images {tuple(images.shape)}; got "
            f"{found.dtype} {tuple(found.shape)}."
        )
    values, tolerance = truth if described.output == "probabilities" else logits, TOLERANCES[described.precision]
    allowed = None if tolerance is None else tolerance * float(values.max() - values.min())
    if described.output == "classes":
        difference = float(below_best(logits, found).max())
    else:
        difference = float((found - truth).abs().max()) if found.isfinite().all() else float("inf")
    same = (classes_of(found, described) == classes_of(truth, described)).float().mean()
    if described.precision == "fp32" and allowed is not None and allowed < difference < float("inf"):
        allowed = max(allowed, UNSTEADY * own_rounding(reference, images, logits))
    return Check(tuple(images.shape), difference, allowed, float(same))


def own_rounding(reference: InferenceModule, images: Tensor, logits: Tensor) -> float:
    """How far a model's logits lie from those in float64; 0 where they differ from call to call, or have no float64."""
    if not torch.equal(reference.logits(images), logits):
        return 0.0
    exact = copy.deepcopy(reference).double()
    exact.dtype = torch.float64
    try:
        return float((exact.logits(images) - logits).abs().max())
    except RuntimeError:  # a layer that computes in float32, whatever its weights are
        return 0.0


def verify(run: Run, reference: InferenceModule, device: torch.device) -> list[Check]:
    """A check for each of `SHAPES`, or two at the fixed size; an error where one fails. On a GPU without TF32."""
    fixed = reference.described.fixed_size
    shapes = SHAPES if fixed is None else ((1, *fixed),) * len(SHAPES)
    batches = (draw_images(reference, shape, seed).to(device) for seed, shape in enumerate(shapes, 1))
    with without_tf32() if device.type == "cuda" else nullcontext():
        return require(compare(run, reference, batch) for batch in batches)


def require(checks: Iterable[Check]) -> list[Check]:
    """The checks, if all passed."""
    found = list(checks)
    for check in found:
        if not check.passed:
            b, _, height, width = check.shape
            hint = "Does the model draw random numbers, or keep anything from one call to the next?"
            if not math.isfinite(check.difference):
                hint = "Some values are not finite: float16 holds none above 65504."
            raise ValueError(
                f"the exported file differs from the model: by {check.difference:.3g} for {b} image(s) of "
                f"{width}x{height}, where rounding explains {check.allowed or 0.0:.3g}. No file was left. {hint}"
            )
    return found


def require_use(checks: Sequence[Check], scores: Scores | None) -> None:
    """An error where int8 lost too much, by its mIoU if that is known."""
    agreement = sum(check.agreement for check in checks) / len(checks)
    if scores is not None and scores.of_model - scores.of_file > LARGEST_LOSS:
        lost = f"mIoU may fall by {100 * LARGEST_LOSS:.0f} points; it fell from {100 * scores.of_model:.1f} to "
        lost += f"{100 * scores.of_file:.1f}"
    elif scores is None and agreement < LEAST_AGREEMENT:
        lost = f"{100 * LEAST_AGREEMENT:.0f} % of the pixels must keep their class; {100 * agreement:.1f} % did"
    else:
        return
    raise ValueError(
        f"int8 lost too much: {lost}. No file was left. Calibrate with more images like those to come, or keep the "
        "file with --accept (accept=True)."
    )


def below_best(logits: Tensor, classes: Tensor) -> Tensor:
    """How far below the highest logit of its pixel each class lies; one channel is that of a sigmoid."""
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    chosen = logits.gather(1, classes[:, None].long())
    return logits.amax(1, keepdim=True) - chosen


def classes_of(output: Tensor, described: Description) -> Tensor:
    """The classes of what a file gives."""
    if described.output == "classes":
        return output
    threshold = 0.0 if described.output == "logits" else 0.5
    return output[:, 0] > threshold if described.num_classes == 1 else output.argmax(1)
