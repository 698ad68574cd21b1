"""The numerical rule: half-precision inputs are accumulated in float32, autocast or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

# Below this length a vector counts as zero and gives cosine 0 with gradient 0 (F.normalize would give
# a gradient of 1 / eps there, which overflows in half precision).
ZERO_NORM = 1e-12


# Where autocast exists; asked once, because torch.compile cannot trace the question on every version.
AUTOCAST_KINDS = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu", "hpu", "xla") if torch.amp.is_autocast_available(kind)
)


def widen(values: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; float32 and float64 stay."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def no_autocast(values: Tensor) -> AbstractContextManager[None]:
    """Keeps autocast from narrowing what `widen` has widened."""
    kind = values.device.type
    is_on = kind in AUTOCAST_KINDS and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()


def inverse_norm(vectors: Tensor, dim: int) -> Tensor:
    """1 / |v| along one dimension, which is kept; 0 where |v| is 0. float32 for half-precision inputs."""
    return inverse(torch.linalg.vector_norm(widen(vectors), dim=dim, keepdim=True))


def inverse(norm: Tensor) -> Tensor:
    """1 / |v| from |v|; 0 where |v| is 0."""
    return torch.where(norm > ZERO_NORM, 1.0 / norm.clamp_min(ZERO_NORM), torch.zeros_like(norm))


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator; 0 with gradient 0 where the denominator is 0."""
    empty = denominator == 0
    return torch.where(empty, 0.0, numerator / torch.where(empty, 1.0, denominator))


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """`torch.set_float32_matmul_precision` within a block. Not for what torch.compile traces."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Products and convolutions in true float32 within a block."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with matmul_precision("highest"):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def exact_products(values: Tensor) -> AbstractContextManager[None]:
    """Products in true float32 where the user allows TF32 for the model's own."""
    if not values.is_cuda:
        return nullcontext()
    try:
        is_exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was allowed by the newer setting, which torch does not read by this name
        return _exact_by_newer_setting()
    return nullcontext() if is_exact else matmul_precision("highest")


@contextmanager
def _exact_by_newer_setting() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
