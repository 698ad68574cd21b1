"""Checkpoints of the reference, mmsegmentation or the authors' fork of it, in the names of our models.

    model, report = import_checkpoint("iter_160000.pth", "upernet_swin_tiny")

Every tensor of a checkpoint has a place in the model or is known not to need one; else the import is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cacseg._checks import check_choice
from cacseg._tensors import check_finite
from cacseg._text import parse_json
from cacseg.models.backbones import has_choice_of_blocks
from cacseg.models.files import check_classes, list_names, read_tensors
from cacseg.models.model import SegmentationModel
from cacseg.models.released_names import looks_like, our_name, reorder_merged_patches
from cacseg.models.zoo import MODELS, create_model, find_architecture

HALF_TYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}  # fewer digits first, which float16 has too


class ConversionReport(NamedTuple):
    """A converted checkpoint, and what became of every name on both sides."""

    state: dict[str, Tensor]  # by our names
    used: dict[str, str]  # reference name -> ours
    unused: dict[str, str]  # reference name -> why the model does not need it
    unplaced: dict[str, str]  # reference name -> why it does not fit: the checkpoint is of another model
    missing: list[str]  # our names that the checkpoint has nothing for
    arguments: dict[str, Any]  # of create_model, as the checkpoint has it
    notes: list[str]  # what else a reader should know

    @property
    def misfits(self) -> int:
        return len(self.missing) + len(self.unplaced)


def import_checkpoint(path: str | Path, model_name: str) -> tuple[SegmentationModel, ConversionReport]:
    """The model of a checkpoint file, which must hold every tensor that the model needs, and none of another model.

    Class names and palette come along where the checkpoint has them.
    """
    file = read_tensors(path)
    report = convert_state_dict(file.tensors, model_name)
    report.unused.update(dict.fromkeys(file.skipped, "not a tensor"))
    if report.misfits:
        missing, unplaced = report.missing, [f"{name} ({reason})" for name, reason in report.unplaced.items()]
        raise ValueError(
            f"{path} does not fit {model_name}: {len(unplaced)} of its tensors have no place in the model "
            f"({list_names(unplaced)}), and {len(missing)} of the model are not in it ({list_names(missing)}). "
            f"{_suggest_model(file.tensors, model_name, report.misfits)}"
        )
    check_finite(((name, report.state[ours]) for name, ours in report.used.items()), path)
    model = create_model(**report.arguments)
    model.load_state_dict(report.state)
    _check_position_index(model, file.tensors)
    rounded = describe_rounding(file.tensors.values())
    if rounded is not None:
        report.notes.append(rounded)
    names, palette = (parse_json(file.metadata.get(key, "null")) for key in ("class_names", "palette"))
    try:
        check_classes(names, palette, model.num_classes, str(path))
        model.class_names, model.palette = names, palette
    except (ValueError, TypeError) as error:
        report.notes.append(f"class names and palette were left out: {error}")
    return model.eval(), report


def convert_state_dict(state: Mapping[str, Tensor], model_name: str) -> ConversionReport:
    """A checkpoint of the reference in the names of `create_model(model_name)`.

    The number of classes, whether the classifier is context-aware, and whether the parts that only training reads are
    there (auxiliary head, oracle projector) are read from the checkpoint. The channels of Swin's patch merging are put
    in timm's order.
    """
    if model_name not in MODELS:
        find_architecture(model_name, None)  # suggests the nearest names
    check_choice("model", model_name, tuple(MODELS))
    architecture = MODELS[model_name]
    state = _unwrapped(state)
    prefix = _classifier_prefix(model_name)
    if not _has_classifier(state, model_name):
        raise ValueError(
            f"a checkpoint of {model_name!r} must hold {prefix}conv_seg.weight, [n, d, 1, 1]; got {len(state)} "
            f"other names: {list_names(list(state))}. {_suggest_model(state, model_name, len(state))}"
        )
    arguments, notes = _read_arguments(state, model_name, prefix)
    with torch.device("meta"):
        ours = create_model(**arguments).state_dict()

    converted: dict[str, Tensor] = {}
    used, unused, unplaced = dict[str, str](), dict[str, str](), dict[str, str]()
    for name, tensor in state.items():
        target = our_name(name, architecture.head, architecture.backbone)
        if name.endswith("relative_position_index"):
            unused[name] = "a table that follows from the window"
        elif target in ours and tensor.shape == ours[target].shape:
            merges = re.match(r"backbone\.stages\.\d\.downsample\.", name)  # Swin alone has such names
            converted[target] = reorder_merged_patches(tensor) if merges else tensor
            used[name] = target
        elif name.endswith("num_batches_tracked"):
            unused[name] = "a counter that nothing reads"
        elif target in ours:
            unplaced[name] = f"of shape {tuple(tensor.shape)} where {target} has {tuple(ours[target].shape)}"
        else:
            unplaced[name] = "no such tensor"
    for target in ours:  # old checkpoints leave the counter out
        if target.endswith("num_batches_tracked") and target not in converted:
            converted[target] = torch.zeros((), dtype=torch.long)
    missing = [target for target in ours if target not in converted]
    return ConversionReport(converted, used, unused, unplaced, missing, arguments, notes)


def describe_rounding(tensors: Iterable[Tensor]) -> str | None:
    """A note on values that were rounded to 16 bits, whatever type they are stored in now."""
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    for dtype, name in HALF_TYPES.items():
        stored = sum(tensor.dtype == dtype for tensor in floats)
        if stored:
            return f"{stored} of {len(floats)} tensors are stored in {name}: the model has their rounded values"
    for dtype, name in HALF_TYPES.items():
        if floats and all(torch.equal(tensor, tensor.to(dtype).to(tensor.dtype)) for tensor in floats):
            return f"all values are exact in {name}: the checkpoint was rounded to it, though not stored in it"
    return None


def _unwrapped(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefix of DistributedDataParallel."""
    stripped = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    if len(stripped) != len(state):
        raise ValueError("a checkpoint holds some names both with and without 'module.'. Which ones are meant?")
    return stripped


