"""How a campaign was started."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping


def make_command(target: str, numbers: Mapping[str, object], name: str, options: Iterable[str]) -> str:
    """`make TARGET N=1 NAME="--option"`; without options the last is left out."""
    words = ["make", target, *(f"{key}={value}" for key, value in numbers.items())]
    more = shlex.join(options)
    return " ".join([*words, f'{name}="{more}"'] if more else words)
