"""classes.txt: one class a line, in the order of their numbers, each with a colour or without."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from cacseg.runtime.colours import BACKGROUND, MAX_CLASSES, Colour, background_index, distinct_colours

IGNORED = "[ignore]"  # a line of this name gives a colour that is to be ignored
BLACK = (0, 0, 0)  # the background that is added before a single class
NO_CLASS = (
    "__ignore__",
    "_ignore_",
    "ignore",
)  # what labelling tools call that is to be ignored; the first is LabelMe's

_DECIMAL = re.compile(r"[\s,:;]+\(?(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})\)?$")
_HEXADECIMAL = re.compile(r"[\s,:;]+#([0-9a-fA-F]{6})$")


class ClassList(NamedTuple):
    """Names, the colour of each class, and whether the colours were written down (else chosen by us)."""

    names: tuple[str, ...]
    palette: tuple[Colour, ...]
    ignored_colours: tuple[Colour, ...]
    has_colours: bool


def parse_classes(text: str, where: str) -> ClassList:
    """Lines 'road', 'road 128 64 128', 'road, 128, 64, 128' or 'road #804080'; empty lines and '# ...' are passed over.

    Either every class has a colour or none has.
    """
    names: list[str] = []
    colours: list[Colour] = []
    ignored: list[Colour] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colour = _split(line, f"line {number} of {where}")
        if name == IGNORED:
            if colour is None:
                raise ValueError(f"{IGNORED} must be followed by a colour, R G B; line {number} of {where} has none.")
            ignored.append(colour)
            continue
        if name in names:
            raise ValueError(f"classes must have names of their own; {where} has {name!r} twice (line {number}).")
        names.append(name)
        if colour is not None:
            colours.append(colour)
    if not names:
        raise ValueError(f"{where} names no class. Write one name a line, in the order of the label values from 0.")
    if len(names) > MAX_CLASSES:
        raise ValueError(f"a data set has 1 to {MAX_CLASSES} classes (labels are 8 bits); got {len(names)}.")
    if colours and len(colours) != len(names):
        raise ValueError(
            f"every class has a colour or none has; {where} gives {len(colours)} for {len(names)} classes."
        )
    if ignored and not colours:
        raise ValueError(f"{where} gives colours to ignore but none of the classes has one.")
    both = set(colours) & set(ignored)
    if both:
        raise ValueError(f"a colour is a class or ignored, not both; {where} has {sorted(both)[0]} as both.")
    palette = tuple(colours) or distinct_colours(len(names))
    return ClassList(tuple(names), palette, tuple(ignored), bool(colours))


def with_background(classes: ClassList, where: str) -> ClassList:
    """A single class becomes two: the background, 0 and black, and the class, 1. Several stay as they are."""
    if len(classes.names) > 1:
        return classes
    (name,), (colour,) = classes.names, classes.palette
    if name == BACKGROUND:
        raise ValueError(
            f"{where} names {BACKGROUND!r} alone. Name the class to be found; the background is added before it."
        )
    if BLACK in (colour, *classes.ignored_colours):
        raise ValueError(
            f"the background that is added before a single class is black, {BLACK}; {where} gives black to something "
            f"else. Write both classes there, {BACKGROUND!r} first, each with its colour."
        )
    return classes._replace(names=(BACKGROUND, name), palette=(BLACK, colour))


def of_names(names: Sequence[str], where: str) -> ClassList:
    """Classes of a labelling tool, in this order, with colours that we choose; those of NO_CLASS are none of them."""
    names = tuple(dict.fromkeys(name for name in names if name not in NO_CLASS))
    if not names:
        raise ValueError(f"{where} names no class. Is anything labelled there?")
    if len(names) >= MAX_CLASSES:
        raise ValueError(f"a data set has 1 to {MAX_CLASSES - 1} classes; {where} has {len(names)}.")
    return ClassList(names, distinct_colours(len(names)), (), False)


def with_uncovered(classes: ClassList, uncovered: str, where: str) -> ClassList:
    """Classes of shapes, with a class for what no shape covers; one of that name may be there already."""
    if uncovered == "ignore":
        if len(classes.names) == 1:
            raise ValueError(
                f"{where} has one class, {classes.names[0]!r}, and everything else would be ignored. Leave "
                "data.uncovered at background."
            )
        return classes
    if (found := background_index(classes.names)) is not None:
        palette = tuple(BLACK if k == found else colour for k, colour in enumerate(classes.palette))
        return classes._replace(palette=palette)
    return classes._replace(names=(BACKGROUND, *classes.names), palette=(BLACK, *classes.palette))


def builtin_classes(name: str) -> ClassList:
    """The names and colours of a data set that comes with the package."""
    text = (resources.files("cacseg.data") / "classes" / f"{name}.txt").read_text(encoding="utf-8")
    return parse_classes(text, f"{name}.txt")


def check_colours_differ(colours: Sequence[Colour], where: str) -> None:
    """Each colour stands for one class; asked only where masks are read by colour."""
    for label, colour in enumerate(colours):
        first = colours.index(colour)
        if first < label:
            raise ValueError(f"{where} gives classes {first} and {label} one colour, {colour}. Change one of them.")


def _split(line: str, where: str) -> tuple[str, Colour | None]:
    if match := _DECIMAL.search(line):
        colour = (int(match[1]), int(match[2]), int(match[3]))
        if max(colour) > 255:
            raise ValueError(f"colours are three numbers from 0 to 255; {where} has {colour}.")
    elif match := _HEXADECIMAL.search(line):
        packed = int(match[1], 16)
        colour = (packed >> 16, packed >> 8 & 255, packed & 255)
    else:
        return line, None
    name = line[: match.start()].strip()
    if not name:
        raise ValueError(f"{where} has a colour and no name.")
    return name, colour