def _classifier_prefix(model_name: str) -> str:
    return "decode_head.1." if MODELS[model_name].head == "ocrnet" else "decode_head."


def _has_classifier(state: Mapping[str, Tensor], model_name: str) -> bool:
    weight = state.get(f"{_classifier_prefix(model_name)}conv_seg.weight")
    return weight is not None and weight.ndim == 4


def _suggest_model(state: Mapping[str, Tensor], model_name: str, misfits: int) -> str:
    """Which other model a checkpoint fits, or fits better. Builds models, so for errors alone."""
    state = _unwrapped(state)
    nearest = None
    for other, architecture in MODELS.items():
        alike = _has_classifier(state, other) and looks_like(state, architecture.head, architecture.backbone)
        if other == model_name or not alike:
            continue
        found = convert_state_dict(state, other).misfits
        if found == 0:
            return f"It is a checkpoint of {other}."
        if found < misfits:
            nearest, misfits = other, found
    words = f" Nearest: {nearest}, with {misfits} tensors that do not fit." if nearest else ""
    return f"Is it a checkpoint of another model?{words}"


def _read_arguments(state: Mapping[str, Tensor], model_name: str, prefix: str) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the model that a checkpoint holds, and what it lacks of one in training."""
    context = f"{prefix}proj.0.weight" in state
    arguments: dict[str, Any] = {
        "name": model_name,
        "num_classes": state[f"{prefix}conv_seg.weight"].shape[0],
        "classifier": "context" if context else "plain",
        "preset": "released",
    }
    notes = []
    if has_choice_of_blocks(MODELS[model_name].backbone):
        arguments["dilated_blocks"] = "first"
    if MODELS[model_name].head == "deeplabv3plus":
        notes.append("a checkpoint does not state its dilations: they are taken to be 12, 24 and 36, at a stride of 8")
    if MODELS[model_name].head != "ocrnet" and not any(name.startswith("auxiliary_head.") for name in state):
        arguments["auxiliary"] = False
        notes.append("the checkpoint has no auxiliary head: neither has the model")
    if context and not any(name.startswith(f"{prefix}apd_proj.") for name in state):
        arguments["classifier_arguments"] = {"oracle_design": "none"}
        arguments["loss_arguments"] = {"oracle_weight": 0.0, "kl_weight": 0.0}
        notes.append("the checkpoint has no oracle projector: the model predicts, but trains without an oracle")
    return arguments, notes


def _check_position_index(model: SegmentationModel, state: Mapping[str, Tensor]) -> None:
    """Swin's windows look up their biases as ours do: the index that a checkpoint carries says how it was trained."""
    for name, theirs in state.items():
        if match := re.search(r"stages\.(\d)\.blocks\.(\d+)\.attn\.w_msa\.relative_position_index$", name):
            module = f"backbone.net.layers.{match[1]}.blocks.{match[2]}.attn"
            if not torch.equal(theirs, model.get_submodule(module).get_buffer("relative_position_index")):
                raise ValueError(
                    f"{name} is not the usual order of a window's biases: this checkpoint was trained with another, "
                    "and its tables would be misread."
                )
