"""Which implementation runs: plain PyTorch, or the Triton kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from cacseg._checks import check_choice

Implementation = Literal["auto", "torch", "triton"]
IMPLEMENTATIONS = ("auto", "torch", "triton")
KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


# The kernels need what came with torch 2.7 (triton 3.3). Asked once: torch.compile cannot trace the question.
TRITON_IS_THERE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7) and find_spec("triton") is not None


_fit: dict[int | None, bool] = {}


def _device_is_fit(index: int | None) -> bool:
    """NVIDIA from Ampere on: the matrix units that the products need."""
    if index not in _fit:
        _fit[index] = torch.version.hip is None and torch.cuda.get_device_capability(index) >= (8, 0)
    return _fit[index]


# What torch.compiler.assume_constant_result sets; calling that would import the compiler together with cacseg.
_device_is_fit._dynamo_marked_constant = True  # type: ignore[attr-defined]


def interpreted() -> bool:
    """Whether Triton was told to run its kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def kernels_run_on(device: torch.device) -> bool:
    """Whether "auto" means Triton there."""
    return TRITON_IS_THERE and device.type == "cuda" and _device_is_fit(device.index)


def use_triton(impl: str, values: Tensor, *, dense: bool = True) -> bool:
    """Whether the kernels run. "auto" takes them where they can; "triton" insists, and says why they cannot.

    `dense` is False for what they do not cover: packed batches and rare options.
    """
    check_choice("impl", impl, IMPLEMENTATIONS)
    if impl == "torch":
        return False
    on_gpu = values.device.type == "cuda"
    fit = TRITON_IS_THERE and dense and values.dtype in KERNEL_DTYPES
    if impl == "auto":
        return fit and kernels_run_on(values.device)
    if not dense:
        raise ValueError("impl='triton' covers neither packed batches nor these options. Use impl='auto'.")
    if not fit:
        raise ValueError(
            "impl='triton' needs triton with torch >= 2.7, and float32, float16 or bfloat16 tensors; got "
            f"{values.dtype}, torch {torch.__version__}, triton {'found' if TRITON_IS_THERE else 'not found'}. "
            "Use impl='auto'."
        )
    if not on_gpu and not interpreted():
        raise ValueError(
            f"impl='triton' needs tensors on a CUDA device; got {values.device}. Use impl='auto', or set "
            "TRITON_INTERPRET=1 before Python starts to run the kernels on the CPU, slowly."
        )
    return True


@cache
def kernels(name: str) -> Any:
    """A module of `cacseg.kernels`, imported when a tensor needs it: triton is not everywhere."""
    return import_module(f"cacseg.kernels.{name}")


def with_gradient(
    operator: Any,
    implementation: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., tuple[Any, ...]],
    backward_operator: Any,
    backward_implementation: Callable[..., Any],
) -> Callable[..., Any]:
    """Registers the gradient of an operator; returns what to call: the operator where torch traces, else the same
    computation without the dispatcher, which costs the host three times less.

    `backward(run, ctx, *gradients)` calls `run`, the backward operator or its implementation.
    """
    operator.register_autograd(partial(backward, backward_operator), setup_context=setup_context)

    def refuse(ctx: Any, *gradients: Any) -> None:
        raise NotImplementedError(
            f"{operator._qualname} is differentiable once; for second derivatives use cacseg.functional."
        )

    backward_operator.register_autograd(refuse)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:  # with a setup_context of its own, torch would ask for signatures
            result = implementation(*inputs)
            result = tuple(result) if isinstance(result, list) else result
            setup_context(ctx, inputs, result)
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            # With create_graph=True the operator runs, which refuses to be differentiated again.
            run = backward_operator if torch.is_grad_enabled() else backward_implementation
            return backward(run, ctx, *gradients)

    def call(*inputs: Any) -> Any:
        traced = torch.compiler.is_compiling() or type(inputs[0]) not in (Tensor, torch.nn.Parameter)
        return operator(*inputs) if traced else Direct.apply(*inputs)

    return call
