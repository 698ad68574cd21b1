"""What stands in a converted model where a convolution stood, and for how long it knows the labels.

A model of another library calls its last convolution with features and nothing else. So the labels wait on the module
that took the convolution's place, as a `Call`, for the duration of one call of the model (`cacseg.adapters.converted`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg import ops
from cacseg.classifier import ContextAwareClassifier, ContextLogits
from cacseg.losses import ContextLoss

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by the dimensions of the kernel


class Call:
    """One call of a converted model: what it asks of the seam, and what the seam and the auxiliary answered."""

    def __init__(self, *, labels: Tensor | None = None, plain: bool = False) -> None:
        self.labels = labels
        self.plain = plain
        self.has_gradients = torch.is_grad_enabled()
        self.outputs: ContextLogits | None = None
        self.auxiliary: Tensor | None = None


class SeamClassifier(ContextAwareClassifier):
    """A `ContextAwareClassifier` with the convolution's own parameters, in their own shapes and under their own names.

    It reads what the convolution read: features `[b, d, h, w]`; for an `nn.Linear`, `[b, h, w, d]`. A k x k
    convolution is a 1x1 classifier over patches, `F.unfold(features, k)` with d*k*k channels, in the order of
    `weight.flatten(1)`; the classifier's `in_channels` is then d*k*k.

    Args:
        replaced: the convolution (checked by `search.check_replaceable`), kept for `restore`.
        dropout: what stood before it and now touches the plain logits alone; None where there was none.
        criterion: the losses of `loss`.
        arguments: of `ContextAwareClassifier`, but for the ones the convolution fixes.
    """

    def __init__(
        self, replaced: nn.Module, dropout: nn.Module | None, criterion: ContextLoss, arguments: dict[str, Any]
    ) -> None:
        assert isinstance(replaced, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        weight, bias = cast(nn.Parameter, replaced.weight), cast("nn.Parameter | None", replaced.bias)
        super().__init__(weight[0].numel(), weight.shape[0], bias=bias is not None, **arguments)
        self.to(device=weight.device, dtype=weight.dtype)
        self.weight, self.bias = weight, bias  # the very parameters: an optimiser that has them keeps them
        self.criterion = criterion.to(weight.device)
        self.plain_dropout = dropout
        self.replaced = (replaced,)  # in a tuple, so that it is no submodule
        # What a convolution says of itself; some models read it. A linear layer has no kernel.
        self.channels, self.out_channels, self.groups = weight.shape[1], weight.shape[0], 1
        self.kernel_size, self.stride, self.padding, self.dilation = geometry_of(replaced)
        self.pointwise = {*self.kernel_size, *self.stride} <= {1} and not any(self.padding)
        self.call: Call | None = None
        self.train(replaced.training)

    def forward(self, features: Tensor) -> Tensor:  # type: ignore[override]
        """The context logits, or what the call of the model asks for."""
        call = self.call
        if call is not None and call.plain:
            return self.replaced_logits(features)
        patches = self.patches(features)
        if call is None or call.labels is None:
            logits = super().forward(patches)
            assert isinstance(logits, Tensor)
        else:
            check_runs_once_with_gradients(call)
            outputs = super().forward(patches, call.labels)
            assert isinstance(outputs, ContextLogits)
            call.outputs, logits = outputs, outputs.context
        return logits if self.kernel_size else logits.movedim(1, -1)

    def replaced_logits(self, features: Tensor) -> Tensor:
        """What the convolution would have returned, computed as it did."""
        if self.plain_dropout is not None:
            features = self.plain_dropout(features)
        if not self.kernel_size:
            return F.linear(features, self.weight, self.bias)
        convolve = CONVOLVE[len(self.kernel_size)]
        return convolve(features, self.weight, self.bias, self.stride, self.padding, self.dilation)

    def patches(self, features: Tensor) -> Tensor:
        """What the classifier reads, [b, d*k*k, *spatial]."""
        if not self.kernel_size:
            return features.movedim(-1, 1)
        if self.pointwise:
            return features
        columns = F.unfold(features, self.kernel_size, self.dilation, self.padding, self.stride)
        height, width = (
            (features.shape[2 + i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel_size[i] - 1) - 1)
            // self.stride[i]
            + 1
            for i in (0, 1)
        )
        return columns.unflatten(-1, (height, width))

    def losses(self, call: Call, auxiliary_weight: float) -> dict[str, Tensor]:
        """The named terms of the criterion, the auxiliary's where there is one, and their weighted "total"."""
        assert call.labels is not None
        if call.outputs is None:
            raise RuntimeError(
                "the model must run its classifier once in each call; it did not run. Name the convolution that "
                "every call passes: cacseg.convert(cacseg.restore(model), seam=...)."
            )
        losses = self.criterion(call.outputs, call.labels)
        total = losses.pop("total")
        if call.auxiliary is not None:
            losses["auxiliary"] = ops.upsampled_cross_entropy(
                call.auxiliary,
                call.labels,
                ignore_index=self.criterion.ignore_index,
                weight=self.criterion.class_weights,
                label_smoothing=self.criterion.label_smoothing,
            )
            total = total + auxiliary_weight * losses["auxiliary"]
        return {**losses, "total": total}

    def _plain(self, features: Tensor) -> Tensor:
        if self.plain_dropout is not None and self.training:
            # Whole channels of the features are dropped, not of the patches.
            by_channel = features if self.pointwise else features.unflatten(1, (self.channels, -1)).flatten(2, 3)
            features = self.plain_dropout(by_channel).view_as(features)
        return super()._plain(features)

    def _at_once(self, features: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Not with a dropout of the model's own: only `_plain` knows it."""
        return None if self.plain_dropout is not None and self.training else super()._at_once(features, labels)


class AuxiliaryClassifier(nn.Module):
    """A second classifier of the model: stays the convolution it was, and lends its logits to the losses."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, replaced: nn.Conv2d) -> None:
        super().__init__()
        self.weight = cast(nn.Parameter, replaced.weight)
        self.bias = cast("nn.Parameter | None", replaced.bias)
        self.kernel_size, self.stride, self.padding, self.dilation = geometry_of(replaced)
        self.replaced = (replaced,)
        self.call: Call | None = None
        self.train(replaced.training)

    def forward(self, features: Tensor) -> Tensor:
        logits = F.conv2d(features, self.weight, self.bias, self.stride, self.padding, self.dilation)
        if self.call is not None and self.call.labels is not None:
            self.call.auxiliary = logits
        return logits


class MovedDropout(nn.Identity):
    """Where a dropout stood that now touches the plain logits alone: prototypes read features before dropout."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        self.replaced = (replaced,)
        self.train(replaced.training)


Placed = SeamClassifier | AuxiliaryClassifier | MovedDropout


def put_back(placed: Placed) -> nn.Module:
    """The module that was replaced, with the parameters and the mode of what replaced it."""
    replaced = placed.replaced[0]
    if isinstance(placed, SeamClassifier | AuxiliaryClassifier):
        # The same objects as a rule; not after a copy of the values to other parameters (load_state_dict(assign=True)).
        replaced.register_parameter("weight", placed.weight)
        replaced.register_parameter("bias", placed.bias)
    return replaced.train(placed.training)


class Geometry(NamedTuple):
    """How a convolution moves over its input; empty for a linear layer."""

    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()


def geometry_of(module: nn.Module) -> Geometry:
    """With the padding in numbers, where the convolution has a word for it."""
    if not isinstance(module, CONVOLUTIONS):
        return Geometry()
    padding = module.padding
    if padding == "valid":
        padding = (0,) * len(module.kernel_size)
    elif padding == "same":
        padding = tuple(d * (k - 1) // 2 for k, d in zip(module.kernel_size, module.dilation, strict=True))
    assert not isinstance(padding, str)
    return Geometry(module.kernel_size, module.stride, padding, module.dilation)


def check_runs_once_with_gradients(call: Call) -> None:
    """The losses of one call come from one run of the classifier, in the graph of that call."""
    if call.outputs is not None:
        raise RuntimeError(
            "the model must run its classifier once in each call; it ran a second time. Give the losses one image "
            "scale at a time, or name another convolution as the seam."
        )
    if call.has_gradients and not torch.is_grad_enabled():
        raise RuntimeError(
            "the classifier must run where gradients are recorded; it runs inside torch.no_grad or a reentrant "
            "checkpoint. Checkpoint with use_reentrant=False, and only what comes before the classifier."
        )
