"""The contact sheet of a checked split: what is wrong first, then healthy pairs, taken evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cacseg.data.layout import Listing
from cacseg.data.open import FileData
from cacseg.data.pictures import contact_sheet, legend, text_picture
from cacseg.runtime.bands import as_picture
from cacseg.runtime.colours import Colour, Picture, colour, overlay

NO_CLASS: Colour = (255, 0, 255)
RED: Colour = (190, 20, 20)
SIDE, TEXT_WIDTH = 160, 440  # pixels


class Fault(NamedTuple):
    """Files that belong together, and what is wrong with them."""

    name: str
    image: str | None
    labels: str | None
    problem: str


def list_faults(data: FileData, listing: Listing, broken: Mapping[int, str]) -> list[Fault]:
    """Broken pairs by index, images without labels, and labels without an image."""
    faults = [Fault(pair.name, pair.image, pair.labels, broken[k]) for k, pair in enumerate(data.pairs) if k in broken]
    faults += [Fault(path, path, None, "There are no labels for this image.") for path in listing.unpaired_images]
    faults += [Fault(path, None, path, "There is no image for these labels.") for path in listing.unpaired_labels]
    return faults


def make_sheet(data: FileData, listing: Listing, broken: Mapping[int, str], rows: int) -> Picture | None:
    """At most 2 * `rows` faults, one in a row, then as many healthy pairs, two in a row, with a legend."""
    if rows < 1:
        return None
    faults = list_faults(data, listing, broken)
    parts = [_faulty(data, faults[: 2 * rows], len(faults))] if faults else []
    healthy = [index for index in range(len(data)) if index not in broken]
    if healthy:
        parts.append(_healthy(data, healthy, rows))
    if not parts:
        return None
    width = max(part.shape[1] for part in parts)
    parts.append(legend(data.class_names, data.palette, width))
    widths = (((0, 0), (0, width - part.shape[1]), (0, 0)) for part in parts)
    return np.concatenate([np.pad(one, pad, constant_values=255) for one, pad in zip(parts, widths, strict=True)])


def _faulty(data: FileData, faults: Sequence[Fault], total: int) -> Picture:
    rows = [[_read_image(data, one), _read_labels(data, one), _describe(data, one)] for one in faults]
    titles = ["image", "labels (magenta: no class)", f"what is wrong, {len(faults)} of {total}"]
    return contact_sheet(rows, titles=titles, names=[one.name for one in faults], height=SIDE)


def _healthy(data: FileData, readable: Sequence[int], rows: int) -> Picture:
    count = min(len(readable), 2 * rows)
    cells, names = [], []
    for index in (readable[k * len(readable) // count] for k in range(count)):
        sample = data.read(index)
        image, labels = sample.picture, sample.labels
        cells.append([image, colour(labels, data.palette), overlay(image, labels, data.palette)])
        names.append(data.image_name(index))
    if count % 2 == 0:
        cells = [left + right for left, right in zip(cells[::2], cells[1::2], strict=True)]
        names = [f"{left}   |   {right}" for left, right in zip(names[::2], names[1::2], strict=True)]
    titles = ["image", "labels", "overlay"] * (len(cells[0]) // 3)
    return contact_sheet(cells, titles=titles, names=names, height=SIDE)


def _read_image(data: FileData, fault: Fault) -> Picture:
    if fault.image is None:
        return _placeholder("no image")
    try:
        return as_picture(data.read_image(fault.image))
    except (ValueError, OSError, MemoryError):
        return _placeholder("unreadable")


def _read_labels(data: FileData, fault: Fault) -> Picture:
    """Classes in their colours, values that are none in magenta; files of colours as they are."""
    if fault.labels is None:
        return _placeholder("no labels")
    if data.draw is not None:
        return _placeholder("shapes")
    try:
        raw = data.read_labels(fault.labels)
    except (ValueError, OSError, MemoryError):
        return _placeholder("unreadable")
    if raw.indices is None:
        assert raw.colours is not None
        return raw.colours
    known, table = data.label_map.known, data.label_map.table
    inside = (raw.indices >= 0) & (raw.indices < len(known))
    values = np.where(inside, raw.indices, 0).astype(np.int64)
    picture = colour(table[values], data.palette)
    picture[~(inside & (known[values] == 1))] = NO_CLASS
    return picture


def _describe(data: FileData, fault: Fault) -> Picture:
    words = fault.problem.replace(f"{data.files.where('')}/", "")  # names without the root, which is the same for all
    return text_picture(words, TEXT_WIDTH, SIDE, RED)


def _placeholder(words: str) -> Picture:
    return text_picture(words, SIDE, SIDE, RED, background=(225, 225, 225))
