"""Passes the labels of one call of a converted model to its seam, for this call only.

A model of another library calls its last convolution with features and nothing else. So the labels wait beside the
model, in this thread, for the duration of one call. A checkpointed part of the model runs a second time, in the
backward pass, when the call is over; it is then told again what that call had asked.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from cacseg.outputs import ContextLogits


class Call:
    """One call of a converted model: the request to its seam, and the losses that seam and auxiliaries computed."""

    def __init__(self, seam: nn.Module, *, labels: Tensor | None = None, plain: bool = False) -> None:
        self.seam = seam
        self.labels = labels
        self.plain = plain
        self.has_gradients = torch.is_grad_enabled()
        self.outputs: ContextLogits | None = None
        self.auxiliary: dict[str, Tensor] = {}  # by the name of the auxiliary classifier


class _ThisThread(threading.local):
    call: Call | None = None


_this_thread = _ThisThread()

# By the backward pass and the seam: the call whose gradients that pass has reached. An entry lives as long as the graph
# that its call left behind.
_in_backward: WeakValueDictionary[tuple[int, int], Call] = WeakValueDictionary()


def set_call(call: Call | None) -> None:
    """Sets the call that everything in this thread belongs to from now on; None leaves it."""
    _this_thread.call = call


def current_call() -> Call | None:
    """The call of the converted model that runs now, in this thread."""
    return _this_thread.call


def call_of(seam: nn.Module) -> Call | None:
    """The current call, if it is of the seam's own model; else None."""
    call = _this_thread.call
    if call is not None:
        return call if call.seam is seam else None
    if torch.compiler.is_compiling():  # which records what to compute again, and never runs the module a second time
        return None
    return _in_backward.get((torch._C._current_graph_task_id(), id(seam)))


def remember_in_backward(call: Call, tensors: list[Tensor]) -> None:
    """Restores the call in a backward pass through one of these tensors.

    They are what the call returned: in front of everything that a checkpoint inside the model computes again.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return

    def announce(gradient: Any) -> None:
        _in_backward[torch._C._current_graph_task_id(), id(call.seam)] = call

    for tensor in tensors:
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(announce)
