"""The models by name: the eleven of the paper's main table, and any head on any backbone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from cacseg._checks import (
    check_choice,
    check_dilations,
    check_flags,
    check_integer,
    check_label_smoothing,
    check_names,
    check_normalisation,
    check_number,
    check_numbers,
    did_you_mean,
)
from cacseg.classifier import ContextAwareClassifier
from cacseg.functional.cross_entropy import PixelAverage
from cacseg.losses import ContextLoss
from cacseg.models.backbones import (
    LEVELS,
    Preprocessing,
    choose_blocks,
    load_backbone_weights,
    make_backbone,
    normalisation,
    read_preprocessing,
)
from cacseg.models.files import read_tensors
from cacseg.models.heads import DILATIONS, FCN, DeepLabV3Plus, OCRNet, UPerNet
from cacseg.models.model import AuxiliaryHead, PlainClassifier, SegmentationModel
from cacseg.presets import DEFAULT, PresetName, fill_preset, or_default

AUXILIARY_CHANNELS = 256
AUXILIARY_LEVEL = 2


class Architecture(NamedTuple):
    """What a name stands for."""

    head: str
    backbone: str  # timm's name, with the tag of the weights that the paper starts from where timm has several
    output_stride: int = 32
    drop_path: float = 0.0


MODELS: dict[str, Architecture] = {
    "fcn_mobilenetv2": Architecture("fcn", "mobilenetv2_100", output_stride=8),
    "deeplabv3plus_mobilenetv2": Architecture("deeplabv3plus", "mobilenetv2_100", output_stride=8),
    "ocrnet_hrnet_w18": Architecture("ocrnet", "hrnet_w18.ms_in1k"),
    "upernet_resnet50": Architecture("upernet", "resnet50c"),
    "deeplabv3plus_resnet50": Architecture("deeplabv3plus", "resnet50c", output_stride=8),
    "ocrnet_hrnet_w48": Architecture("ocrnet", "hrnet_w48.ms_in1k"),
    "upernet_resnet101": Architecture("upernet", "resnet101c"),
    "deeplabv3plus_resnet101": Architecture("deeplabv3plus", "resnet101c", output_stride=8),
    "upernet_swin_tiny": Architecture("upernet", "swin_tiny_patch4_window7_224", drop_path=0.3),
    "upernet_swin_base": Architecture("upernet", "swin_base_patch4_window12_384.ms_in22k", drop_path=0.3),
    "upernet_swin_large": Architecture("upernet", "swin_large_patch4_window12_384.ms_in22k", drop_path=0.3),
}

# The heads, which also stand alone as names, and the levels of the pyramid that each of them reads.
HEADS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "fcn": (FCN, (3,)),
    "deeplabv3plus": (DeepLabV3Plus, (0, 3)),
    "upernet": (UPerNet, LEVELS),
    "ocrnet": (OCRNet, LEVELS),
}


def create_model(
    name: str,
    num_classes: int = 150,
    classifier: Literal["context", "plain"] = "context",
    *,
    backbone: str | None = None,
    in_channels: int = 3,
    bands: int | None = None,
    head_channels: int = 512,
    pretrained: bool = False,
    backbone_weights: str | Path | None = None,
    auxiliary: bool = True,
    auxiliary_weight: float = 0.4,
    auxiliary_average: PixelAverage | None = None,
    preset: PresetName = DEFAULT,
    overlap_weight: float | None = None,
    ignore_index: int = 255,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    dropout: float | None = None,
    output_stride: int | None = None,
    dilations: Sequence[int] | None = None,
    dilated_blocks: Literal["first", "all", "auto"] = "auto",
    drop_path: float | None = None,
    padding: str | None = None,
    pad_to_stride: bool = True,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classifier_arguments: Mapping[str, Any] | None = None,
    loss_arguments: Mapping[str, Any] | None = None,
) -> SegmentationModel:
    """Creates a model by name, with random weights by default.

        create_model("upernet_swin_tiny", num_classes=150)
        create_model("upernet", num_classes=19, backbone="convnext_tiny")

    `create_model(**model.arguments)` builds the same model again, without loading weights.

    Args:
        name: a name in `MODELS`, or a head ("fcn", "deeplabv3plus", "upernet", "ocrnet") with a `backbone`.
        num_classes: classes n.
        classifier: "context", or "plain" for the 1x1 convolution of the baseline.
        backbone: with the name of a head: a backbone of timm with maps of the strides 4, 8, 16, 32.
        in_channels: channels of the images.
        bands: number of bands, for images in the units of their files (16 bits, floats). `mean` and `std` are then in
            these units, by default 0 and 1. Sets `in_channels`; pretrained first layers are adapted as timm does.
        head_channels: channels d of the features that the classifier reads; the paper's models have 512. Fewer need
            less memory.
        pretrained: whether timm downloads weights for the backbone.
        backbone_weights: a local file with weights for the backbone in timm's names, .safetensors or .pth; its
            metadata may state the padding, mean and std that go with them.
        auxiliary, auxiliary_weight: whether to add the loss of an auxiliary head, and its weight; OCRNet needs the
            head.
        auxiliary_average: average that loss over "labelled" pixels, or over "all", where ignored pixels count in the
            denominator; by default as the preset says, also with a plain classifier.
        preset: "tuned", "released" or "paper", for the classifier and its losses (see `cacseg.presets`).
        overlap_weight: the weight of the soft-Jaccard loss, `cacseg.overlap_loss`; by default as the preset says, 0
            with a plain classifier.
        ignore_index: the label to ignore.
        class_weights, label_smoothing: for every cross-entropy.
        dropout: channel dropout of the plain and the auxiliary branch; by default 0.1, for OCRNet 0.
        output_stride: 32, or by dilation 16 or 8; by default the model's own, for a head alone 32.
        dilations: dilations of DeepLabV3+'s branches, by default 12, 24, 36. Each should be smaller than
            crop / output_stride.
        dilated_blocks: which blocks of each stage of a MobileNetV2 dilate at a stride of 8 or 16: the "first" alone, as
            in the reference and its checkpoints, or "all", as ImageNet weights were trained. "auto" is "all" at a
            stride of 8, else "first". Other backbones take "auto" only.
        drop_path: stochastic depth of the backbone; by default the model's own, for a head alone 0.
        padding: "same" for backbone weights that were trained in TensorFlow; by default what the file of
            `backbone_weights` states, else "".
        pad_to_stride: with padding="same" the feature grid shifts with the size of the image, so pad images to a
            multiple of the output stride and crop the logits. Networks that accept only certain sizes always get padded
            images.
        mean, std: what images will be normalised with; by default what that file states, else what timm's weights were
            trained with.
        classifier_arguments, loss_arguments: further arguments of `ContextAwareClassifier` and `ContextLoss`.
    """
    architecture = find_architecture(name, backbone)
    if bands is not None:
        check_integer("bands", bands, scalars=True)
        if in_channels not in (3, bands):
            raise ValueError(f"bands={bands} are the channels of the images; got in_channels={in_channels}. Drop it.")
        in_channels = bands
    check_flags(pretrained=pretrained, auxiliary=auxiliary, pad_to_stride=pad_to_stride)
    output_stride = or_default(output_stride, architecture.output_stride)
    drop_path = or_default(drop_path, architecture.drop_path)
    integers = {"num_classes": num_classes, "in_channels": in_channels, "ignore_index": ignore_index}
    integers["head_channels"] = head_channels
    for key, value in {**integers, "output_stride": output_stride}.items():
        check_integer(key, value, scalars=True)
    for key, values in {"mean": mean, "std": std, "class_weights": class_weights}.items():
        check_numbers(key, or_default(values, ()))
    check_number("auxiliary_weight", auxiliary_weight, scalars=True)
    check_number("overlap_weight", or_default(overlap_weight, 0.0), scalars=True)
    check_number("drop_path", drop_path, 0.0, 1.0, scalars=True)
    check_number("dropout", or_default(dropout, 0.0), 0.0, 1.0, scalars=True)
    check_label_smoothing(label_smoothing)
    check_choice("classifier", classifier, ("context", "plain"))
    if head_channels < 1:
        raise ValueError(f"head_channels must be at least 1; got {head_channels}. The paper's models have 512.")
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2; got {num_classes}. Background is a class: binary is 2.")
    if architecture.head == "ocrnet" and not auxiliary:
        raise ValueError("OCRNet's first stage is its auxiliary head; got auxiliary=False. Leave it True.")
    options = fill_preset(preset, auxiliary_average=auxiliary_average)
    if classifier == "plain" and (classifier_arguments or loss_arguments):
        raise ValueError("classifier_arguments and loss_arguments belong to classifier='context'; got 'plain'.")
    if pretrained and backbone_weights is not None:
        raise ValueError("pretrained=True and backbone_weights exclude each other; got both. Leave one out.")
    file = None if backbone_weights is None else read_tensors(backbone_weights)
    stated = Preprocessing() if file is None else read_preprocessing(file, str(backbone_weights))
    of_timm = normalisation(architecture.backbone, in_channels)
    if bands is not None:  # what weights were trained with is in other units
        of_timm, stated = ([0.0] * bands, [1.0] * bands), stated._replace(mean=None, std=None)
    arguments: dict[str, Any] = {
        "name": name,
        "num_classes": int(num_classes),
        "classifier": classifier,
        "backbone": backbone,
        "in_channels": int(in_channels),
        "bands": bands,
        "head_channels": int(head_channels),
        "auxiliary": auxiliary,
        "auxiliary_weight": float(auxiliary_weight),
        "auxiliary_average": options.auxiliary_average,
        "preset": preset,
        "overlap_weight": None if overlap_weight is None else float(overlap_weight),
        "ignore_index": int(ignore_index),
        "class_weights": _floats("class_weights", num_classes, "classes", class_weights),
        "label_smoothing": float(label_smoothing),
        "dropout": float(or_default(dropout, 0.0 if architecture.head == "ocrnet" else 0.1)),
        "output_stride": output_stride,
        "drop_path": float(drop_path),
        "padding": or_default(padding, stated.padding or ""),
        "pad_to_stride": pad_to_stride,
        "mean": _floats("mean", in_channels, "channels of the images", mean, stated.mean, of_timm[0]),
        "std": _floats("std", in_channels, "channels of the images", std, stated.std, of_timm[1]),
        "classifier_arguments": dict(classifier_arguments or {}),
        "loss_arguments": dict(loss_arguments or {}),
    }
    if architecture.head == "deeplabv3plus":
        arguments["dilations"] = check_dilations(or_default(dilations, DILATIONS))
    elif dilations is not None:
        raise ValueError(f"dilations belong to DeepLabV3+; got {dilations} with {architecture.head}. Leave them out.")
    blocks = choose_blocks(dilated_blocks, architecture.backbone, arguments["output_stride"])
    if blocks is not None:
        arguments["dilated_blocks"] = blocks
    check_choice("padding", arguments["padding"], ("", "same"))
    own_units = bands is not None or in_channels != 3
    check_normalisation(arguments["mean"], arguments["std"], in_channels, are_bands=own_units)
    model = _build(architecture, arguments, pretrained)
    if file is not None:
        load_backbone_weights(model.backbone, file, source=str(backbone_weights))
        if padding is None and mean is None and std is None and stated == Preprocessing():
            warnings.warn(
                f"{backbone_weights} does not state how its weights were trained: assuming mean {list(model.mean)}, "
                f"std {list(model.std)} and PyTorch's padding. Pass mean, std and padding if that is not so.",
                stacklevel=2,
            )
    return model


def _build(architecture: Architecture, arguments: dict[str, Any], pretrained: bool) -> SegmentationModel:
    """The model that resolved arguments describe."""
    head_class, levels = HEADS[architecture.head]
    num_classes, dropout, auxiliary = (arguments[key] for key in ("num_classes", "dropout", "auxiliary"))
    channels = arguments["head_channels"]
    of_backbone = ("in_channels", "output_stride", "drop_path", "dilated_blocks", "padding", "pad_to_stride")
    backbone = make_backbone(
        architecture.backbone,
        **{key: arguments[key] for key in of_backbone if key in arguments},
        pretrained=pretrained,
        levels={*levels, AUXILIARY_LEVEL} if auxiliary else levels,
    )
    # Before the classifier, whose kind draws more or fewer random numbers: all else starts equal for one seed.
    of_head = {"dilations": arguments["dilations"]} if "dilations" in arguments else {}
    head = head_class(backbone.channels, channels, **of_head)
    auxiliary_head = None
    if auxiliary:
        auxiliary_head = make_auxiliary_head(architecture.head, backbone.channels, num_classes, dropout)
    shared = {key: arguments[key] for key in ("ignore_index", "class_weights", "label_smoothing")}
    classifier: ContextAwareClassifier | PlainClassifier = PlainClassifier(channels, num_classes, dropout)
    criterion = None
    if arguments["classifier"] == "context":
        of_classifier, of_loss = arguments["classifier_arguments"], arguments["loss_arguments"]
        fixed = {"dropout": dropout, "preset": arguments["preset"], "ignore_index": arguments["ignore_index"]}
        taken = {*fixed, "in_channels", "num_classes"}
        check_names("classifier_arguments", of_classifier, {*signature(ContextAwareClassifier).parameters} - taken)
        classifier = ContextAwareClassifier(channels, num_classes, **fixed, **of_classifier)
        overlap = arguments["overlap_weight"]
        fixed = shared if overlap is None else {**shared, "overlap_weight": overlap}
        check_names("loss_arguments", of_loss, {*signature(ContextLoss).parameters} - {*fixed, "preset"})
        criterion = ContextLoss(**fixed, **of_loss)
    initialise_classifier(classifier)
    pads = arguments["pad_to_stride"] and backbone.multiple > 1
    # The model crops features and answers instead; but OCRNet gathers over its maps, where padding has no place.
    backbone.crops_padding = not pads or architecture.head == "ocrnet"
    auxiliary_level = min(levels) if architecture.head == "ocrnet" else AUXILIARY_LEVEL
    model = SegmentationModel(
        backbone,
        head,
        classifier,
        auxiliary_head,
        criterion,
        **{key: arguments[key] for key in ("mean", "std", "bands", "auxiliary_weight", "auxiliary_average")},
        stride=backbone.strides[min(levels)] if pads else None,
        auxiliary_stride=backbone.strides[auxiliary_level] if pads else None,
        overlap_weight=or_default(arguments["overlap_weight"], 0.0),
        **shared,
    )
    model.arguments = arguments
    return model


def find_architecture(name: str, backbone: str | None) -> Architecture:
    """What a name stands for; a mistyped one gets the nearest."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a string; got {name!r}.")
    if name in MODELS:
        if backbone is not None:
            raise ValueError(
                f"{name!r} has its backbone already; got backbone={backbone!r}. Leave the backbone out (in a recipe: "
                f"model.backbone=none), or take the head alone, {MODELS[name].head!r}."
            )
        return MODELS[name]
    if name in HEADS:
        if backbone is None:
            known = " or ".join(repr(key) for key, value in MODELS.items() if value.head == name)
            raise ValueError(
                f"the head {name!r} needs a backbone; got none. Pass backbone= (in a recipe: model.backbone=), a "
                f"name of timm, or use {known}."
            )
        return Architecture(name, backbone)
    names = [*MODELS, *HEADS]
    hint = did_you_mean(name, names) or f"There are {', '.join(names)}."
    raise ValueError(f"name must be a model or a head; got {name!r}. {hint}")


