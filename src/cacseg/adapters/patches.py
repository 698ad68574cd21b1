"""A k x k convolution as a classifier over patches, without making the patches.

`F.unfold` would make d*k*k channels of d, and the equations of a 1x1 classifier could read those. Each of them is a
convolution in truth: scores are the convolution with the rows as kernels, prototypes its gradient with respect to the
kernel, and the length of a patch is a sum over a window. So memory stays that of the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from cacseg.functional._precision import ZERO_NORM, inverse_norm, no_autocast, widen
from cacseg.functional.labels import class_masks
from cacseg.functional.prototypes import Scope, pixel_shares
from cacseg.ops.logits import LARGEST_HALF, compute_dtype

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Geometry(NamedTuple):
    """How a convolution moves over its input; empty for a linear layer."""

    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()

    @property
    def pointwise(self) -> bool:
        """A 1x1 convolution, or a linear layer."""
        return {*self.kernel_size, *self.stride} <= {1} and not any(self.padding)

    def out_size(self, size: torch.Size) -> list[int]:
        """The size of the output map for an input map of that size."""
        parts = zip(size, *self, strict=True)
        return [(s + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for s, kernel, stride, pad, dilation in parts]


def geometry_of(module: nn.Module) -> Geometry:
    """The geometry with padding as numbers, where the convolution has "same" or "valid"."""
    if not isinstance(module, CONVOLUTIONS):
        return Geometry()
    padding = module.padding
    if padding == "valid":
        padding = (0,) * len(module.kernel_size)
    elif padding == "same":
        padding = tuple(d * (k - 1) // 2 for k, d in zip(module.kernel_size, module.dilation, strict=True))
    assert not isinstance(padding, str)
    return Geometry(module.kernel_size, module.stride, padding, module.dilation)


def patch_scores(features: Tensor, rows: Tensor, geometry: Geometry) -> Tensor:
    """The product of every patch with every row, [b, n, h, w]; rows are [1 or b, n, d*k*k], one set for each image."""
    images, n = rows.shape[:2]
    kernels = rows.reshape(images * n, features.shape[1], *geometry.kernel_size)
    _, stride, padding, dilation = geometry
    if images == 1:
        return F.conv2d(features, kernels, None, stride, padding, dilation)
    together = features.reshape(1, -1, *features.shape[2:])
    scores = F.conv2d(together, kernels, None, stride, padding, dilation, groups=images)
    return scores.view(images, n, *scores.shape[2:])


def patch_sums(features: Tensor, shares: Tensor, geometry: Geometry) -> Tensor:
    """The sum of the patches of each image, weighted by [b, n, h, w]: [b, n, d*k*k]."""
    return _PatchSums.apply(features, shares, *geometry).view(*shares.shape[:2], -1)


def patch_inverse_norms(features: Tensor, geometry: Geometry) -> Tensor:
    """1 / |patch|, [b, 1, h, w], 0 where a patch is zero; in float32 for half precision."""
    kernel, stride, padding, dilation = geometry
    squares = widen(features).square().sum(dim=1, keepdim=True)
    lengths = F.unfold(squares, kernel, dilation, padding, stride).sum(dim=1, keepdim=True)
    lengths = lengths.unflatten(-1, geometry.out_size(features.shape[2:]))
    zero = lengths <= ZERO_NORM**2
    return torch.where(zero, 0.0, torch.where(zero, 1.0, lengths).rsqrt())


def context_prototypes(features: Tensor, plain_logits: Tensor, epsilon: float, geometry: Geometry) -> Tensor:
    """`functional.context_prototypes` of the patches, Eq. (4)."""
    with no_autocast(features):
        values = widen(features)
        return patch_sums(values, pixel_shares(plain_logits, epsilon).to(values.dtype), geometry)


def oracle_prototypes(features: Tensor, labels: Tensor, weight: Tensor, scope: Scope, geometry: Geometry) -> Tensor:
    """`functional.oracle_prototypes` of the patches, Eq. (1); labels have the size of the scores, -1 where ignored."""
    with no_autocast(features):
        values = widen(features)
        masks = class_masks(labels, weight.shape[0], -1, values.dtype)
        sums, counts = patch_sums(values, masks, geometry), masks.flatten(2).sum(dim=-1, keepdim=True)
        if scope == "batch":
            sums, counts = sums.sum(dim=0, keepdim=True), counts.sum(dim=0, keepdim=True)
        return torch.where(counts > 0, sums / counts.clamp_min(1.0), weight.detach().to(sums.dtype))


def dot_logits(features: Tensor, classifier: Tensor, geometry: Geometry) -> Tensor:
    """`ops.dot_logits` of the patches."""
    dtype = compute_dtype(features)
    with no_autocast(features):
        if dtype == torch.float16:
            scores = patch_scores(features.float(), classifier.float(), geometry)
            return scores.clamp(-LARGEST_HALF, LARGEST_HALF).to(dtype)
        return patch_scores(features.to(dtype), classifier.to(dtype), geometry)


def cosine_logits(features: Tensor, classifiers: Sequence[Tensor], scale: float, geometry: Geometry) -> list[Tensor]:
    """`ops.cosine_logits_of_all` of the patches, whose norms are computed once."""
    dtype = compute_dtype(features)
    wide = torch.float32 if dtype == torch.float16 else dtype  # before the division a score is as large as the patch
    with no_autocast(features):
        shares = scale * patch_inverse_norms(features, geometry)
        rows = [widen(one) * inverse_norm(one, dim=-1) for one in classifiers]
        return [(patch_scores(features.to(wide), one.to(wide), geometry) * shares).to(dtype) for one in rows]


class _PatchSums(torch.autograd.Function):
    """The gradient of a convolution with respect to its kernel, one group for each image.

    torch's own derivative of that gradient convolves with kernels as large as the map; these are ordinary ones.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, shares: Tensor, *geometry: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(features, shares)
        ctx.geometry = Geometry(*geometry)
        kernel, stride, padding, dilation = ctx.geometry
        (b, d, *size), (_, n, *out) = features.shape, shares.shape
        together, weights = features.reshape(1, b * d, *size), shares.reshape(1, b * n, *out)
        return conv2d_weight(together, (b * n, d, *kernel), weights, stride, padding, dilation, groups=b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, shares = ctx.saved_tensors
        (b, d, *size), (_, n, *out) = features.shape, shares.shape
        of_features = of_shares = None
        if ctx.needs_input_grad[0]:
            _, stride, padding, dilation = ctx.geometry
            weights = shares.reshape(1, b * n, *out)
            together = conv2d_input((1, b * d, *size), gradient, weights, stride, padding, dilation, groups=b)
            of_features = together.view_as(features)
        if ctx.needs_input_grad[1]:
            of_shares = patch_scores(features, gradient.view(b, n, -1), ctx.geometry)
        return of_features, of_shares, None, None, None, None
