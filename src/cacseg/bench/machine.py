"""Where something was measured; without torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

PROCESSORS = Path("/proc/cpuinfo")  # of Linux; on Arm it has no names


def processor_name() -> str:
    """The processor's name and number of cores."""
    lines = PROCESSORS.read_text().splitlines() if PROCESSORS.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"
