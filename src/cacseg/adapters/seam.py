"""The modules that replace those of a converted model: classifier, auxiliary classifiers, dropout."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg import designs
from cacseg.adapters import patches
from cacseg.adapters.calls import Call, call_of, current_call
from cacseg.adapters.patches import geometry_of
from cacseg.classifier import ContextAwareClassifier
from cacseg.functional.labels import read_mask
from cacseg.functional.prototypes import Scope
from cacseg.losses import ContextLoss
from cacseg.ops.logits import LARGEST_HALF
from cacseg.outputs import ContextLogits


class SeamClassifier(ContextAwareClassifier):
    """A `ContextAwareClassifier` with the convolution's own parameters, in their own shapes and under their own names.

    It reads what the convolution read: features `[b, d, h, w]`; for an `nn.Linear`, `[b, h, w, d]` or tokens
    `[b, N, d]`. A k x k convolution is a 1x1 classifier over patches of d*k*k channels, in the order of
    `weight.flatten(1)`; its steps are convolutions, without the patches (see `cacseg.adapters.patches`).

    Args:
        replaced: the convolution (checked by `search.check_replaceable`), kept for `restore`.
        moved_dropout: what stood before it and now touches the plain logits alone; None where there was none.
        criterion: the losses of `loss`.
        arguments: of `ContextAwareClassifier`, but for the ones the convolution fixes.
    """

    labels_in_proportion = False  # `check_label_size` compares them with the images

    def __init__(
        self, replaced: nn.Module, moved_dropout: nn.Module | None, criterion: ContextLoss, arguments: dict[str, Any]
    ) -> None:
        assert isinstance(replaced, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)
        weight, bias = cast(nn.Parameter, replaced.weight), cast("nn.Parameter | None", replaced.bias)
        super().__init__(weight[0].numel(), weight.shape[0], bias=bias is not None, **arguments)
        self.to(device=weight.device, dtype=weight.dtype)
        self.weight, self.bias = weight, bias  # the very parameters: an optimiser that has them keeps them
        self.criterion = criterion.to(weight.device)
        self.replaced = (replaced,)  # in a tuple, so that it is no submodule
        self.geometry = geometry_of(replaced)
        # What the layer says of itself; some models read it. A linear layer has no kernel.
        self.in_channels, self.out_channels, self.groups = weight.shape[1], weight.shape[0], 1
        self.in_features, self.out_features = self.in_channels, self.out_channels
        self.kernel_size, self.stride, self.padding, self.dilation = self.geometry
        # Channel dropout of a 1x1 convolution becomes `dropout`, which kernels know; any other stays a module.
        self.plain_dropout = moved_dropout
        if isinstance(moved_dropout, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            self.dropout, self.plain_dropout = moved_dropout.p, None
        if self.dropout > 0.0 and not self.geometry.pointwise:  # channels of the features, not of the patches
            self.dropout, self.plain_dropout = 0.0, nn.Dropout2d(self.dropout)
        self.is_checked = False  # against what the model returns, at its first losses
        self.train(replaced.training)

    def forward(self, features: Tensor) -> Tensor:  # type: ignore[override]
        """The context logits, or the output that the current call asks for."""
        call = call_of(self)
        if call is not None and call.plain:
            return self.replaced_logits(features)
        labels = None if call is None else call.labels
        values = features if self.kernel_size else features.movedim(-1, 1)
        if labels is not None and labels.ndim == values.ndim == 3 and not self.kernel_size:
            values = values.unflatten(2, grid_of_tokens(values.shape[2], labels))
        if call is None or labels is None:
            logits = cast(Tensor, super().forward(values))
        else:
            check_runs_once_with_gradients(call)
            outputs = cast(ContextLogits, super().forward(values, labels))
            logits = self._one_if_binary(outputs.context)
            if call is current_call():  # and not a checkpoint that computes it again
                call.outputs = outputs
        return logits if self.kernel_size else logits.flatten(2).movedim(1, -1).reshape(*features.shape[:-1], -1)

    def replaced_logits(self, features: Tensor) -> Tensor:
        """The output of the original convolution, computed in the same way, after its dropout."""
        if self.plain_dropout is not None:
            features = self.plain_dropout(features)
        elif self.dropout > 0.0 and self.training:
            channels = 1 if self.kernel_size else -1
            features = torch.feature_dropout(features.movedim(channels, 1), self.dropout, True).movedim(1, channels)
        return self._convolve(features)

    def read_labels(self, labels: Tensor) -> Tensor:
        """Unchanged labels; in binary segmentation masks become 0 and 1, [b, 1, *full] becomes [b, *full]."""
        if self.num_classes > 1:
            return labels
        spatial = len(self.kernel_size) or 2  # tokens have labels that are maps
        return read_mask(labels, 2 + spatial, self.ignore_index)

    def unfold(self, features: Tensor) -> Tensor:
        """The patches, which a 1x1 classifier would read: [b, d*k*k, *spatial]."""
        if self.geometry.pointwise:
            return features
        columns = F.unfold(features, self.kernel_size, self.dilation, self.padding, self.stride)
        return columns.unflatten(-1, self.geometry.out_size(features.shape[2:]))

    def _convolve(self, features: Tensor) -> Tensor:
        if not self.kernel_size:
            return F.linear(features, self.weight, self.bias)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel_size) - 1]
        return convolve(features, self.weight, self.bias, self.stride, self.padding, self.dilation)

    # The steps of `ContextAwareClassifier`, for k x k convolutions.

    @property
    def _is_pixelwise(self) -> bool:
        """Whether to compute as a 1x1 classifier: for a 1x1 convolution, and over patches while compiling."""
        return self.geometry.pointwise or torch.compiler.is_compiling()

    def _logits(
        self, features: Tensor, offsets: Tensor | None, labels: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if torch.compiler.is_compiling():  # exporters know no convolution whose groups are the images
            features = self.unfold(features)
        return super()._logits(features, offsets, labels)

    def _fit_labels(self, features: Tensor, offsets: Tensor | None, labels: Tensor) -> Tensor:
        """Labels at the size of the scores, which may be smaller than the features of a k x k convolution."""
        if not self.geometry.pointwise:
            self._check(features, offsets)
            features = features[:, :, :1, :1].expand(-1, -1, *self.geometry.out_size(features.shape[2:]))
        return super()._fit_labels(features, offsets, labels)

    def _fused_logits(self, features: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        is_dropping = self.plain_dropout is not None and self.training
        return super()._fused_logits(features, labels) if self._is_pixelwise and not is_dropping else None

    def _plain(self, features: Tensor) -> Tensor:
        if self.plain_dropout is not None and self.training:
            # Whole channels of the features are dropped, also where these are patches.
            apart = features.unflatten(1, (self.in_channels, -1)).flatten(2, 3)
            features = self.plain_dropout(apart).reshape(features.shape)
        if self._is_pixelwise:
            return super()._plain(features)
        if self.plain_similarity == "cosine":
            rows = self._rows()[0][None]
            return patches.cosine_logits(features, [rows], self.scale, self.geometry)[0]
        plain = self._convolve(features)
        plain = plain.clamp(-LARGEST_HALF, LARGEST_HALF) if plain.dtype == torch.float16 else plain
        return plain if self.num_classes > 1 else two_classes(plain)

    def _context_classifier(self, features: Tensor, offsets: Tensor | None, plain: Tensor) -> Tensor | None:
        if self._is_pixelwise:
            return super()._context_classifier(features, offsets, plain)
        prototypes = None
        if designs.needs_prototypes(self.context_design):
            prototypes = patches.context_prototypes(features, plain, self.prototype_epsilon, self.geometry)
        return designs.make_classifier(self.context_design, self.context_projector, prototypes, self._rows()[0])

    def _oracle_classifier(
        self, features: Tensor, offsets: Tensor | None, labels: Tensor, scope: Scope
    ) -> Tensor | None:
        if self._is_pixelwise:
            return super()._oracle_classifier(features, offsets, labels, scope)
        prototypes, weight = None, self._rows()[0]
        if designs.needs_prototypes(self.oracle_design):
            prototypes = patches.oracle_prototypes(features, labels, weight, scope, self.geometry)
        return designs.make_classifier(self.oracle_design, self.oracle_projector, prototypes, weight)

    def _similarities(self, features: Tensor, offsets: Tensor | None, *classifiers: Tensor) -> list[Tensor]:
        if self._is_pixelwise:
            return super()._similarities(features, offsets, *classifiers)
        if self.context_similarity == "dot":
            return [patches.dot_logits(features, one, self.geometry) for one in classifiers]
        return patches.cosine_logits(features, classifiers, self.scale, self.geometry)


class AuxiliaryClassifier(nn.Module):
    """A further classifier of the model: an unchanged convolution whose logits also enter the losses."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, replaced: nn.Conv2d, name: str) -> None:
        super().__init__()
        self.weight = cast(nn.Parameter, replaced.weight)
        self.bias = cast("nn.Parameter | None", replaced.bias)
        self.kernel_size, self.stride, self.padding, self.dilation = geometry_of(replaced)
        self.name = name
        self.replaced = (replaced,)
        self.train(replaced.training)

    def forward(self, features: Tensor) -> Tensor:
        logits = F.conv2d(features, self.weight, self.bias, self.stride, self.padding, self.dilation)
        call = current_call()
        if call is not None and call.labels is not None:
            call.auxiliary[self.name] = logits if logits.shape[1] > 1 else two_classes(logits)
        return logits


