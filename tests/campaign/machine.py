"""Where a campaign ran."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path


def make_command(target: str, numbers: Mapping[str, object], name: str, options: Iterable[str]) -> str:
    """`make TARGET N=1 NAME="--option"`; without options the last is left out."""
    words = ["make", target, *(f"{key}={value}" for key, value in numbers.items())]
    more = shlex.join(options)
    return " ".join([*words, f'{name}="{more}"'] if more else words)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()
