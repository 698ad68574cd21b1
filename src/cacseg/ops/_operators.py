"""Operators with a gradient: what torch.compile and torch.export see of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor


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
