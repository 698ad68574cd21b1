"""Names of the reference's parameters and buffers (mmsegmentation and the authors' fork of it) in our models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

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
        **{f"aspp_modules.{index}.": f"branches.{index + 1}." for index in range(4)},
        "bottleneck.": "bottleneck.",
        "c1_bottleneck.": "low_level.",
        "sep_bottleneck.": "refine.",
    },
    "upernet": {
        **{f"psp_modules.{index}.1.": f"pools.{index}.project." for index in range(4)},
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

# A name that no backbone of another kind has.
_BACKBONE_MARKS = {
    "mobilenetv2": "backbone.layer1.0.conv.0.conv.weight",
    "resnet": "backbone.layer3.0.conv1.weight",
    "hrnet": "backbone.stage2.0.branches.0.0.conv1.weight",
    "swin": "backbone.patch_embed.projection.weight",
}


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


def looks_like(names: Iterable[str], head: str, backbone: str) -> bool:
    """Whether names of a checkpoint can be those of a model with that head and kind of backbone, of whatever depth."""
    names = set(names)
    mark = next(mark for kind, mark in _BACKBONE_MARKS.items() if backbone.startswith(kind))
    return mark in names and all(our_name(one, head, backbone) for one in names if one.startswith("decode_head."))


def reorder_merged_patches(tensor: Tensor) -> Tensor:
    """The last dimension of a patch merging layer, four neighbours of d channels each, in timm's order.

    The reference unfolds: channel, row, column, the last changing fastest. timm has column, row, channel.
    """
    return tensor.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)


def _auxiliary_name(rest: str) -> str | None:
    ours = _head_name(rest, {"conv_seg.": "classifier.", **_HEADS["fcn"]})
    return None if ours is None else f"auxiliary.{ours}"


def _head_name(rest: str, layers: Mapping[str, str]) -> str | None:
    theirs = next((one for one in layers if rest.startswith(one)), None)
    if theirs is None:
        return None
    ours = layers[theirs] + rest.removeprefix(theirs)
    if ours.startswith("classifier."):
        return ours
    ours = ours.replace("depthwise_conv.", "depthwise.").replace("pointwise_conv.", "pointwise.")
    return f"head.{ours.replace('.bn.', '.norm.')}"


def _backbone_name(rest: str, backbone: str) -> str | None:
    if backbone.startswith("mobilenetv2"):
        return _mobilenetv2_name(rest)
    if backbone.startswith("swin"):
        return _swin_name(rest)
    if match := re.fullmatch(r"stem\.(\d)\.(.+)", rest):  # of ResNets
        return f"bn1.{match[2]}" if match[1] == "7" else f"conv1.{match[1]}.{match[2]}"
    return rest  # all other names of ResNets, and those of HRNets, are the same in timm


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


def _swin_name(rest: str) -> str:
    if match := re.fullmatch(r"norm(\d)\.(.+)", rest):
        return f"norms.{match[1]}.{match[2]}"
    if match := re.fullmatch(r"stages\.(\d)\.downsample\.(.+)", rest):  # timm merges where the next stage begins
        return f"layers.{int(match[1]) + 1}.downsample.{match[2]}"
    rest = rest.replace("patch_embed.projection.", "patch_embed.proj.").replace("stages.", "layers.")
    return rest.replace(".w_msa.", ".").replace(".ffn.layers.0.0.", ".mlp.fc1.").replace(".ffn.layers.1.", ".mlp.fc2.")
