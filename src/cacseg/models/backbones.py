"""Backbones of timm as pyramids of four maps; those of the paper made equal to the reference's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import timm
import torch
from jaxtyping import Float
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers.conv2d_same import Conv2dSame, Conv2dSameExport
from timm.layers.pool2d_same import AvgPool2dSame, MaxPool2dSame
from timm.layers.std_conv import ScaledStdConv2dSame, StdConv2dSame
from timm.models import FeatureDictNet, adapt_input_conv
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg._checks import check_choice, did_you_mean
from cacseg._tensors import check_finite
from cacseg._text import parse_json
from cacseg.models.files import TensorFile, list_names
from cacseg.models.layers import crop_to_stride, missing_to_multiple
from cacseg.models.reference import Swin, dilate_first_blocks, fuse_bilinearly

SAME_PADDED = (Conv2dSame, Conv2dSameExport, StdConv2dSame, ScaledStdConv2dSame, AvgPool2dSame, MaxPool2dSame)
LEVELS = (0, 1, 2, 3)
STRIDES = (4, 8, 16, 32)  # of the levels, each at most the output stride


class Backbone(nn.Module):
    """Images [b, c, H, W] in, a pyramid of four maps [b, d, h, w] out, the finest first.

    Args:
        net, name: what gives a list of maps, and timm's name of it.
        channels, strides: of the four maps.
        indices: which of the net's maps the four are.
        channels_last: whether the net gives [b, h, w, d].
        multiple: of the sizes that the net takes; images are padded with zeros to it, and the maps cropped again,
            unless `crops_padding` is set to False.
    """

    def __init__(
        self,
        net: nn.Module,
        name: str,
        channels: Sequence[int],
        strides: Sequence[int] = STRIDES,
        indices: Sequence[int] = LEVELS,
        *,
        channels_last: bool = False,
        multiple: int = 1,
    ) -> None:
        super().__init__()
        self.net, self.name = net, name
        self.channels, self.strides, self.indices = tuple(channels), tuple(strides), tuple(indices)
        self.channels_last, self.multiple = channels_last, multiple
        self.crops_padding = True

    def forward(self, images: Float[Tensor, "b c H W"]) -> list[Tensor]:
        size = images.shape[2:]
        if self.multiple > 1:
            below, right = (missing_to_multiple(side, self.multiple) for side in size)
            images = F.pad(images, (0, right, 0, below))
        maps = self.net(images)
        pyramid = [maps[index] for index in self.indices]
        if self.channels_last:
            pyramid = [level.permute(0, 3, 1, 2).contiguous() for level in pyramid]
        if self.multiple > 1 and self.crops_padding:
            pairs = zip(pyramid, self.strides, strict=True)
            pyramid = [crop_to_stride(level, size, stride) for level, stride in pairs]
        return pyramid


def make_backbone(
    name: str,
    *,
    in_channels: int = 3,
    output_stride: int = 32,
    drop_path: float = 0.0,
    dilated_blocks: str = "first",
    padding: str = "",
    pad_to_stride: bool = True,
    pretrained: bool = False,
    levels: Collection[int] = LEVELS,
) -> Backbone:
    """The timm model of that name as a pyramid.

    The arguments are those of `create_model`; `levels` are the maps that somebody reads.

    Args:
        output_stride: 32, or 16 or 8: the coarser stages dilate their convolutions instead of striding.
        drop_path: the largest probability of skipping a residual branch, while training.
        dilated_blocks: "first" or "all", of MobileNetV2 below a stride of 32 (see `dilate_first_blocks`).
        pad_to_stride: whether images are padded to a multiple of the output stride where the network pads as
            TensorFlow does (see `grid_shifts_with_size`).
    """
    check_name(name)
    check_choice("dilated_blocks", dilated_blocks, ("first", "all"))
    if output_stride not in (8, 16, 32):
        raise ValueError(f"output_stride must be 8, 16 or 32; got {output_stride}.")
    arguments: dict[str, Any] = {"in_chans": in_channels, "pretrained": pretrained}
    is_hrnet = name.startswith("hrnet_")
    if is_hrnet or name.startswith("swin_"):
        if output_stride != 32 or padding or (is_hrnet and drop_path > 0.0):
            raise ValueError(
                "HRNet and Swin take neither an output_stride nor a padding, and HRNet no drop_path; got "
                f"output_stride={output_stride}, padding={padding!r}, drop_path={drop_path}. Leave them out."
            )
        if is_hrnet:
            if set(levels) != set(LEVELS):
                raise ValueError(
                    "HRNet needs a head that reads its four maps, or a part of it is never trained; got one that reads "
                    f"the maps {tuple(levels)}. Use 'ocrnet' or 'upernet'."
                )
            net = _create(name, {**arguments, "features_only": True, "feature_location": ""})
            channels = net.feature_info.channels()[1:]  # without the stem's
            return Backbone(fuse_bilinearly(net), name, channels, indices=(1, 2, 3, 4))
        arguments |= {"drop_path_rate": drop_path, "num_classes": 0, "always_partition": True, "strict_img_size": False}
        net = _create(name, arguments)
        return Backbone(Swin(net, levels), name, [info["num_chs"] for info in net.feature_info])
    arguments["features_only"] = True
    if drop_path > 0.0:
        arguments["drop_path_rate"] = drop_path
    if output_stride != 32:
        arguments["output_stride"] = output_stride
    if padding:
        arguments["pad_type"] = padding
    flexible, multiple = find_size_rule(name, tuple(sorted(arguments.items())))
    net = _create(name, {**arguments, **flexible})
    strides, channels = net.feature_info.reduction(), net.feature_info.channels()
    expected = tuple(min(stride, output_stride) for stride in STRIDES)
    indices = [index for index, stride in enumerate(strides) if 4 <= stride <= 32]
    if tuple(strides[index] for index in indices) != expected:
        raise ValueError(
            f"a backbone must give four maps of the strides {expected}; {name!r} gives maps of the strides "
            f"{tuple(strides)}. Choose a hierarchical one: a ResNet, ConvNeXt, EfficientNet, Swin, ..."
        )
    if has_choice_of_blocks(name) and dilated_blocks == "first":
        dilate_first_blocks(net, output_stride)
    if pad_to_stride and grid_shifts_with_size(net):
        multiple = math.lcm(multiple, output_stride)
    # Only timm's wrappers say so; the networks that are their own feature extractors are all convolutional.
    channels_last = isinstance(net, FeatureDictNet) and net.output_fmt == "NHWC"
    channels = [channels[index] for index in indices]
    return Backbone(net, name, channels, expected, indices, channels_last=channels_last, multiple=multiple)


@cache
def find_size_rule(name: str, items: tuple[tuple[str, Any], ...]) -> tuple[dict[str, Any], int]:
    """What lets a timm network take images of any size: further arguments, and the multiple to pad images to.

    Tried on networks without values: as it is at an odd size, then at multiples of 32 and 64, then with timm's
    switches for other sizes. `items` are the arguments that it is made with.
    """
    arguments = dict(items)
    for flexible in ({}, {"strict_img_size": False}, {"dynamic_img_size": True}):
        with torch.device("meta"):
            try:
                net = _create(name, {**arguments, **flexible, "pretrained": False})
            except ValueError:
                if not flexible:
                    raise
                continue  # a switch that this network does not have
            for multiple, size in ((1, (65, 97)), (32, (96, 160)), (64, (128, 320))):
                try:
                    net.eval()(torch.empty(1, arguments["in_chans"], *size))
                except (RuntimeError, AssertionError, ValueError, IndexError):
                    continue
                return flexible, multiple
    raise ValueError(
        f"a backbone must take images of any size; timm's {name!r} takes neither odd sizes nor multiples of 32 or 64. "
        "Choose another: a ResNet, ConvNeXt, EfficientNet, Swin, ..."
    )


def check_name(name: str) -> None:
    """The name is one that timm knows; a mistyped one gets the nearest."""
    if not isinstance(name, str):
        raise TypeError(f"the backbone must be a name of timm; got {name!r}.")
    architecture, _, tag = name.partition(".")
    tags = {full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")}
    if not timm.is_model(name):
        hint = f"{did_you_mean(name, timm.list_models())} timm.list_models() has them all.".lstrip()
        raise ValueError(f"the backbone must be a name of timm; got {name!r}. {hint}")
    if tag and tag not in tags:
        known = ", ".join(sorted(tags)) or "none"
        raise ValueError(f"timm has no weights {tag!r} of {architecture!r}; it has {known}.")


def grid_shifts_with_size(net: nn.Module) -> bool:
    """Whether a feature stands for another place in an image of another size.

    TensorFlow pads a strided layer alike on both sides at an odd size, and by one more after than before at an even
    size, so the grid of its output moves by a pixel from one to the other: at a stride of 8 by up to 7 pixels of the
    image. A head that learnt from crops of one kind then sees features of the other kind in the wrong place.
    """
    return any(isinstance(module, SAME_PADDED) and module.stride not in (1, (1, 1)) for module in net.modules())


def normalisation(name: str, in_channels: int = 3) -> tuple[list[float], list[float]]:
    """Mean and standard deviation, for pixels in [0, 1], of the images that timm's weights were trained with."""
    check_name(name)
    config = timm.get_pretrained_cfg(name)
    found = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD) if config is None else (config.mean, config.std)
    mean, std = (list(one) if in_channels == len(one) else [sum(one) / len(one)] * in_channels for one in found)
    return mean, std


