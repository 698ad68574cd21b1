"""Checks of what callers hand in: each error says what must hold, what arrived and what to do."""

from __future__ import annotations

import difflib
import numbers
import operator
from collections.abc import Iterable, Sequence
from math import inf, isfinite

import torch
from torch import Tensor

LARGEST_PADDING = 31  # pixels: most networks want sides that are a multiple of 32


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """A named option must be one of a short, visible list."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}; got {value!r}.")


def check_names(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Arguments by name must be the owner's; a mistyped one gets the nearest."""
    names = sorted(known)
    for name in given:
        if name not in names:
            hint = did_you_mean(name, names, 1) or f"There are {', '.join(names)}."
            raise TypeError(f"{owner} has no argument {name!r}. {hint}")


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """The nearest of the known names, else those that contain it, as a question; "" where none is near."""
    known = list(known)
    return ask(difflib.get_close_matches(name, known, n=most) or [one for one in known if name in one][:most])


def ask(names: Iterable[str]) -> str:
    """Which of these names was meant; "" without names."""
    listed = " or ".join(map(repr, names))
    return f"Did you mean {listed}?" if listed else ""


def first_few(values: Sequence[object], most: int = 5) -> str:
    """For an error: "3, 4, 5, 6, 7, ..."."""
    return ", ".join(map(str, values[:most])) + (", ..." if len(values) > most else "")


def check_flags(**flags: bool) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False; got {value!r}.")


def check_number(
    name: str, value: float, low: float = 0.0, high: float = inf, ends: str = "[)", *, scalars: bool = False
) -> None:
    """A number from `low` to `high`; `ends` says as in mathematics which of them belong to it.

    With `scalars` those of numpy and torch are numbers too; True and False never are.
    """
    words = f"in {ends[0]}{low:g}, {high:g}{ends[1]}"
    if not is_number(value, scalars=scalars):
        raise TypeError(f"{name} must be a number{f' {words}' if high < inf else ''}; got {value!r}.")
    above = low < value if ends[0] == "(" else low <= value
    below = value < high if ends[1] == ")" else value <= high
    if not (above and below):
        if low == 0.0 and high == inf:
            words = "positive and finite" if ends[0] == "(" else "finite and not negative"
        raise ValueError(f"{name} must be {words}; got {value}.")


def check_integer(name: str, value: float, *, scalars: bool = False) -> None:
    """A whole number by its type: 4.0 is none."""
    whole = not value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, numbers.Integral)
    if not whole or not is_number(value, scalars=scalars):
        raise TypeError(f"{name} must be an integer; got {value!r}.")


def check_numbers(name: str, values: Sequence[float]) -> None:
    """A list of numbers, or an array or a tensor of one dimension."""
    try:
        fits = not isinstance(values, str) and all(is_number(value, scalars=True) for value in values)
    except TypeError:  # nothing to go through
        fits = False
    if not fits:
        raise TypeError(f"{name} must be a list of numbers; got {values!r}.")


