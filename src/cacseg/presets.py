"""The paper and the authors' released code are not the same method; here is each difference, by name.

"tuned", the default, is ours, as the study in docs/results.md found it better: the released code, begun where the plain
classifier points, with each feature at one place, the middle of its cell, in every loss, and with a loss for the
overlap that mIoU scores. "centred" is the same without that loss.

A preset only fills in arguments that the caller left out. `classifier` arguments belong to
`ContextAwareClassifier`, `loss` arguments to `ContextLoss`; both classes take every one of them by itself.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

from cacseg._checks import check_choice
from cacseg.designs import DesignName
from cacseg.functional.cross_entropy import PixelAverage
from cacseg.functional.distillation import ClassAverage
from cacseg.functional.labels import LabelSampling
from cacseg.functional.prototypes import Scope

PresetName = Literal["tuned", "centred", "released", "paper"]
DEFAULT: PresetName = "tuned"


class Preset(NamedTuple):
    """Where they differ; everything else is common to all."""

    oracle_scope: Scope  # classifier: oracle prototypes of each image, or pooled over the batch on a device
    distillation_scope: Scope  # loss: class averages within each image, or over the pixels of the batch together
    class_average: ClassAverage  # loss: over the classes present, or over all n
    soft_target_weight: float  # loss: the target is this much oracle, the rest one-hot label
    align_corners: bool  # loss: upsampling of the plain and the oracle logits
    context_align_corners: bool  # loss: upsampling of the context logits
    context_average: PixelAverage  # loss: context cross-entropy over labelled pixels, or all pixels
    design: DesignName = "project_concat"  # classifier: of the context and the oracle classifier
    zero_start: bool = False  # classifier: projectors start by giving 0
    label_sampling: LabelSampling = "nearest"  # classifier: which pixel of its cell gives a feature its label
    overlap_weight: float = 0.0  # loss: of the overlap of the context probabilities with the labels


PRESETS: dict[str, Preset] = {
    "paper": Preset(
        oracle_scope="image",
        distillation_scope="image",
        class_average="present",
        soft_target_weight=1.0,
        align_corners=False,
        context_align_corners=False,
        context_average="labelled",
    ),
    "released": Preset(
        oracle_scope="batch",
        distillation_scope="batch",
        class_average="present",
        soft_target_weight=0.5,
        align_corners=True,
        context_align_corners=False,
        context_average="all",
    ),
}
PRESETS["centred"] = PRESETS["released"]._replace(
    design="project_concat_residual", zero_start=True, align_corners=False, label_sampling="centred"
)
PRESETS["tuned"] = PRESETS["centred"]._replace(overlap_weight=3.0)


Value = TypeVar("Value")


def fill(given: Value | None, default: Value) -> Value:
    """What the caller gave, or the default where that is None."""
    return default if given is None else given


def get_preset(name: str) -> Preset:
    """The preset of that name; a wrong name gets the list of right ones."""
    check_choice("preset", name, tuple(PRESETS))
    return PRESETS[name]
