"""The overlap that mIoU scores, a few images at a time.

The loss has one sum of each kind for every class of the batch, so its gradient needs all pixels twice: once for the
sums, once to send them back. Both times probabilities are made anew, a chunk of images at a time; of the size of the
logits only the gradient is kept. It is formed in the forward pass, for the loss is a scalar: the backward pass scales
it.
"""

# No `from __future__ import annotations` here: torch 2.4 reads the operator's annotations as objects.

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cacseg._checks import check_labels, check_logits
from cacseg.functional._precision import no_autocast, ratio, widen
from cacseg.functional.labels import class_masks, fit_labels

# Elements of the probabilities of one chunk, images * n * pixels: 16 MiB of float32.
CHUNK_ELEMENTS = 2**22


def overlap_loss(
    logits: Float[Tensor, "b n *spatial"], labels: Int[Tensor, "b *full"], *, ignore_index: int = 255
) -> Float[Tensor, ""]:
    """`functional.overlap_loss`: how far the probabilities of each class are from covering its pixels alone."""
    check_logits(logits)
    num_classes = logits.shape[1]
    packed = logits.ndim == 2
    check_labels(labels, logits, num_classes, ignore_index, packed=packed)
    fitted = fit_labels(labels, logits.shape[2:], num_classes, ignore_index)
    if packed:
        logits, fitted = logits.T[None], fitted[None]
    loss, _ = chunked_overlap(logits.flatten(2), fitted.flatten(1), torch.is_grad_enabled() and logits.requires_grad)
    return loss


@torch.library.custom_op("cacseg::chunked_overlap", mutates_args=())
def chunked_overlap(logits: Tensor, labels: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient with respect to the logits (empty unless asked for).

    logits [b, n, l], labels [b, l] with -1 where they take no part.
    """
    b, n, pixels = logits.shape
    step = max(1, CHUNK_ELEMENTS // max(1, n * pixels))
    chunks = [slice(first, first + step) for first in range(0, b, step)]
    dtype = widen(logits[:0]).dtype
    with no_autocast(logits):
        shared, claimed, there = torch.zeros(3, n, dtype=dtype, device=logits.device)
        for chunk in chunks:
            probabilities, masks = _probabilities(logits[chunk], labels[chunk])
            claimed += probabilities.sum(dim=(0, 2))
            shared += probabilities.mul_(masks).sum(dim=(0, 2))
            there += masks.sum(dim=(0, 2))
        union = there + claimed - shared
        share = ratio((there > 0).to(dtype), (there > 0).sum())  # of each class in the mean
        loss = (share * (1.0 - ratio(shared, union))).sum()
        gradient = torch.empty((b, n, pixels) if with_gradient else (0,), dtype=dtype, device=logits.device)
        if with_gradient:
            of_claimed = share * ratio(shared, union.square())
            of_shared = -of_claimed - share * ratio(torch.ones_like(union), union)
            for chunk in chunks:
                probabilities, masks = _probabilities(logits[chunk], labels[chunk])
                of_each = masks.mul_(of_shared[:, None]).add_(of_claimed[:, None])
                mean = torch.linalg.vecdot(probabilities, of_each, dim=1)[:, None]
                gradient[chunk] = probabilities.mul_(of_each.sub_(mean))
        return loss, gradient


def _probabilities(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of each class, and where its pixels are; both 0 where a pixel takes no part, whatever its logits are."""
    left_out = (labels < 0)[:, None]
    probabilities = widen(logits).masked_fill(left_out, 0.0).softmax(dim=1).masked_fill_(left_out, 0.0)
    return probabilities, class_masks(labels, logits.shape[1], ignore_index=-1, dtype=probabilities.dtype)


@chunked_overlap.register_fake
def _(logits: Tensor, labels: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor]:
    dtype = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    gradient = torch.empty(logits.shape if with_gradient else (0,), dtype=dtype, device=logits.device)
    return torch.empty((), dtype=dtype, device=logits.device), gradient


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.dtype = inputs[0].dtype
    ctx.save_for_backward(output[1])  # in float32 for half-precision logits, which could not hold it


def _backward(ctx: Any, of_loss: Tensor | None, of_gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
    if of_gradient is not None:
        raise NotImplementedError(
            "overlap_loss is differentiable once; for second derivatives use cacseg.functional.overlap_loss."
        )
    (gradient,) = ctx.saved_tensors
    return None if of_loss is None else (gradient * of_loss).to(ctx.dtype), None, None


chunked_overlap.register_autograd(_backward, setup_context=_setup_context)
