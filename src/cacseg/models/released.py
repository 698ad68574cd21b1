"""Checkpoints of the reference, mmsegmentation or the authors' fork of it, in the names of our models.

    model, report = import_checkpoint("iter_160000.pth", "upernet_swin_tiny")

Names are translated part by part and then held against our model: nothing is dropped without being named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cacseg._checks import check_choice
from cacseg.models.files import read_tensors
from cacseg.models.model import SegmentationModel
from cacseg.models.zoo import MODELS, create_model


class ConversionReport(NamedTuple):
    """A converted checkpoint, and what became of every name on both sides."""

    state: dict[str, Tensor]  # by our names
    used: dict[str, str]  # reference name -> ours
    unused: dict[str, str]  # reference name -> why it has no place here
    missing: list[str]  # our names that the checkpoint has nothing for
    num_classes: int
    classifier: Literal["context", "plain"]


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
    file = read_tensors(path)
    report = convert_state_dict(file.tensors, model_name)
    if report.missing:
        unused = [f"{name} ({reason})" for name, reason in report.unused.items()]
        raise ValueError(
            f"{path} does not hold a whole {model_name}: {len(report.missing)} tensors are missing "
            f"({', '.join(report.missing[:3])}, ...) and {len(unused)} have no place ({', '.join(unused[:3])}, ...). "
            "Choose the model that the checkpoint belongs to."
        )
    model = create_model(model_name, report.num_classes, report.classifier)
    model.load_state_dict(report.state)
    names, palette = (json.loads(file.metadata.get(key, "null")) for key in ("class_names", "palette"))
    if names is not None and len(names) == report.num_classes:
        model.class_names, model.palette = names, palette
    return model.eval(), report


def convert_state_dict(state: Mapping[str, Tensor], model_name: str) -> ConversionReport:
    """A checkpoint of the reference in the names of `create_model(model_name)`.

    The number of classes, and whether the classifier is context-aware, are read from the checkpoint. The channels
    of Swin's patch merging are put in timm's order.
    """
    check_choice("model_name", model_name, tuple(MODELS))
    architecture = MODELS[model_name]
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    prefix = "decode_head.1." if architecture.head == "ocrnet" else "decode_head."
    if f"{prefix}conv_seg.weight" not in state:
        raise ValueError(
            f"a checkpoint of {model_name!r} must hold {prefix}conv_seg.weight; got {len(state)} other names, "
            f"{', '.join(list(state)[:3])}, ... Choose the model that the checkpoint belongs to."
        )
    num_classes = state[f"{prefix}conv_seg.weight"].shape[0]
    classifier: Literal["context", "plain"] = "context" if f"{prefix}proj.0.weight" in state else "plain"
    with torch.device("meta"):
        ours = create_model(model_name, num_classes, classifier).state_dict()

    converted: dict[str, Tensor] = {}
    used: dict[str, str] = {}
    unused: dict[str, str] = {}
    for name, tensor in state.items():
        target = our_name(name, architecture.head, architecture.backbone)
        if name.endswith("relative_position_index"):
            unused[name] = "computed from the window, not stored"
        elif target not in ours:
            unused[name] = f"{model_name} has no {target}"
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
    return ConversionReport(converted, used, unused, missing, num_classes, classifier)


def our_name(name: str, head: str, backbone: str) -> str:
    """Our name for a parameter or buffer of the reference; one that is no part of the model keeps its own."""
    part, _, rest = name.partition(".")
    if part == "backbone":
        return f"backbone.net.{_backbone_name(rest, backbone)}"
    if name.startswith("auxiliary_head."):
        return _auxiliary_name(rest)
    if name.startswith("decode_head.0.") and head == "ocrnet":
        return _auxiliary_name(rest.removeprefix("0."))
    if part == "decode_head":
        return _head_name(rest.removeprefix("1.") if head == "ocrnet" else rest, {**_CLASSIFIER, **_HEADS[head]})
    return name


def reorder_merged_patches(tensor: Tensor) -> Tensor:
    """The last dimension of a patch merging layer, four neighbours of d channels each, in timm's order.

    The reference unfolds: channel, row, column, the last changing fastest. timm has column, row, channel.
    """
    return tensor.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)


def _auxiliary_name(rest: str) -> str:
    if rest.startswith("conv_seg."):
        return "auxiliary." + rest.replace("conv_seg.", "classifier.")
    return "auxiliary." + _head_name(rest, _HEADS["fcn"])


def _head_name(rest: str, layers: Mapping[str, str]) -> str:
    for theirs, ours in layers.items():
        if rest.startswith(theirs):
            rest = ours + rest.removeprefix(theirs)
            break
    if rest.startswith("classifier."):
        return rest
    rest = (
        rest.replace(".bn.", ".norm.").replace("depthwise_conv.", "depthwise.").replace("pointwise_conv.", "pointwise.")
    )
    return f"head.{rest}"


def _backbone_name(rest: str, backbone: str) -> str:
    if backbone.startswith("mobilenetv2"):
        return _mobilenetv2_name(rest)
    if backbone.startswith("resnet"):
        return _resnet_name(rest)
    if backbone.startswith("swin"):
        return _swin_name(rest)
    return rest  # HRNet has the same names in timm


def _mobilenetv2_name(rest: str) -> str:
    if match := re.fullmatch(r"conv1\.(conv|bn)\.(.+)", rest):
        return f"{'conv_stem' if match[1] == 'conv' else 'bn1'}.{match[2]}"
    if match := re.fullmatch(r"layer(\d)\.(\d)\.conv\.(\d)\.(conv|bn)\.(.+)", rest):
        stage, block, position = int(match[1]) - 1, match[2], int(match[3])
        # The first stage does not expand, so its depthwise convolution comes first.
        convs = ("conv_dw", "conv_pw") if stage == 0 else ("conv_pw", "conv_dw", "conv_pwl")
        layer = convs[position] if match[4] == "conv" else f"bn{position + 1}"
        return f"blocks.{stage}.{block}.{layer}.{match[5]}"
    return rest


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