class MovedDropout(nn.Identity):
    """Replaces a dropout that moved to the plain logits: prototypes read features before dropout."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        self.replaced = (replaced,)
        self.train(replaced.training)


Replacement = SeamClassifier | AuxiliaryClassifier | MovedDropout


def original_of(replacement: Replacement) -> nn.Module:
    """The replaced module, with the current parameters and mode."""
    replaced = replacement.replaced[0]
    if isinstance(replacement, SeamClassifier | AuxiliaryClassifier):
        # The same objects as a rule; not after a copy of the values to other parameters (load_state_dict(assign=True)).
        replaced.register_parameter("weight", replacement.weight)
        replaced.register_parameter("bias", replacement.bias)
    return replaced.train(replacement.training)


def two_classes(logits: Tensor) -> Tensor:
    """The scores of background and foreground, [b, 2, *spatial], from the logit of a sigmoid, [b, 1, *spatial].

    Their cross-entropy is the sigmoid's binary one, and their difference the logit to the bit.
    """
    half = 0.5 * logits
    return torch.cat([-half, half], dim=1)


def grid_of_tokens(tokens: int, labels: Tensor) -> tuple[int, int]:
    """Rows and columns of the tokens of an image, row by row, in the proportion of its labels [b, H, W]."""
    height, width = labels.shape[1:]
    rows = round((tokens * height / width) ** 0.5)
    columns = tokens // max(rows, 1)
    if rows * columns != tokens or rows * width != columns * height:
        raise ValueError(
            f"tokens must be a grid of the proportion of the labels; the layer read {tokens} tokens for an image, and "
            f"the labels are {height}x{width}. Remove class tokens before the layer, give it [b, h, w, d], or give "
            f"labels [b, {tokens}]."
        )
    return rows, columns


def check_runs_once_with_gradients(call: Call) -> None:
    """Checks that the classifier runs once in a call, and where gradients are recorded."""
    if call is not current_call():  # but of a checkpoint that computes it again
        return
    if call.outputs is not None:
        raise RuntimeError(
            "the model must run its classifier once in each call; it ran a second time. Give the losses one image "
            "scale at a time, or name another convolution as the seam."
        )
    if call.has_gradients and not torch.is_grad_enabled():
        raise RuntimeError(
            "the classifier must run where gradients are recorded; it runs inside torch.no_grad or a reentrant "
            "checkpoint, whose second run would not reach the losses. Checkpoint with use_reentrant=False."
        )
