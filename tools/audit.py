"""Asks PyPI for the known weaknesses of every package of this environment: python tools/audit.py

PyPI's JSON pages carry the advisories of the Python Packaging Advisory Database. Of a version that has no page of its
own (mirrors leave them out) the page of the newest is read, which speaks of that version alone.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distributions
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

INDEX = "https://pypi.org/pypi"
KNOWN = ("pycrypto", "2.6.1")  # a package with advisories: whether the index has any


def page(*parts: str) -> dict[str, Any] | None:
    try:
        with urlopen("/".join((INDEX, *parts, "json")), timeout=30) as answer:
            return json.load(answer)
    except HTTPError:
        return None


def advisories(name: str, version: str) -> list[str] | None:
    """None where nothing speaks of this version."""
    found = page(name, version) or page(name)
    if found is None or found["info"]["version"] != version:
        return None
    return [one["id"] for one in found["vulnerabilities"] if not one.get("withdrawn")]


def main() -> int:
    if not advisories(*KNOWN):
        print(f"{INDEX} has no advisories of {' '.join(KNOWN)}, which has some: nothing can be said.")
        return 2
    installed = sorted({(one.metadata["Name"], one.version.partition("+")[0]) for one in distributions()})
    found = {one: advisories(*one) for one in installed if one[0] != "cacseg"}
    weak = {one: ids for one, ids in found.items() if ids}
    for (name, version), ids in weak.items():
        print(f"{name} {version}: {', '.join(ids)}")
    unknown = [f"{name} {version}" for (name, version), ids in found.items() if ids is None]
    print(f"{len(found)} packages: {len(weak)} with known weaknesses, {len(unknown)} of which nothing is known")
    if unknown:
        print(f"not known: {', '.join(unknown)}")
    return int(bool(weak))


if __name__ == "__main__":
    sys.exit(main())
