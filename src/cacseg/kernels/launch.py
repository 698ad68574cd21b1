"""Launching a kernel for the second time costs the host a fraction of the first."""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# What compiled[grid](...) does, less the hooks of profilers; its arguments are known for these versions.
PLAIN_LAUNCH = not (3, 5) <= tuple(map(int, triton.__version__.split(".")[:2])) <= (3, 9)
_compiled: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
MOST_KNOWN = 4096  # sizes of images may be many; Triton itself keeps every kernel that it has compiled


def cdiv(length: int, block: int) -> int:
    """How many blocks cover a length. `triton.cdiv` is for kernels as well, and costs the host twenty times more."""
    return -(-length // block)


def power_of_2(number: int) -> int:
    """The least one that is not smaller."""
    return 1 << (number - 1).bit_length()


def _key(kernel: Any, index: int | None, arguments: tuple[Any, ...], constants: dict[str, Any]) -> tuple[Any, ...]:
    """All that Triton may specialise a kernel for, and more: whole sizes and strides are quicker to compare."""
    return (
        id(kernel),
        index,
        *[
            value
            if type(value) is int
            else (value.dtype, value.data_ptr() % 16 == 0)
            if isinstance(value, Tensor)
            else type(value)
            for value in arguments
        ],
        *constants.values(),
    )


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """`kernel[grid](*arguments, **constants)`: the arguments in order, then the constants by name.

    Triton looks every argument up by name, and the kernel by a string of them all: 40 to 100 microseconds. Here the
    compiled kernel is kept under a short key and called as it is.
    """
    if INTERPRETED:
        kernel[grid](*arguments, **constants)
        return
    device = next(value.device for value in arguments if isinstance(value, Tensor))
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *arguments, **constants)
        return
    key = _key(kernel, device.index, arguments, constants)
    known = _compiled.get(key)
    if known is None:
        if len(_compiled) >= MOST_KNOWN:
            _compiled.clear()
        compiled = kernel[grid](*arguments, **constants)
        _compiled[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
        return
    compiled, rest = known
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    if PLAIN_LAUNCH:
        compiled[(*grid, 1, 1)[:3]](*arguments, *rest, stream=stream)
        return
    x, y, z = (*grid, 1, 1)[:3]
    compiled.run(x, y, z, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments, *rest)