def check_normalisation(
    mean: Sequence[float], std: Sequence[float], channels: int, *, are_bands: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std as Python's numbers, one for each channel: of pixels in [0, 1], or of bands in their own units."""
    check_numbers("mean", mean)
    check_numbers("std", std)
    means, stds = tuple(map(float, mean)), tuple(map(float, std))
    if len(means) != channels or len(stds) != channels:
        other = f" Of images that are not red, green and blue pass bands={len(means)}, to create_model for its models."
        raise ValueError(
            f"mean and std must be one number for each of {channels} {'bands' if are_bands else 'channels'}; got "
            f"{len(means)} and {len(stds)}.{'' if are_bands else other}"
        )
    if not all(map(isfinite, (*means, *stds))) or min(stds) <= 0.0:
        raise ValueError(f"mean must be finite, and std finite and positive; got mean {means} and std {stds}.")
    if not are_bands and max(*means, *stds) > 1.0:
        raise ValueError(
            f"mean and std must be of pixels in [0, 1]; got mean {means} and std {stds}, as of pixels in 0..255. "
            "Divide them by 255."
        )
    return means, stds


def is_number(value: object, *, scalars: bool = False) -> bool:
    """Python's int or float but no bool; with `scalars` also a scalar of numpy or a tensor without dimensions."""
    if isinstance(value, bool):
        return False
    if scalars and isinstance(value, Tensor):
        return value.ndim == 0 and value.dtype != torch.bool and not value.is_complex()
    # A tuple: torch 2.8 does not trace `int | float`.
    return isinstance(value, (int, float)) or (scalars and isinstance(value, numbers.Real))


def check_features(features: Tensor, channels: int | None = None, *, packed: bool = False) -> None:
    """Features are floating point, `[b, d, *spatial]` (packed: `[N, d]`), not empty, with d channels."""
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a torch.Tensor; got {type(features).__name__}.")
    if not features.is_floating_point():
        raise TypeError(f"features must be floating point; got {features.dtype}. Convert with .float().")
    shape = tuple(features.shape)
    if packed and features.ndim != 2:
        raise ValueError(f"packed features (offsets given) must be [N, d]; got shape {shape}.")
    if not packed and not 3 <= features.ndim <= 5:
        raise ValueError(
            f"features must be [b, d, *spatial] with one to three spatial dimensions; got shape {shape}. "
            "A packed batch [N, d] also needs offsets."
        )
    if features.numel() == 0:
        raise ValueError(f"features must not be empty; got shape {shape}. Skip batches without images.")
    if channels is not None and features.shape[1] != channels:
        raise ValueError(
            f"features must have {channels} channels in dimension 1; got shape {shape} with {features.shape[1]}."
        )


def check_logits(logits: Tensor, *others: Tensor) -> None:
    """Logits are floating point, `[b, n, *spatial]` (packed: `[N, n]`); others that go with them have their shape."""
    for one in (logits, *others):
        if not isinstance(one, Tensor):
            raise TypeError(f"logits must be a torch.Tensor; got {type(one).__name__}.")
        if not one.is_floating_point():
            raise TypeError(f"logits must be floating point; got {one.dtype}. Convert with .float().")
        if one.ndim < 2 or one.numel() == 0:
            raise ValueError(f"logits must be [b, n, *spatial] and not empty; got shape {tuple(one.shape)}.")
        if one.shape != logits.shape:
            raise ValueError(
                f"logits that are compared must have one shape; got {tuple(logits.shape)} and {tuple(one.shape)}."
            )


def check_class_weights(weight: Tensor, num_classes: int) -> None:
    """One weight for each class."""
    if weight.ndim != 1 or weight.shape[0] != num_classes:
        raise ValueError(
            f"class weights must be one number for each of the {num_classes} classes; got shape {tuple(weight.shape)}."
        )


def check_label_smoothing(label_smoothing: float) -> None:
    """A share of the target."""
    check_number("label_smoothing", label_smoothing, 0.0, 1.0, "[]", scalars=True)


def read_class_weights(weights: Sequence[float] | Tensor) -> Tensor:
    """As a tensor of numbers that are finite and not negative, one for each class."""
    read = torch.as_tensor(weights, dtype=torch.get_default_dtype())
    if read.ndim != 1:
        raise ValueError(f"class_weights must be one number for each class; got shape {tuple(read.shape)}.")
    if not read.is_meta and not (read.isfinite() & (read >= 0)).all():
        raise ValueError(f"class_weights must be finite and not negative; got {read.tolist()}.")
    return read


def check_image_classifiers(classifier: Tensor, images: int) -> None:
    """Classifiers are `[images, n, d]`, or one for all of them, `[1, n, d]`; compilers would take 1 for a condition."""
    fits = torch.compiler.is_compiling() or classifier.shape[0] in (1, images)
    if classifier.ndim != 3 or not fits:
        raise ValueError(
            f"classifier must be [{images}, n, d], one for each image, or [1, n, d]; got shape "
            f"{tuple(classifier.shape)}."
        )


def check_labels(
    labels: Tensor,
    scores: Tensor,
    num_classes: int,
    ignore_index: int,
    *,
    packed: bool = False,
    in_proportion: bool = False,
    read_values: bool = True,
) -> None:
    """Labels are integers, `[b, *spatial]` at any size (packed: `[N]`), in [0, n) or ignored.

    `scores` are the features or logits that the labels belong to. The range is only looked at where that costs no
    synchronisation (CPU, outside of compiled code); elsewhere a label outside [0, n) counts as ignored.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a torch.Tensor of integers; got {type(labels).__name__}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels must be integers (class indices); got {labels.dtype}. Convert with .long().")
    shape, scores_shape = tuple(labels.shape), tuple(scores.shape)
    if packed and shape != scores_shape[:1]:
        raise ValueError(f"packed labels must be [N] with N = {scores_shape[0]}; got shape {shape}.")
    if not packed:
        if labels.ndim != scores.ndim - 1:
            hint = ""
            if labels.ndim == scores.ndim:
                one_hot = labels.shape[1] > 1
                hint = " Of one-hot labels: labels.argmax(1)." if one_hot else " Drop the channel: labels[:, 0]."
            raise ValueError(
                f"labels must be [b, *spatial] with {scores.ndim - 1} dimensions for scores or features of "
                f"shape {scores_shape}; got shape {shape}.{hint}"
            )
        if labels.shape[0] != scores.shape[0]:
            raise ValueError(
                f"labels and features or logits must have the same batch size; got {labels.shape[0]} label "
                f"maps (shape {shape}) for a batch of {scores.shape[0]} (shape {scores_shape})."
            )
        if labels.numel() == 0:
            raise ValueError(f"labels must not be empty; got shape {shape}.")
        if in_proportion:
            check_proportions("labels", labels.shape[1:], "features", scores.shape[2:], padding=LARGEST_PADDING)
    if labels.device != scores.device:
        both = f"labels on {labels.device}, the other on {scores.device}"
        raise ValueError(f"labels and features or logits must be on one device; got {both}.")
    if read_values and labels.device.type == "cpu" and not torch.compiler.is_compiling():
        check_label_range(labels, num_classes, ignore_index)


def check_proportions(name: str, size: Sequence[int], other: str, map_size: Sequence[int], *, padding: int = 0) -> None:
    """One stride, and rounding, must explain the sizes of two maps of one image: transposed labels are found here."""
    if not have_one_stride(size, map_size, padding):
        transposed = size[0] * map_size[0] == size[1] * map_size[1]
        remedy = "They fit transposed: labels.mT." if transposed else "Resize labels to the size of their images."
        raise ValueError(
            f"{name} must have the proportions of {other}, up to rounding to a stride; got {name} {size[0]}x{size[1]} "
            f"and {other} {map_size[0]}x{map_size[1]} (rows x columns). {remedy}"
        )


def have_one_stride(size: Sequence[int], map_size: Sequence[int], padding: int = 0) -> bool:
    """H rows are H / stride of them at another stride, up to one more or less; or `padding` pixels more or less were
    seen, as by networks that pad images to a multiple or cut them into patches.

    2-D maps alone are looked at, outside of compiled code, where it would be one more guard on sizes.
    """
    if len(size) != 2 or torch.compiler.is_compiling() or tuple(size) == tuple(map_size):
        return True
    pairs = list(zip(size, map_size, strict=True))
    least = max(min(big / (small + 1), (big - padding) / small) for big, small in pairs)
    most = min(max(big / max(small - 1, 1e-9), (big + padding) / small) for big, small in pairs)
    return least <= most


def check_label_range(labels: Tensor, num_classes: int, ignore_index: int) -> None:
    """Every label is in [0, n) or the ignore index. Reads the values, so it synchronises a GPU."""
    labels = labels.long()  # n itself may not fit into a narrow type
    wrong = ((labels < 0) | (labels >= num_classes)) & (labels != ignore_index)
    if wrong.any():
        raise ValueError(
            f"labels must be in [0, {num_classes}) or the ignore index {ignore_index}; got the values "
            f"{first_few(labels[wrong].unique().tolist())} in {int(wrong.sum())} of {labels.numel()} places. "
            "Remap them, or set num_classes or ignore_index to fit the data."
        )


def check_offsets(offsets: Tensor, features: Tensor) -> None:
    """Offsets of a packed batch are integers `[b + 1]`: 0, the running ends of the images, N."""
    if not isinstance(offsets, Tensor) or offsets.is_floating_point() or offsets.dtype == torch.bool:
        arrived = offsets.dtype if isinstance(offsets, Tensor) else type(offsets).__name__
        raise TypeError(f"offsets must be a torch.Tensor of integers; got {arrived}.")
    if offsets.ndim != 1 or offsets.shape[0] < 2:
        raise ValueError(
            "offsets must be [b + 1] for b >= 1 images: 0, then where each image ends; got shape "
            f"{tuple(offsets.shape)}."
        )
    if offsets.device.type == "cpu" and not torch.compiler.is_compiling():
        first, last = int(offsets[0]), int(offsets[-1])
        if first != 0 or last != features.shape[0] or bool((offsets.diff() < 0).any()):
            raise ValueError(
                f"offsets must start at 0, never fall and end at N = {features.shape[0]}; got "
                f"{offsets.tolist() if offsets.numel() <= 10 else f'{first} ... {last}'}. "
                "Running ends without the leading 0 become offsets by F.pad(ends, (1, 0))."
            )


def check_sizes(in_channels: int, num_classes: int) -> None:
    """Of a context-aware classifier."""
    check_integer("in_channels", in_channels)
    check_integer("num_classes", num_classes)
    if in_channels < 2:
        raise ValueError(f"in_channels must be at least 2 (the projectors halve it); got {in_channels}.")
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1 (binary segmentation); got {num_classes}.")


def check_dilations(dilations: Sequence[int]) -> list[int]:
    """As Python's integers."""
    try:
        values = [operator.index(one) for one in dilations if not isinstance(one, bool)]
    except TypeError:  # no sequence, or not of whole numbers
        values = []
    if not values or min(values) < 1 or len(values) < len(dilations):
        raise ValueError(
            "dilations must be a sequence of whole numbers of at least 1, one for each branch; got "
            f"{dilations!r}. Pass e.g. (6, 12, 18)."
        )
    return values
