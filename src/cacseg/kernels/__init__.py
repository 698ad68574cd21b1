"""Triton kernels for CUDA devices and the functions that launch them. `cacseg.ops` decides when they run.

Nothing here is imported before a tensor needs it: triton is not installed everywhere. Every kernel takes strided
inputs, accumulates in float32 and writes each result once, so that the same inputs give the same bits. With
TRITON_INTERPRET=1 in the environment they run on CPU tensors, slowly: the tests do that.
"""


def cdiv(length: int, block: int) -> int:
    """How many blocks cover a length. `triton.cdiv` is for kernels as well, and costs the host twenty times more."""
    return -(-length // block)


def power_of_2(number: int) -> int:
    """The least power of 2 that is not smaller."""
    return 1 << (number - 1).bit_length()
