"""Cross-entropy at the labels' resolution: a Triton operator for up to three logits, else tiles or plain PyTorch."""

# No `from __future__ import annotations` here: torch reads the operators' annotations as objects.

from collections.abc import Sequence
from typing import Any, Optional

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_labels, check_logits
from cacseg.functional.cross_entropy import PixelAverage, check_arguments
from cacseg.ops._choice import Implementation, kernels, make_operator, use_triton
from cacseg.ops.tiled_cross_entropy import cells, tiled_cross_entropy


def upsampled_cross_entropy(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    weight: Float[Tensor, " n"] | None = None,
    label_smoothing: float = 0.0,
    align_corners: bool = False,
    average: PixelAverage = "labelled",
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """Mean cross-entropy of bilinearly upsampled logits that are never materialised.

        F.cross_entropy(F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=...), labels,
                        weight=weight, ignore_index=ignore_index, label_smoothing=label_smoothing)

    The same value and gradient as `functional.upsampled_cross_entropy`, in float32 for half-precision logits.
    1-D and 2-D maps take a Triton kernel on a CUDA device and go a tile at a time elsewhere, differentiable once, by
    autograd (not by torch.func); 3-D maps take the plain expression, and so do logits of the labels' size outside
    of CUDA.
    """
    check_arguments(logits, weight, label_smoothing, average)
    flat = logits.ndim in (3, 4)
    fused = use_triton(impl, logits, dense=flat)
    if not flat or (logits.shape[2:] == labels.shape[1:] and not fused):
        return functional.upsampled_cross_entropy(
            logits,
            labels,
            ignore_index=ignore_index,
            weight=weight,
            label_smoothing=label_smoothing,
            align_corners=align_corners,
            average=average,
        )
    if fused:
        return _fused([logits], labels, weight, ignore_index, label_smoothing, [align_corners], [average]).squeeze(0)
    check_labels(labels, logits, logits.shape[1], ignore_index, read_values=False)  # the operator reads them
    if logits.ndim == 3:  # a line is a map of one row
        logits, labels = logits[:, :, None], labels[:, None]
    with_gradient = logits.requires_grad and torch.is_grad_enabled()
    options = (ignore_index, label_smoothing, align_corners, average == "all", with_gradient)
    return tiled_cross_entropy(logits, labels, weight, *options)[0]


def upsampled_cross_entropies(
    logits: Sequence[Float[Tensor, "b n *spatial"]],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    weight: Float[Tensor, " n"] | None = None,
    label_smoothing: float = 0.0,
    align_corners: Sequence[bool],
    averages: Sequence[PixelAverage],
    impl: Implementation = "auto",
) -> list[Float[Tensor, ""]]:
    """`upsampled_cross_entropy` of up to three logits of one shape, from one launch where kernels run."""
    flat = logits[0].ndim in (3, 4)
    if not 1 < len(logits) <= 3 or not use_triton(impl, logits[0], dense=flat or impl == "auto") or not flat:
        return [
            upsampled_cross_entropy(
                one,
                labels,
                ignore_index=ignore_index,
                weight=weight,
                label_smoothing=label_smoothing,
                align_corners=corners,
                average=average,
                impl=impl,
            )
            for one, corners, average in zip(logits, align_corners, averages, strict=True)
        ]
    for one, average in zip(logits, averages, strict=True):
        check_arguments(one, weight, label_smoothing, average)
    check_logits(*logits)
    losses = _fused(logits, labels, weight, ignore_index, label_smoothing, align_corners, averages)
    return list(losses.unbind())


def _fused(
    logits: Sequence[Tensor],
    labels: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    align_corners: Sequence[bool],
    averages: Sequence[PixelAverage],
) -> Float[Tensor, " m"]:
    """The losses of one to three logits from one launch."""
    check_labels(labels, logits[0], logits[0].shape[1], ignore_index)
    if logits[0].ndim == 3:
        logits, labels = [one[:, :, None] for one in logits], labels[:, None]
    three, over_all = [*logits, None, None][:3], [average == "all" for average in averages]
    options = (ignore_index, label_smoothing, list(align_corners), over_all)
    return fused_cross_entropy(*three, labels, weight, *options)[0]


def _forward(
    first: Tensor,
    second: Optional[Tensor],  # noqa: UP045
    third: Optional[Tensor],  # noqa: UP045
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    ignore_index: int,
    label_smoothing: float,
    align_corners: list[bool],
    count_ignored: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses [m] of one to three logits [b, n, h, w], the share of each pixel in them [m], and the logsumexp of
    each output pixel [m, b, H, W]. labels [b, H, W]. `count_ignored` divides by the number of all pixels.
    """
    logits = _alike([one for one in (first, second, third) if one is not None])
    module = kernels("cross_entropy")
    axes = _axes(module, first, labels, align_corners)
    return module.forward(logits, labels, weight, *axes, ignore_index, label_smoothing, count_ignored)


def _fake(first: Tensor, second: Any, third: Any, labels: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    count = len(others[-1])
    losses = first.new_empty(count, dtype=torch.float32)
    return losses, torch.empty_like(losses), first.new_empty(count, *labels.shape, dtype=torch.float32)


def _backward(
    of_losses: Tensor,
    logits: list[Tensor],
    labels: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    shares: Tensor,
    lse: Tensor,
    label_smoothing: float,
    align_corners: list[bool],
) -> Tensor:
    """The gradients of the logits, [m, b, n, h, w]."""
    module = kernels("cross_entropy")
    axes = _axes(module, logits[0], labels, align_corners)
    return module.backward(of_losses, _alike(logits), labels, weight, shares, lse, *axes, label_smoothing)


def _fake_backward(of_losses: Tensor, logits: list[Tensor], *others: Any) -> Tensor:
    if len(logits) == 1:
        return torch.empty_like(logits[0])[None]
    return logits[0].new_empty(len(logits), *logits[0].shape)


def _alike(logits: list[Tensor]) -> list[Tensor]:
    """Several logits share a launch if they share strides."""
    if len({one.stride() for one in logits}) == 1:
        return logits
    return [one.contiguous() for one in logits]


def _axes(module: Any, logits: Tensor, labels: Tensor, align_corners: list[bool]) -> list[Any]:
    sizes = zip(logits.shape[2:], labels.shape[1:], strict=True)
    return [module.Axis(*cells(source, output, tuple(align_corners), logits.device)) for source, output in sizes]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> int:
    *logits, labels, weight, _, ctx.label_smoothing, ctx.align_corners, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(labels, weight, *output[1:], *(one for one in logits if one is not None))
    return 1


def _gradients(run: Any, ctx: Any, of_losses: Any, *others: Any) -> tuple[Any, ...]:
    if of_losses is None:
        return (None,) * 9
    labels, weight, shares, lse, *logits = ctx.saved_tensors
    gradients = run(of_losses, logits, labels, weight, shares, lse, ctx.label_smoothing, ctx.align_corners).unbind()
    return *gradients, *[None] * (9 - len(gradients))


fused_cross_entropy = make_operator(
    "fused_cross_entropy", _forward, _fake, _backward, _fake_backward, save=_save, gradients=_gradients
)
