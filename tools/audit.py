"""Asks PyPI for the known weaknesses of every package of this environment: python tools/audit.py

PyPI's JSON pages carry the advisories of the Python Packaging Advisory Database. Of a version that has no page of its
own the page of the newest is read, which speaks of that version alone. The exit code is 0 where every package is known
and fine, 1 where one has a weakness, 2 where nothing could be asked, 3 where nothing is known of some.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from http.client import HTTPException
from importlib.metadata import distributions
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import urlopen

INDEX = "https://pypi.org/pypi"
KNOWN = ("pycrypto", "2.6.1")  # a package with advisories: whether the index has any
FINE, WEAK, UNASKED, UNKNOWN = range(4)

Package = tuple[str, str]  # name and version


class Said(NamedTuple):
    """What is known of a package: the advisories, or why nothing is."""

    advisories: tuple[str, ...] = ()
    unknown: str = ""


def page(*parts: str) -> dict[str, Any] | str:
    """A page of the index, or in one line why there is none."""
    address = "/".join((INDEX, *map(quote, parts), "json"))
    try:
        with urlopen(address, timeout=30) as answer:
            found = json.load(answer)
    except HTTPError as error:
        return f"HTTP {error.code}"
    except URLError as error:
        return f"no answer ({error.reason})"
    except (OSError, HTTPException, ValueError) as error:
        return f"no answer that can be read ({type(error).__name__})"
    if not isinstance(found, dict) or "info" not in found or "vulnerabilities" not in found:
        return "a page without advisories"
    return found


def ask(name: str, version: str) -> Said:
    found = page(name, version)
    if isinstance(found, str):
        newest = page(name)
        if isinstance(newest, str):
            return Said(unknown=found)
        if newest["info"]["version"] != version:
            return Said(unknown=f"{found}; there is a page of {newest['info']['version']} alone")
        found = newest
    return Said(tuple(one["id"] for one in found["vulnerabilities"] if not one.get("withdrawn")))


def judge(packages: Iterable[Package]) -> tuple[int, list[str]]:
    """The exit code, and the lines to print: a package that is weak or unknown has one of its own."""
    control = ask(*KNOWN)
    if not control.advisories:
        reason = control.unknown or "its page has none"
        return UNASKED, [f"no advisories of {' '.join(KNOWN)}, which has some: {reason}. Nothing can be said."]
    said = {package: ask(*package) for package in packages}
    weak = [f"{' '.join(one)}: {', '.join(of.advisories)}" for one, of in said.items() if of.advisories]
    unknown = [f"{' '.join(one)}: nothing is known, {of.unknown}" for one, of in said.items() if of.unknown]
    fine = len(said) - len(weak) - len(unknown)
    total = f"{len(said)} packages: {fine} without known weaknesses, {len(weak)} with some, {len(unknown)} not audited"
    return WEAK if weak else UNKNOWN if unknown else FINE, [*weak, *unknown, total]


def main() -> int:
    installed = sorted({(one.metadata["Name"], one.version.partition("+")[0]) for one in distributions()})
    code, lines = judge(one for one in installed if one[0] != "cacseg")
    print(*lines, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
