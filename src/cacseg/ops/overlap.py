"""The loss for overlap: the readable form, or one operation where kernels can run."""

# No `from __future__ import annotations` here: torch reads the operator's annotations as objects.

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg import functional
from cacseg._checks import check_labels, check_logits
from cacseg.functional.labels import LabelSampling
from cacseg.ops._choice import Implementation, kernels, use_triton
from cacseg.ops._operators import make_operator
from cacseg.ops.labels import labels_for_kernels


def overlap_loss(
    logits: Float[Tensor, "b n *spatial"],
    labels: Int[Tensor, "b *full"],
    *,
    ignore_index: int = 255,
    label_sampling: LabelSampling = "centred",
    impl: Implementation = "auto",
) -> Float[Tensor, ""]:
    """Soft Jaccard: how far the probabilities q of each class are from covering its pixels, and these alone.

        L = mean over the classes k present of 1 - (sum_i M_ki q_ki) / (sum_i M_ki + sum_i (1 - M_ki) q_ki)

    `functional.overlap_loss`; the kernels keep two numbers of each pixel for the backward pass instead of all
    probabilities, and are differentiable once. For maps of any number of dimensions, and for points [P, n].

    Args:
        logits: before softmax, of two classes or more.
        labels: classes in [0, n); of another size than the logits, they are resized to it.
        ignore_index: the label that takes no part.
        label_sampling: which pixel gives a logit its label: "centred" for logits that are upsampled with
            align_corners=False, "aligned" with True, "nearest" for the first pixel of each cell.
        impl: "auto", "torch" or "triton".
    """
    if not use_triton(impl, logits):
        return functional.overlap_loss(logits, labels, ignore_index=ignore_index, label_sampling=label_sampling)
    check_logits(logits)
    check_labels(labels, logits, logits.shape[1], ignore_index, packed=logits.ndim == 2)
    fitted = labels_for_kernels(labels, logits.shape[2:], logits.shape[1], ignore_index, label_sampling)
    return fused_overlap(logits, fitted)[0]


def _forward(logits: Tensor, fitted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, its derivatives by the sums of each class, [2, n], and two values of each pixel, [2, b, L].

    logits [b, n, *spatial] and labels [b, *spatial], or points [P, n] and [P]; labels are -1 where they take no part.
    """
    return kernels("overlap").forward(_as_maps(logits), _as_rows(fitted))


def _backward(of_loss: Tensor, logits: Tensor, fitted: Tensor, of_sums: Tensor, powers: Tensor) -> Tensor:
    """The gradient of the logits."""
    gradient = kernels("overlap").backward(of_loss, _as_maps(logits), _as_rows(fitted), of_sums, powers)
    return _like(gradient, logits)


def _fake(logits: Tensor, fitted: Tensor) -> tuple[Tensor, ...]:
    b, n, length = _as_maps(logits).shape
    return tuple(logits.new_empty(shape, dtype=torch.float32) for shape in ((), (2, n), (2, b, length)))


def _fake_backward(of_loss: Tensor, logits: Tensor, fitted: Tensor, of_sums: Tensor, powers: Tensor) -> Tensor:
    return _like(torch.empty_like(_as_maps(logits)), logits)


def _as_maps(logits: Tensor) -> Tensor:
    """[b, n, L]; points are the places of one image."""
    return logits.T[None] if logits.ndim == 2 else logits.flatten(2)


def _like(maps: Tensor, logits: Tensor) -> Tensor:
    """What `_as_maps` was made of."""
    return maps[0].T if logits.ndim == 2 else maps.view(logits.shape)


def _as_rows(fitted: Tensor) -> Tensor:
    """[b, L]."""
    return fitted[None].contiguous() if fitted.ndim == 1 else fitted.flatten(1).contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output[1:])


def _gradients(run: Any, ctx: Any, of_loss: Any, *others: Any) -> tuple[Any, ...]:
    return None if of_loss is None else run(of_loss, *ctx.saved_tensors), None


fused_overlap = make_operator(
    "fused_overlap", _forward, _fake, _backward, _fake_backward, save=_save, gradients=_gradients
)
