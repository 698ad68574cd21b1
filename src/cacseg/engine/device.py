"""The device and precision a model runs in, process groups, and out-of-memory errors."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import distributed

from cacseg._checks import check_choice
from cacseg.runtime.memory import check_scores

USE_TILES = (
    "Use --tile 1024 (tile=1024 in Python), by which they are never all in memory, a smaller --scale or --batch."
)
PRECISIONS: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str = "auto") -> torch.device:
    """The named device, or the best one there is."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:1', ...; got {name!r}.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {name!r}: this machine shows {torch.cuda.device_count()} CUDA devices.")
    return device


def choose_local_device(name: str = "auto") -> torch.device:
    """`choose_device`, where processes that torchrun or srun started on one machine take its GPUs in turn."""
    device, rank = choose_device(name), os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID")
    if device.type == "cuda" and device.index is None and rank is not None:
        return torch.device("cuda", int(rank) % torch.cuda.device_count())
    return device


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Convolutions and products in `precision`; "fp32" leaves everything as it is."""
    check_choice("precision", precision, tuple(PRECISIONS))
    return torch.autocast(device.type, dtype=PRECISIONS[precision], enabled=precision != "fp32")


def choose_precision(device: torch.device) -> str:
    """bf16 where the device multiplies it faster than float32: recent GPUs, and CPUs with AMX."""
    if device.type == "cuda":
        is_fast = torch.cuda.is_bf16_supported()
    else:
        is_fast = device.type == "cpu" and torch.cpu._is_amx_tile_supported()
    return "bf16" if is_fast else "fp32"


def read_clock(device: torch.device) -> float:
    """Seconds, after all that was launched on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def device_name(device: torch.device) -> str:
    """ "NVIDIA H200", or "CPU, 2 cores (aarch64)"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = available_cores()
    kind = f"CPU, {cores} core{'s' if cores > 1 else ''}" if device.type == "cpu" else device.type.upper()
    return f"{kind} ({platform.processor() or platform.machine()})"


def peak_mib(device: torch.device) -> float | None:
    """The most memory that this process has taken, of a GPU or of the machine; None where it is unknown."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource  # Windows has none

    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU (by the type of the error) or the machine (by its message) ran out of memory."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(one in str(error) for one in words)
    )


def check_memory(
    device: torch.device,
    classes: int,
    size: tuple[int, int],
    views: Sequence[Sequence[torch.Tensor]],
    is_whole: bool,
) -> None:
    """A MemoryError where the scores of images, shown as `views`, cannot fit; a GPU says so itself.

    `is_whole`: the network sees them whole, not by windows, so that its maps must fit beside the scores.
    """
    if device.type == "cpu":
        shown = (views[0][0].shape[1], views[0][0].shape[2])
        check_scores(classes, [size, shown], len(views), USE_TILES, shown if is_whole else (0, 0))


@contextmanager
def explain_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turns an out-of-memory error into one that says what did not fit, and what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(
            f"{what} did not fit into the memory of {device}. Use a smaller batch, tiles (--tile 1024), sliding "
            "windows (--slide), a lower precision, or another device."
        ) from error


@contextmanager
def process_group(device: str) -> Iterator[tuple[torch.device, bool]]:
    """Joins the processes that torchrun started, each with its own GPU; without torchrun there is one process.

    Yields the device of this process, and whether it is rank 0, which prints and writes.
    """
    chosen = choose_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield chosen, True
        return
    if chosen.type == "cuda":
        chosen = choose_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
        torch.cuda.set_device(chosen)
    distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield chosen, distributed.get_rank() == 0
    finally:
        distributed.destroy_process_group()


def available_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
