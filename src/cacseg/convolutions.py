"""Arguments, values and state dicts of a 1x1 convolution for the classifier that replaces it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cacseg._checks import check_names


def arguments_of(owner: type, conv: nn.Module, further: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments: in_channels, num_classes and bias of the convolution or linear layer, and those given."""
    check_names(owner.__name__, further, inspect.signature(owner).parameters)
    if not isinstance(conv, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
        raise TypeError(f"conv must be an nn.Conv1d, Conv2d, Conv3d or Linear; got {type(conv).__name__}.")
    if not isinstance(conv, nn.Linear):
        size, stride, padding, groups = conv.kernel_size, conv.stride, conv.padding, conv.groups
        if {*size, *stride, groups} != {1} or padding not in (0, (0,) * len(size), "same", "valid"):
            raise ValueError(
                "conv must be a 1x1 convolution with stride 1, no padding and no groups; got "
                f"kernel_size={size}, stride={stride}, padding={padding}, groups={groups}."
            )
    fixed = sorted({"in_channels", "num_classes"} & set(further))
    if fixed:
        raise ValueError(f"the convolution fixes {' and '.join(fixed)}. Leave them out.")
    has_bias = conv.bias is not None
    if further.get("bias", has_bias) != has_bias:
        raise ValueError(
            f"bias must agree with the convolution, which has bias={has_bias}; got the other. Leave it out."
        )
    num_classes, in_channels = conv.weight.shape[:2]
    return {**further, "in_channels": in_channels, "num_classes": num_classes, "bias": has_bias}


def binary_rows(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Two classes whose logits differ by the one of a convolution with one output: [2, d] and [2].

    Half of the weight each way: halving and doubling are exact, so the difference is the logit to the bit.
    """
    weight = 0.5 * weight.flatten(1)
    return torch.cat([-weight, weight]), None if bias is None else torch.cat([-0.5 * bias, 0.5 * bias])


def copy_values(conv: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
    """Copies the convolution's values, and whether they are trained."""
    with torch.no_grad():
        for ours, theirs in ((weight, conv.weight), (bias, conv.bias)):
            if ours is not None and isinstance(theirs, Tensor):
                ours.copy_(theirs.view_as(ours))
                ours.requires_grad_(theirs.requires_grad)


def complete_state(state: dict[str, Any], prefix: str, own: Mapping[str, Tensor]) -> None:
    """Makes the state dict of the convolution alone, also of a linear layer, a 1-D or a 3-D one, that of a classifier.

    The projectors, which such a state dict knows nothing of, keep their values, those of `own`. A trained bias is
    never dropped.
    """
    weight, ours = state.get(f"{prefix}weight"), own[f"{prefix}weight"]
    if isinstance(weight, Tensor) and weight.shape[:2] == ours.shape[:2] and set(weight.shape[2:]) <= {1}:
        state[f"{prefix}weight"] = weight.view(ours.shape)
    if f"{prefix}bias" in state and f"{prefix}bias" not in own:
        raise ValueError(
            f"the classifier has no bias, but the state dict holds {prefix}bias of shape "
            f"{tuple(state[f'{prefix}bias'].shape)}. Build the classifier with bias=True."
        )
    added = [name for name in own if name not in (f"{prefix}weight", f"{prefix}bias")]
    if f"{prefix}weight" in state and not any(name in state for name in added):
        state.update({name: own[name] for name in added})
