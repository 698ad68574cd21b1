"""Checkpoints of the reference, mmsegmentation or the authors' fork of it, in the names of our models.

    model, report = import_checkpoint("iter_160000.pth", "upernet_swin_tiny")

Names are translated part by part and then held against our model: nothing is dropped without being named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cacseg._checks import check_choice
from cacseg.models.description import check_classes
from cacseg.models.files import read_tensors
from cacseg.models.model import SegmentationModel
from cacseg.models.zoo import MODELS, create_model, find_architecture


class ConversionReport(NamedTuple):
    """A converted checkpoint, and what became of every name on both sides."""

    state: dict[str, Tensor]  # by our names
    used: dict[str, str]  # reference name -> ours
    unused: dict[str, str]  # reference name -> why it has no place here
    missing: list[str]  # our names that the checkpoint has nothing for
    arguments: dict[str, Any]  # of create_model, as the checkpoint has it
    notes: list[str]  # what else a reader should know


# Our name of each layer of a head; "" is the head itself, "classifier." what reads its features.
_CLASSIFIER = {
    "conv_seg.": "classifier.",
    "proj.": "classifier.context_projector.",
    "apd_proj.": "classifier.oracle_projector.",
}
_HEADS = {
    "fcn": {"convs.": "convs.", "conv_cat.": "fuse."},
    "deeplabv3plus": {
        "image_pool.1.": "branches.0.project.",
        "aspp_modules.0.": "branches.1.",
        "aspp_modules.1.": "branches.2.",
        "aspp_modules.2.": "branches.3.",
        "aspp_modules.3.": "branches.4.",
        "bottleneck.": "bottleneck.",
        "c1_bottleneck.": "low_level.",
        "sep_bottleneck.": "refine.",
    },
    "upernet": {
        "psp_modules.0.1.": "pools.0.project.",
        "psp_modules.1.1.": "pools.1.project.",
        "psp_modules.2.1.": "pools.2.project.",
        "psp_modules.3.1.": "pools.3.project.",
        "bottleneck.": "bottleneck.",
        "lateral_convs.": "laterals.",
        "fpn_convs.": "smooth.",
        "fpn_bottleneck.": "fuse.",
    },
    "ocrnet": {
        "bottleneck.": "reduce.",
        "object_context_block.query_project.": "query.",
        "object_context_block.key_project.": "key.",
        "object_context_block.value_project.": "value.",
        "object_context_block.out_project.": "expand.",
        "object_context_block.bottleneck.": "fuse.",
    },
}


def import_checkpoint(path: str | Path, model_name: str) -> tuple[SegmentationModel, ConversionReport]:
    """The model of a checkpoint file, which must hold every tensor that the model needs.

    Class names and palette come along where the checkpoint has them.
    """
    _check_name(model_name)
    file = read_tensors(path)
    report = convert_state_dict(file.tensors, model_name)
    report.unused.update(dict.fromkeys(file.skipped, "not a tensor"))
    if report.missing:
        unused = [f"{name} ({reason})" for name, reason in report.unused.items()]
        raise ValueError(
            f"{path} does not hold a whole {model_name}: {len(report.missing)} tensors are missing "
            f"({_listed(report.missing)}) and {len(unused)} have no place ({_listed(unused)}). "
            "Is it a checkpoint of another model?"
        )
    model = create_model(**report.arguments)
    model.load_state_dict(report.state)
    _check_position_index(model, file.tensors)
    names, palette = (json.loads(file.metadata.get(key, "null")) for key in ("class_names", "palette"))
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
    _check_name(model_name)
    architecture = MODELS[model_name]
    stripped = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    if len(stripped) != len(state):
        raise ValueError("a checkpoint holds some names both with and without 'module.'. Which ones are meant?")
    prefix = "decode_head.1." if architecture.head == "ocrnet" else "decode_head."
    weight = stripped.get(f"{prefix}conv_seg.weight")
    if weight is None or weight.ndim != 4:
        raise ValueError(
            f"a checkpoint of {model_name!r} must hold {prefix}conv_seg.weight, [n, d, 1, 1]; got {len(stripped)} "
            f"other names: {_listed(list(stripped))}. Choose the model that the checkpoint belongs to."
        )
    arguments, notes = _read_arguments(stripped, model_name, prefix, weight.shape[0])
    with torch.device("meta"):
        ours = create_model(**arguments).state_dict()

    converted: dict[str, Tensor] = {}
    used: dict[str, str] = {}
    unused: dict[str, str] = {}
    for name, tensor in stripped.items():
        target = our_name(name, architecture.head, architecture.backbone)
        if name.endswith("relative_position_index"):
            unused[name] = "follows from the window"
        elif target is None or target not in ours:
            unused[name] = f"{model_name} has no such tensor"
        elif tensor.shape != ours[target].shape:
            unused[name] = f"of shape {tuple(tensor.shape)} where {target} has {tuple(ours[target].shape)}"
        else:
            merges = re.match(r"backbone\.stages\.\d\.downsample\.", name)  # Swin alone has such names
            converted[target] = reorder_merged_patches(tensor) if merges else tensor
            used[name] = target
    for target in ours:  # a counter that nothing reads, and that old checkpoints leave out
        if target.endswith("num_batches_tracked") and target not in converted:
            converted[target] = torch.zeros((), dtype=torch.long)
    missing = [target for target in ours if target not in converted]
    return ConversionReport(converted, used, unused, missing, arguments, notes)


def _check_name(model_name: str) -> None:
    if model_name not in MODELS:
        find_architecture(model_name, None)  # suggests the nearest names
    check_choice("model", model_name, tuple(MODELS))


def _read_arguments(
    state: Mapping[str, Tensor], model_name: str, prefix: str, num_classes: int
) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the model that a checkpoint holds, and what it lacks of one in training."""
    context = f"{prefix}proj.0.weight" in state
    arguments: dict[str, Any] = {
        "name": model_name,
        "num_classes": num_classes,
        "classifier": "context" if context else "plain",
    }
    notes = []
    if context:
        arguments["preset"] = "released"
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


