"""Which implementation runs: plain PyTorch, or the Triton kernels as operators that torch.compile and export see."""

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
    fit = TRITON_IS_THERE and dense and values.dtype in KERNEL_DTYPES
    if impl == "auto":  # an exported file runs where nobody knows our operators
        return fit and kernels_run_on(values.device) and not torch.compiler.is_exporting()
    if not dense:
        raise ValueError("impl='triton' covers neither packed batches nor these options. Use impl='auto'.")
    if not fit:
        raise ValueError(
            "impl='triton' needs triton with torch >= 2.7, and float32, float16 or bfloat16 tensors; got "
            f"{values.dtype}, torch {torch.__version__}, triton {'found' if TRITON_IS_THERE else 'not found'}. "
            "Use impl='auto'."
        )
    if values.device.type != "cuda" and not interpreted():
        raise ValueError(
            f"impl='triton' needs tensors on a CUDA device; got {values.device}. Use impl='auto', or set "
            "TRITON_INTERPRET=1 before Python starts to run the kernels on the CPU, slowly."
        )
    return True


@cache
def kernels(name: str) -> Any:
    """A module of `cacseg.kernels`, imported when a tensor needs it: triton is not everywhere."""
    return import_module(f"cacseg.kernels.{name}")


def is_traced(values: Tensor) -> bool:
    """Whether torch traces: then it must see an operator."""
    return torch.compiler.is_compiling() or type(values) not in (Tensor, torch.nn.Parameter)


def make_operator(
    name: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    fake_backward: Callable[..., Any],
    *,
    save: Callable[..., int],
    gradients: Callable[..., tuple[Any, ...]],
) -> Callable[..., Any]:
    """Registers `cacseg::NAME` and `cacseg::NAME_backward`, and returns what to call: the operator where torch traces,
    else the same computation without the dispatcher, which costs the host three times less.

    `fake` and `fake_backward` return empty tensors of the right shapes. `save(ctx, inputs, output)` keeps what the
    backward pass needs, and returns how many of the outputs are results: outside of tracing, autograd sees no others.
    `gradients(run, ctx, *of_outputs)` calls `run`, the backward operator or `backward` itself.
    """
    operator, of_operator = (
        torch.library.custom_op(f"cacseg::{key}", one, mutates_args=())
        for key, one in ((name, forward), (f"{name}_backward", backward))
    )
    operator.register_fake(fake)
    of_operator.register_fake(fake_backward)
    operator.register_autograd(partial(gradients, of_operator), setup_context=save)

    def refuse(ctx: Any, *of_outputs: Any) -> None:
        raise NotImplementedError(
            f"cacseg::{name} is differentiable once; for second derivatives use cacseg.functional."
        )

    of_operator.register_autograd(refuse)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:  # with a setup_context of its own, torch would ask for signatures
            with torch.cuda.device_of(inputs[0]):  # kernels are launched on the current device
                result = forward(*inputs)
            return tuple(result[: save(ctx, inputs, result)])

        @staticmethod
        def backward(ctx: Any, *of_outputs: Any) -> Any:
            # With create_graph=True the operator runs, which refuses to be differentiated again.
            run = of_operator if torch.is_grad_enabled() else backward
            return gradients(run, ctx, *of_outputs)

    def call(*inputs: Any) -> Any:
        return operator(*inputs) if is_traced(inputs[0]) else Direct.apply(*inputs)

    return call
