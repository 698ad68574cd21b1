"""The paper and the authors' released code are not the same method; here is each difference, by name.

"tuned", the default, is ours: the released code with zero-initialised residual projectors, labels and logits at the
same place of the image (pixel centres), and a soft-Jaccard loss. docs/results.md says what it gives.

A preset fills in arguments that the caller left None; its fields bear the names of these arguments.
"""

from __future__ import annotations

from math import inf
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from cacseg._checks import check_choice, check_flags, check_number
from cacseg.designs import DesignName
from cacseg.functional.cross_entropy import PixelAverage
from cacseg.functional.labels import LabelSampling
from cacseg.functional.prototypes import Scope

PresetName = Literal["tuned", "released", "paper"]
DEFAULT: PresetName = "tuned"
CLASSIFIER_FIELDS = (
    "oracle_scope",
    "label_sampling",
    "context_design",
    "oracle_design",
    "zero_start",
    "prototype_epsilon",
)
MODEL_FIELDS = ("auxiliary_average",)  # all others are the loss's


class Preset(NamedTuple):
    """The values of the paper; the released code and ours replace some of them."""

    # Of ContextAwareClassifier:
    oracle_scope: Scope = "image"  # oracle prototypes of each image, or pooled over the batch on a device
    label_sampling: LabelSampling = "nearest"  # which pixel of its cell gives a feature its label
    context_design: DesignName = "project_concat"
    oracle_design: DesignName = "project_concat"
    zero_start: bool = False  # projectors start by giving 0
    prototype_epsilon: float = 0.0  # added to what context prototypes are divided by
    # Of ContextLoss:
    distillation_scope: Scope = "image"  # class averages within each image, or over the pixels of the batch together
    soft_target_weight: float = 1.0  # the target is this much oracle, the rest one-hot label
    align_corners: bool = False  # upsampling of the plain and the oracle logits
    context_align_corners: bool = False  # upsampling of the context logits
    context_average: PixelAverage = "labelled"  # context cross-entropy over labelled pixels, or all pixels
    overlap_weight: float = 0.0  # of the soft-Jaccard loss of the context logits
    # Of the models:
    auxiliary_average: PixelAverage = "labelled"  # auxiliary cross-entropies over labelled pixels, or all pixels


_RELEASED = Preset(
    oracle_scope="batch",
    prototype_epsilon=1e-12,
    distillation_scope="batch",
    soft_target_weight=0.5,
    align_corners=True,
    context_average="all",
    auxiliary_average="all",
)
PRESETS: dict[str, Preset] = {
    "tuned": _RELEASED._replace(
        label_sampling="centred",
        context_design="project_concat_residual",
        oracle_design="project_concat_residual",
        zero_start=True,
        prototype_epsilon=0.0,
        align_corners=False,
        overlap_weight=3.0,
        auxiliary_average="labelled",
    ),
    "released": _RELEASED,
    "paper": Preset(),
}
_KINDS = get_type_hints(Preset)
Value = TypeVar("Value")


def or_default(given: Value | None, default: Value) -> Value:
    """The given value, or the default if it is None."""
    return default if given is None else given


def fill_preset(name: str, **given: Any) -> Preset:
    """The preset of that name, with the given values that are not None, checked field by field."""
    check_choice("preset", name, tuple(PRESETS))
    given = {field: value for field, value in given.items() if value is not None}
    for field, value in given.items():
        if choices := get_args(_KINDS[field]):
            check_choice(field, value, choices)
        elif _KINDS[field] is bool:
            check_flags(**{field: value})
        else:
            share = field == "soft_target_weight"
            check_number(field, value, 0.0, 1.0 if share else inf, "[]" if share else "[)", scalars=True)
    return PRESETS[name]._replace(**given)