def make_auxiliary_head(head: str, in_channels: Sequence[int], num_classes: int, dropout: float) -> AuxiliaryHead:
    """One 3x3 convolution on the third level; OCRNet's first stage is one 1x1 convolution on all of them."""
    if head == "ocrnet":
        channels = sum(in_channels)
        body = FCN(in_channels, channels, level=None, num_convs=1, kernel_size=1, concat_input=False)
    else:
        channels = AUXILIARY_CHANNELS
        body = FCN(in_channels, channels, level=AUXILIARY_LEVEL, num_convs=1, concat_input=False)
    classifier = PlainClassifier(channels, num_classes, dropout)
    initialise_classifier(classifier)
    return AuxiliaryHead(body, classifier)


def initialise_classifier(classifier: ContextAwareClassifier | PlainClassifier) -> None:
    """Small normal weights and no bias, as the reference: the first logits are close to 0."""
    nn.init.normal_(classifier.weight, std=0.01)
    if classifier.bias is not None:
        nn.init.zeros_(classifier.bias)


def _floats(name: str, count: int, what: str, *choices: Sequence[float] | None) -> list[float] | None:
    """The first choice that is not None, as many floats as there must be; else None."""
    values = next((one for one in choices if one is not None), None)
    if values is None:
        return None
    if len(values) != count:
        raise ValueError(f"{name} must have one number for each of the {count} {what}; got {len(values)}.")
    return [float(value) for value in values]