def has_choice_of_blocks(name: str) -> bool:
    """Whether the reference dilates other blocks of a network than timm does."""
    return name.startswith("mobilenetv2_")


def choose_blocks(given: str, backbone: str, output_stride: int) -> str | None:
    """Which blocks of a backbone dilate, "auto" as what it stands for; None where there is no choice."""
    check_choice("dilated_blocks", given, ("first", "all", "auto"))
    if has_choice_of_blocks(backbone):
        better = "all" if output_stride == 8 else "first"
        return better if given == "auto" else given
    if given != "auto":
        raise ValueError(
            f"dilated_blocks is a choice of MobileNetV2 alone; got {given!r} with {backbone}. "
            "Leave it out, or say auto."
        )
    return None


def _create(name: str, arguments: dict[str, Any]) -> Any:
    """timm's own function, with its refusals put in our words."""
    try:
        return timm.create_model(name, **arguments)
    except TypeError as error:
        options = {key: value for key, value in arguments.items() if key not in ("in_chans", "pretrained")}
        raise ValueError(f"timm cannot build {name!r} with {options}: {error}") from error
    except Exception as error:
        if arguments["pretrained"]:
            raise OSError(
                f"the pretrained weights of {name!r} could not be had ({type(error).__name__}: {error}). Without a "
                "network, pass a local file: backbone_weights=PATH (in a recipe: model.backbone_weights=PATH)."
            ) from error
        if not isinstance(error, RuntimeError | AttributeError | NotImplementedError):
            raise
        raise ValueError(
            f"a backbone must give a pyramid of maps; timm offers none for {name!r} ({error}). Choose a "
            "hierarchical one: a ResNet, ConvNeXt, EfficientNet, Swin, ..."
        ) from error