def _listed(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") or "none"


def our_name(name: str, head: str, backbone: str) -> str | None:
    """Our name for a parameter or buffer of the reference; None for one that the reference does not have."""
    part, _, rest = name.partition(".")
    if part == "backbone":
        ours = _backbone_name(rest, backbone)
        return None if ours is None else f"backbone.net.{ours}"
    if name.startswith("auxiliary_head."):
        return _auxiliary_name(rest)
    if name.startswith("decode_head.0.") and head == "ocrnet":
        return _auxiliary_name(rest.removeprefix("0."))
    if part == "decode_head":
        return _head_name(rest.removeprefix("1.") if head == "ocrnet" else rest, {**_CLASSIFIER, **_HEADS[head]})
    return None


def reorder_merged_patches(tensor: Tensor) -> Tensor:
    """The last dimension of a patch merging layer, four neighbours of d channels each, in timm's order.

    The reference unfolds: channel, row, column, the last changing fastest. timm has column, row, channel.
    """
    return tensor.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)


def _auxiliary_name(rest: str) -> str | None:
    ours = _head_name(rest, {"conv_seg.": "classifier.", **_HEADS["fcn"]})
    return None if ours is None else f"auxiliary.{ours}"


def _head_name(rest: str, layers: Mapping[str, str]) -> str | None:
    for theirs, ours in layers.items():
        if rest.startswith(theirs):
            rest = ours + rest.removeprefix(theirs)
            break
    else:
        return None
    if rest.startswith("classifier."):
        return rest
    rest = (
        rest.replace(".bn.", ".norm.").replace("depthwise_conv.", "depthwise.").replace("pointwise_conv.", "pointwise.")
    )
    return f"head.{rest}"


def _backbone_name(rest: str, backbone: str) -> str | None:
    if backbone.startswith("mobilenetv2"):
        return _mobilenetv2_name(rest)
    if backbone.startswith("resnet"):
        return _resnet_name(rest)
    if backbone.startswith("swin"):
        return _swin_name(rest)
    return rest  # HRNet has the same names in timm


def _mobilenetv2_name(rest: str) -> str | None:
    if match := re.fullmatch(r"conv1\.(conv|bn)\.(.+)", rest):
        return f"{'conv_stem' if match[1] == 'conv' else 'bn1'}.{match[2]}"
    if match := re.fullmatch(r"layer(\d)\.(\d)\.conv\.(\d)\.(conv|bn)\.(.+)", rest):
        stage, block, position = int(match[1]) - 1, match[2], int(match[3])
        # The first stage does not expand, so its depthwise convolution comes first.
        convs = ("conv_dw", "conv_pw") if stage == 0 else ("conv_pw", "conv_dw", "conv_pwl")
        layer = convs[position] if match[4] == "conv" else f"bn{position + 1}"
        return f"blocks.{stage}.{block}.{layer}.{match[5]}"
    return None


def _resnet_name(rest: str) -> str:
    if match := re.fullmatch(r"stem\.(\d)\.(.+)", rest):
        return f"bn1.{match[2]}" if match[1] == "7" else f"conv1.{match[1]}.{match[2]}"
    return rest


def _swin_name(rest: str) -> str:
    if match := re.fullmatch(r"norm(\d)\.(.+)", rest):
        return f"norms.{match[1]}.{match[2]}"
    if match := re.fullmatch(r"stages\.(\d)\.downsample\.(.+)", rest):  # timm merges where the next stage begins
        return f"layers.{int(match[1]) + 1}.downsample.{match[2]}"
    rest = rest.replace("patch_embed.projection.", "patch_embed.proj.").replace("stages.", "layers.")
    return rest.replace(".w_msa.", ".").replace(".ffn.layers.0.0.", ".mlp.fc1.").replace(".ffn.layers.1.", ".mlp.fc2.")
