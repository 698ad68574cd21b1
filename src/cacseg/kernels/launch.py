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


def _special(value: Any) -> Any:
    """What Triton specialises a kernel for: types, alignment, ones and multiples of 16."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if type(value) is int:
        return value == 1, value % 16 == 0, value.bit_length() > 31
    return type(value)


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
    key = (id(kernel), device.index, *map(_special, arguments), *constants.values())
    known = _compiled.get(key)
    if known is None:
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