def load_backbone_weights(backbone: Backbone, file: TensorFile, source: str = "the file") -> None:
    """Weights in timm's names into the backbone, in place.

    Every tensor of the backbone must be in the file and have its shape, else nothing is loaded; the error calls the
    file `source`. What the file has beside them (the head of an image classifier) is named in a warning.
    """
    given, ours = file.tensors, backbone.net.state_dict()
    for prefix in ("backbone.net.", "backbone."):  # of a whole model of ours, or of another library
        inside = {name.removeprefix(prefix): one for name, one in given.items() if name.startswith(prefix)}
        given = inside or given
    # timm's feature extractors flatten names, `stages.0.` becoming `stages_0.`: both are one name here.
    by_name = {name.replace("_", "."): name for name in given}
    matches = {name: by_name[key] for name in ours if (key := name.replace("_", ".")) in by_name}
    given = {**given, **adapted_inputs(given, ours, matches)}

    # But for output normalisations, which only the pyramid has, and a counter that nothing reads.
    needed = [name for name in ours if not name.startswith("norms.") and not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in matches]
    wrong = [
        f"{name} {tuple(given[theirs].shape)} for {tuple(ours[name].shape)}"
        for name, theirs in matches.items()
        if given[theirs].shape != ours[name].shape
    ]
    if missing or wrong:
        lines = [f"{source} does not fit {backbone.name}; nothing was loaded."]
        if missing:
            lines.append(f"{len(missing)} of {len(ours)} tensors are not in the file: {list_names(missing)}.")
        if wrong:
            lines.append(f"{len(wrong)} have another shape: {list_names(wrong)}.")
        raise ValueError(" ".join([*lines, f"The file must hold {backbone.name} in timm's names."]))
    loaded = {name: given[theirs] for name, theirs in matches.items()}
    check_finite(((matches[name], tensor) for name, tensor in loaded.items()), source)
    backbone.net.load_state_dict(loaded, strict=False)
    unused = [name for name in given if name not in matches.values()]
    if unused:
        what = f"{len(unused)} tensors have no place in {backbone.name} and were not loaded: {list_names(unused)}"
        warnings.warn(f"{source}: {what}.", stacklevel=2)


def adapted_inputs(
    given: Mapping[str, Tensor], ours: Mapping[str, Tensor], matches: Mapping[str, str]
) -> dict[str, Tensor]:
    """Kernels of red, green and blue for images of other channels, as timm has it: repeated, or summed for one."""
    found = {}
    for name, theirs in matches.items():
        old, new = given[theirs], ours[name]
        if old.ndim == 4 and old.shape[1] == 3 != new.shape[1] and old.shape[0] == new.shape[0]:
            found[theirs] = adapt_input_conv(new.shape[1], old)
    return found


class Preprocessing(NamedTuple):
    """What images and convolutions must be like for weights to mean what they meant in training."""

    padding: str | None = None
    mean: list[float] | None = None
    std: list[float] | None = None


def read_preprocessing(file: TensorFile, source: str = "the file") -> Preprocessing:
    """What the metadata of a file states: padding as it is, mean and std as JSON lists."""
    stated = {}
    for key in ("mean", "std"):
        try:
            stated[key] = parse_json(file.metadata.get(key, "null"))
        except ValueError as error:
            raise ValueError(f"{source} states its {key} as {file.metadata[key]!r}, which is no JSON.") from error
        if stated[key] is not None and not isinstance(stated[key], list):
            raise ValueError(f"{source} must state its {key} as a list, one number a channel; got {stated[key]!r}.")
    return Preprocessing(file.metadata.get("padding"), stated["mean"], stated["std"])
