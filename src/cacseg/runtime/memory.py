"""How much memory the machine has left, by what the operating system and a container's limits say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SYSTEM = Path("/proc/meminfo")
LIMITS = (  # of a container: its limit, what it has taken, and what of that can be given back
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
    ),
)

WHOLE_BYTES = (
    48  # of a pixel: the image in bytes and floats, and a floor for the maps of a network (small FCN: 51 to 99)
)


def available_bytes() -> int | None:
    """Bytes that this process may still take, swap included; None where nothing says so."""
    found = []
    try:
        rows = (line.split() for line in SYSTEM.read_text().splitlines())
        sizes = {row[0]: int(row[1]) * 1024 for row in rows if len(row) > 1}
        found.append(sizes["MemAvailable:"] + sizes.get("SwapFree:", 0))
    except (OSError, ValueError, KeyError):
        pass
    for limit, taken, statistics in LIMITS:
        try:
            rows = (line.split() for line in statistics.read_text().splitlines())
            cached = sum(int(row[1]) for row in rows if row[0] in ("inactive_file", "active_file"))
            found.append(int(limit.read_text()) - int(taken.read_text()) + cached)  # "max" is no number
        except (OSError, ValueError, IndexError):
            continue
    return min(found, default=None)


def check_scores(
    classes: int, sizes: Sequence[tuple[int, int]], images: int, remedy: str, shown: tuple[int, int] = (0, 0)
) -> None:
    """A MemoryError where scores of all classes, in 4 bytes each, of images at these sizes cannot fit.

    Beside them the network holds `WHOLE_BYTES` for each pixel of `shown`, the size at which it sees an image whole. The
    machine would otherwise end the process when it takes more than there is.
    """
    needed = 4 * classes * images * sum(height * width for height, width in dict.fromkeys(sizes))
    needed += WHOLE_BYTES * images * shown[0] * shown[1]
    there = available_bytes()
    if there is not None and needed > there:
        height, width = sizes[0]
        raise MemoryError(
            f"the scores of {classes} classes for {images} image(s) of {width}x{height}, and what the network holds "
            f"meanwhile, must fit into memory; they take {needed / 1e9:.1f} GB at least, and "
            f"{max(0, there) / 1e9:.1f} GB are left. {remedy}"
        )
