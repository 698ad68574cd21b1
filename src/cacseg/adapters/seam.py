"""What stands in a converted model where a convolution stood."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg import functional
from cacseg._checks import check_features, check_labels
from cacseg.adapters.calls import Call, call_of, current_call
from cacseg.adapters.patches import (
    geometry_of,
    patch_cosine_logits,
    patch_dot_logits,
    patch_inverse_norms,
    patch_sums,
)
from cacseg.classifier import ContextAwareClassifier
from cacseg.functional._precision import no_autocast, widen
from cacseg.functional.labels import class_masks
from cacseg.functional.prototypes import pixel_shares
from cacseg.losses import ContextLoss
from cacseg.ops.logits import LARGEST_HALF
from cacseg.outputs import ContextLogits
from cacseg.presence import make_presence_head

CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by the dimensions of the kernel


class SeamClassifier(ContextAwareClassifier):
    """A `ContextAwareClassifier` with the convolution's own parameters, in their own shapes and under their own names.

    It reads what the convolution read: features `[b, d, h, w]`; for an `nn.Linear`, `[b, h, w, d]` or tokens
    `[b, N, d]`. A k x k convolution is a 1x1 classifier over patches of d*k*k channels, in the order of
    `weight.flatten(1)`; that is then the classifier's `in_channels` (see `cacseg.adapters.patches`).

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
        self.geometry = geometry_of(replaced)
        if self.presence_head is not None and not self.geometry.pointwise:  # it reads features, not patches
            head = self.presence_head
            self.presence_head = make_presence_head(
                head.kind, weight.shape[1], self.num_classes, self.scale, self.context_design, gradient=head.gradient
            )
        self.to(device=weight.device, dtype=weight.dtype)
        self.weight, self.bias = weight, bias  # the very parameters: an optimiser that has them keeps them
        self.criterion = criterion.to(weight.device)
        self.plain_dropout = dropout
        self.replaced = (replaced,)  # in a tuple, so that it is no submodule
        # What the layer says of itself; some models read it. A linear layer has no kernel.
        self.channels, self.out_channels, self.groups = weight.shape[1], weight.shape[0], 1
        self.in_features, self.out_features = self.channels, self.out_channels
        self.kernel_size, self.stride, self.padding, self.dilation = self.geometry
        self.is_checked = False  # against what the model returns, at its first losses
        self.train(replaced.training)

    def forward(self, features: Tensor) -> Tensor:  # type: ignore[override]
        """The answer, or what the call of the model asks for."""
        call = call_of(self)
        if call is not None and call.plain:
            return self.replaced_logits(features)
        labels = None if call is None else call.labels
        is_running = call is not None and call is current_call()  # and not a checkpoint that computes it again
        if call is not None and labels is not None and is_running:
            check_runs_once_with_gradients(call)
        answer = self._classify(self._as_map(features, labels), labels)
        if isinstance(answer, ContextLogits):
            context = functional.add_presence(answer.context, answer.presence, answer.usual_odds)
            logits = self._choose(answer.plain, context)
            if call is not None and is_running:
                call.outputs = answer
        else:
            logits = answer
        return logits if self.kernel_size else logits.flatten(2).movedim(1, -1).reshape(*features.shape[:-1], -1)

    def replaced_logits(self, features: Tensor) -> Tensor:
        """What the convolution would have returned, computed as it did."""
        if self.plain_dropout is not None:
            features = self.plain_dropout(features)
        if not self.kernel_size:
            return F.linear(features, self.weight, self.bias)
        convolve = CONVOLVE[len(self.kernel_size)]
        return convolve(features, self.weight, self.bias, self.stride, self.padding, self.dilation)

    def patches(self, features: Tensor) -> Tensor:
        """What a 1x1 classifier would read, [b, d*k*k, *spatial]."""
        if self.geometry.pointwise:
            return features
        columns = F.unfold(features, self.kernel_size, self.dilation, self.padding, self.stride)
        return columns.unflatten(-1, self.geometry.out_size(features.shape[2:]))

    def _as_map(self, features: Tensor, labels: Tensor | None) -> Tensor:
        """Channels in dimension 1; tokens on the grid of the labels, where those are a map."""
        if self.kernel_size:
            return features
        values = features.movedim(-1, 1)
        if "place" in self.reads and values.ndim == 3:  # without labels nobody knows the grid: said before training
            raise ValueError(
                f"reads 'place' needs maps; the layer reads tokens, of shape {tuple(features.shape)}. Leave it out."
            )
        if labels is not None and values.ndim == 3 and labels.ndim == 3:
            return values.unflatten(2, grid_of_tokens(values.shape[2], labels))
        return values

    def _classify(self, features: Tensor, labels: Tensor | None) -> Tensor | ContextLogits:
        is_standard = not (self._softens or self._goes_beyond) and self.answer == "context"
        is_standard = is_standard and (self.presence_head is None or self.geometry.centred)
        if self.geometry.pointwise or torch.compiler.is_compiling() or not is_standard:
            # Compilers and exporters get the patches: some know no convolution whose groups are the images.
            return super().forward(self.patches(features), labels)
        check_features(features, self.channels)
        if labels is not None:
            check_labels(labels, features, self.num_classes, self.ignore_index)
        norms = patch_inverse_norms(features, self.geometry)
        plain = context = self._plain_of_patches(features, norms)
        if self.context_design != "none":
            prototypes = None
            if self.context_design != "weight":
                with no_autocast(features):
                    shares = pixel_shares(plain.detach() if self.detach_plain else plain, self.confidence_threshold)
                    values = widen(features.detach() if self.detach_prototypes else features)
                    prototypes = patch_sums(values, shares.to(values.dtype), self.geometry)
            rows = self._generate(self.context_design, self.context_projector, prototypes, None).rows
            context = self._similarity_of_patches(features, rows, norms)
        if labels is None:
            return self.add_presence(context, features)
        labels, oracle = self._fitted(labels, plain.shape[2:]), None
        if self.oracle_design != "none":
            prototypes = self._oracle_prototypes_of_patches(features, labels)
            rows = self._generate(self.oracle_design, self.oracle_projector, prototypes, None).rows
            oracle = self._similarity_of_patches(features, rows, norms)
        presence = self.presence_logits(features)
        usual_odds = None if self.presence_head is None else self.presence_head.usual_odds(labels)
        return ContextLogits(context, plain, oracle, labels, None, self.ignore_index, None, presence, usual_odds)

    def presence_logits(self, features: Tensor, offsets: Tensor | None = None) -> Tensor | None:
        """Of features, or of patches: of what is in their middle."""
        if features.shape[1] != self.channels:
            features = self.geometry.middle_of(features)
        return super().presence_logits(features, offsets)

    def _plain_of_patches(self, features: Tensor, norms: Tensor) -> Tensor:
        if self.dropout > 0.0 and self.training:
            features = torch.feature_dropout(features, self.dropout, True)
        if self.plain_similarity == "dot":
            plain = self.replaced_logits(features)
            return plain.clamp(-LARGEST_HALF, LARGEST_HALF) if plain.dtype == torch.float16 else plain
        if self.plain_dropout is not None:
            features = self.plain_dropout(features)
        if self.training:  # after dropout a patch has another length
            norms = patch_inverse_norms(features, self.geometry)
        return patch_cosine_logits(features, self.weight.flatten(1)[None], self.scale, norms, self.geometry)

    def _oracle_prototypes_of_patches(self, features: Tensor, labels: Tensor) -> Tensor | None:
        if self.oracle_design == "weight":
            return None
        with no_autocast(features):
            values = widen(features)
            masks = class_masks(labels, self.num_classes, -1, values.dtype)
            sums, counts = patch_sums(values, masks, self.geometry), masks.flatten(2).sum(dim=-1, keepdim=True)
            if self.oracle_scope == "batch":
                sums, counts = sums.sum(dim=0, keepdim=True), counts.sum(dim=0, keepdim=True)
            absent = self.weight.flatten(1).detach().to(sums.dtype)
            return torch.where(counts > 0, sums / counts.clamp_min(1.0), absent)

    def _similarity_of_patches(self, features: Tensor, rows: Tensor, norms: Tensor) -> Tensor:
        if self.context_similarity == "dot":
            return patch_dot_logits(features, rows, self.geometry)
        return patch_cosine_logits(features, rows, self.scale, norms, self.geometry)

    def _plain(self, features: Tensor) -> Tensor:
        if self.plain_dropout is not None and self.training:
            # Whole channels of the features are dropped, not of the patches.
            apart = features if self.geometry.pointwise else features.unflatten(1, (self.channels, -1)).flatten(2, 3)
            features = self.plain_dropout(apart).view_as(features)
        return super()._plain(features)

    def _at_once(self, features: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Not with a dropout of the model's own: only `_plain` knows it."""
        return None if self.plain_dropout is not None and self.training else super()._at_once(features, labels)


class AuxiliaryClassifier(nn.Module):
    """A second classifier of the model: stays the convolution it was, and lends its logits to the losses."""

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
            call.auxiliary[self.name] = logits
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
    """The losses of one call come from one run of the classifier, in the graph of that call."""
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
