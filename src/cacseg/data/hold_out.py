"""Holds images out of a split for validation, by a hash of their names: the same ones each time, also as data grow."""

from __future__ import annotations

import hashlib
import re

from cacseg.data.sample import FaultyDataError, Part, SegmentationData


def hold_out(data: SegmentationData, share: float, group: str | None) -> tuple[Part, Part]:
    """The images to train on and those to validate on, about `share` of them and at least one of each.

    A name's side does not depend on the others, but where all would be on one: then the first or the last by their
    hashes changes sides, until others come. `group` is a regular expression whose first group names what must stay
    together, e.g. the video: "^(.*?)_".
    """
    names = [_group(data.image_name(index), group) for index in range(len(data))]
    places = {name: _place(name) for name in names}
    if len(places) < 2:
        what = "images" if group is None else f"groups of {group!r}"
        raise FaultyDataError(
            f"holding out needs 2 {what} or more; the split {data.split!r} has {len(places)}. Add some."
        )
    order = sorted(places, key=places.__getitem__)
    held = {name for name in order[:-1] if places[name] < share} or {order[0]}
    train, val = ([index for index, name in enumerate(names) if (name in held) is one] for one in (False, True))
    return Part(data, train, "train"), Part(data, val, "val")


def _group(name: str, pattern: str | None) -> str:
    if pattern is None:
        return name
    found = re.search(pattern, name)
    if found is None or not found.re.groups or found[1] is None:
        raise ValueError(
            f"data.val_group must be a regular expression with a group that every name has; {pattern!r} finds none in "
            f"{name!r}. Example: ^(.*)_ for the part before the last underscore."
        )
    return found[1]


def _place(name: str) -> float:
    """In [0, 1), even over names."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
