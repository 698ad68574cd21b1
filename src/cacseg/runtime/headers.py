"""Width and height of an image file by its first bytes, of formats that OpenCV reads; nothing is decoded.

Pillow's own reader of headers refuses some TIFF files that OpenCV decodes, and a few damaged files of other formats.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

PNG_START = b"\x89PNG\r\n\x1a\n"
JPEG_START = b"\xff\xd8"
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers that a size follows
JPEG_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers that nothing follows
JPEG_PIXELS = 2000  # of a byte, at most: flat pictures have some 64, progressive ones some 340
JPEG_SMALL = 10**6  # pixels that any JPEG may claim
TIFF_VALUES = {1: "B", 3: "H", 4: "I", 16: "Q"}  # kinds of whole numbers
WIDTH, HEIGHT, BITS, SAMPLES, SAMPLE_FORMAT = 256, 257, 258, 277, 339  # tags of TIFF
MOST_ENTRIES = 4096  # of a TIFF's first page that are looked at


class TiffKind(NamedTuple):
    """What a pixel of a TIFF is."""

    bands: int
    bits: int
    kind: str  # "whole numbers", "floats", "complex numbers"

    @property
    def is_colour(self) -> bool:
        """Whether it may be shown as red, green and blue bytes."""
        return self.bits <= 16 and self.kind == "whole numbers"

    def __str__(self) -> str:
        return f"{self.bands} band(s) of {self.kind} of {self.bits} bits"


def size_of(content: bytes) -> tuple[int, int] | None:
    """Width and height; None where the first bytes are of no known format, or cut off."""
    try:
        if content.startswith(PNG_START):
            width, height = struct.unpack_from(">II", content, 16)
        elif content.startswith(JPEG_START):
            return _jpeg_size(content)
        elif content.startswith(TIFF_STARTS):
            tags = _tiff_tags(content)
            width, height = tags[WIDTH][0], tags[HEIGHT][0]
        elif content.startswith(b"BM"):
            wide = struct.unpack_from("<I", content, 14)[0] != 12
            width, height = struct.unpack_from("<ii" if wide else "<HH", content, 18)
        elif content.startswith((b"GIF87a", b"GIF89a")):
            width, height = struct.unpack_from("<HH", content, 6)
        elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
            return _webp_size(content)
        else:
            return None
    except (struct.error, IndexError, KeyError):
        return None
    return abs(width), abs(height)


def can_hold(content: bytes, pixels: int) -> bool:
    """Whether so few bytes can be a picture of so many pixels; False only of a JPEG, which decoders fill up."""
    return not content.startswith(JPEG_START) or pixels <= max(JPEG_SMALL, JPEG_PIXELS * len(content))


def has_whole_chunks(content: bytes) -> bool:
    """Whether the parts of a PNG are there: OpenCV takes as much memory as one says that it has."""
    place = len(PNG_START)
    while place + 8 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        if place + 8 + length > len(content):
            return False
        if content[place + 4 : place + 8] == b"IEND":
            return True
        place += 12 + length
    return True


def tiff_kind(content: bytes) -> TiffKind | None:
    """What a pixel of a TIFF is, by its first page; None where that cannot be read."""
    try:
        tags = _tiff_tags(content)
        bits = max(tags.get(BITS) or (1,))
        name = {3: "floats", 5: "complex numbers", 6: "complex numbers"}.get(
            max(tags.get(SAMPLE_FORMAT) or (1,)), "whole numbers"
        )
        return TiffKind((tags.get(SAMPLES) or (1,))[0], bits, name)
    except (struct.error, IndexError, KeyError):
        return None


def _jpeg_size(content: bytes) -> tuple[int, int] | None:
    place = 2
    while True:
        place = content.find(b"\xff", place)
        if place < 0:
            return None
        while content[place] == 0xFF:
            place += 1
        marker, place = content[place], place + 1
        if marker in JPEG_SIZES:
            height, width = struct.unpack_from(">HH", content, place + 3)
            return width, height
        if marker != 0 and marker not in JPEG_ALONE:
            place += max(2, struct.unpack_from(">H", content, place)[0])


def _webp_size(content: bytes) -> tuple[int, int] | None:
    kind = content[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(content[place : place + 3], "little") + 1 for place in (24, 27))
    elif kind == b"VP8L":
        packed = struct.unpack_from("<I", content, 21)[0]
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (value & 0x3FFF for value in struct.unpack_from("<HH", content, 26))
    else:
        return None
    return width, height


def _tiff_tags(content: bytes) -> dict[int, tuple[int, ...]]:
    """The whole numbers of the tags of the first page."""
    order = "<" if content[:2] == b"II" else ">"
    is_big = struct.unpack_from(f"{order}H", content, 2)[0] == 43
    start = struct.unpack_from(f"{order}Q", content, 8)[0] if is_big else struct.unpack_from(f"{order}I", content, 4)[0]
    count = struct.unpack_from(f"{order}{'Q' if is_big else 'H'}", content, start)[0]
    first, entry, width = start + (8 if is_big else 2), "HHQ" if is_big else "HHI", 8 if is_big else 4
    step = struct.calcsize(f"<{entry}") + width
    found: dict[int, tuple[int, ...]] = {}
    for k in range(min(count, MOST_ENTRIES)):
        place = first + k * step
        tag, kind, length = struct.unpack_from(f"{order}{entry}", content, place)
        if tag not in (WIDTH, HEIGHT, BITS, SAMPLES, SAMPLE_FORMAT) or kind not in TIFF_VALUES or not length:
            continue
        length, letter = min(length, MOST_ENTRIES), TIFF_VALUES[kind]
        place += step - width
        if length * struct.calcsize(f"<{letter}") > width:
            place = struct.unpack_from(f"{order}{'Q' if is_big else 'I'}", content, place)[0]
        found[tag] = struct.unpack_from(f"{order}{length}{letter}", content, place)
    return found
