"""Damages the bytes of a file: anywhere, and in the fields of headers that say how large an image is.

Every function takes a `random.Random` and draws from it alone, so that a case can be made again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

Mutator = Callable[[Random, bytes, Sequence[bytes]], bytes]

EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
RUNS = (b"\0", b"\xff", b" ", b"[", b"(", b'"', b"\n")
# Far too large, empty, a little off, or just below a limit: 256 megapixels of files, 100 of the page, 4 of the service.
FAR_OFF = ((0, 0), (0, 9), (9, 0), (1, 1), (65535, 65535), (32767, 32767), (60000, 60000), (65535, 9), (300, 200))
SIDES = (*FAR_OFF, (15_900, 16_000), (65_535, 3_900), (9_999, 10_000), (1_999, 2_000))
BOMB_BYTES = 5 * 2**30
PNG = b"\x89PNG\r\n\x1a\n"


def flip_bits(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def write_run(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start, length = rng.randrange(len(content)), rng.choice((1, 4, 16, 256, 4096))
    value = rng.choice(RUNS) if rng.random() < 0.7 else rng.randbytes(1)
    return content[:start] + (value * length)[: len(content) - start] + content[start + length :]


def write_noise(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(content))
    noise = rng.randbytes(min(rng.choice((2, 8, 64, 512)), len(content) - start))
    return content[:start] + noise + content[start + len(noise) :]


def truncate(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    return content[: rng.choice((0, 1, 7, 8, 9, len(content) - 1, rng.randrange(len(content)), rng.randrange(64)))]


def insert(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start, length = rng.randrange(len(content) + 1), rng.choice((1, 3, 64, 5000))
    return (
        content[:start] + (rng.randbytes(length) if rng.random() < 0.5 else rng.choice(RUNS) * length) + content[start:]
    )


def duplicate(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[start:end] * rng.choice((1, 2, 20)) + content[end:]


def remove(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + content[start + rng.choice((1, 2, 4, 16, 200)) :]


def splice(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """The first part of one file and the last of another."""
    other = rng.choice(others)
    return content[: rng.randrange(len(content))] + other[rng.randrange(max(1, len(other))) :]


def write_edge(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    """A number of the kind that lengths, counts and offsets overflow with."""
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    number = (rng.choice(EDGES) % 2 ** (8 * size)).to_bytes(size, order)
    start = rng.randrange(min(len(content), rng.choice((64, 1024, len(content)))))
    return (content[:start] + number + content[start + size :])[: max(len(content), start + size)]


BYTES: tuple[Mutator, ...] = (
    *(flip_bits, write_run, write_noise, truncate, insert, duplicate, remove, splice, write_edge),
)


def resize_header(rng: Random, content: bytes, _: Sequence[bytes], sides: Sequence[tuple[int, int]] = SIDES) -> bytes:
    """Another width and height in the header of a PNG, JPEG, GIF, BMP or TIFF; the checksum of a PNG is right."""
    width, height = rng.choice(sides)
    found = bytearray(content)
    if content.startswith(PNG):
        found[16:24] = struct.pack(">II", width, height)
        found[29:33] = struct.pack(">I", zlib.crc32(found[12:29]))
    elif content.startswith(b"\xff\xd8"):
        start = next((at for mark in (b"\xff\xc0", b"\xff\xc2") if (at := content.find(mark)) > 0), -1)
        if start > 0:
            found[start + 5 : start + 9] = struct.pack(">HH", height, width)
    elif content.startswith(b"GIF8"):
        found[6:10] = struct.pack("<HH", width, height)
        if (start := content.find(b"\x2c")) > 0:
            found[start + 5 : start + 9] = struct.pack("<HH", width, height)
    elif content.startswith(b"BM"):
        found[18:26] = struct.pack("<ii", width, rng.choice((height, -height)))
    elif content.startswith((b"II*\0", b"MM\0*")):
        _resize_tiff(found, width, height, "<" if content.startswith(b"II") else ">")
    else:
        return write_edge(rng, content, ())
    return bytes(found)


def _resize_tiff(found: bytearray, width: int, height: int, order: str) -> None:
    (start,) = struct.unpack_from(order + "I", found, 4)
    (count,) = struct.unpack_from(order + "H", found, start)
    for entry in range(start + 2, min(start + 2 + 12 * count, len(found) - 12), 12):
        (tag,) = struct.unpack_from(order + "H", found, entry)
        if tag in (256, 257):
            struct.pack_into(order + "HII", found, entry + 2, 4, 1, width if tag == 256 else height)


def mend_checksums(content: bytes) -> bytes:
    """A damaged PNG with the right checksum after every chunk, so that decoders go on to read it."""
    if not content.startswith(PNG):
        return content
    found, start = bytearray(content), len(PNG)
    while start + 12 <= len(found):
        (length,) = struct.unpack_from(">I", found, start)
        end = start + 8 + length
        if end + 4 > len(found):
            break
        struct.pack_into(">I", found, end, zlib.crc32(found[start + 4 : end]))
        start = end + 4
    return bytes(found)


def damage_below_checksums(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return mend_checksums(rng.choice((flip_bits, write_noise, write_edge))(rng, content, others))


def edit_numpy_header(rng: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    """Another shape or type in the text before the numbers of a .npy."""
    start, end = content.index(b"{"), content.index(b"}") + 1
    shape = rng.choice(
        ("()", "(0,)", "(0, 4)", "(1000000, 1000000)", "(-1, 9)", "(4, 24, 32, 1)", "(True,)", "9", "(1e3,)")
    )
    kind = rng.choice(("|O", "<f2", ">u2", "<c8", "|S5", "<M8[s]", "<f4", "|V3", "[('a', '<f4')]"))
    text = f"{{'descr': {kind!r}, 'fortran_order': {rng.choice((True, False, 2))}, 'shape': {shape}, }}".encode()
    return content[:start] + text[: end - start].ljust(end - start) + content[end:]


IMAGE: tuple[Mutator, ...] = (*BYTES, resize_header, resize_header, damage_below_checksums, damage_below_checksums)
# By windows an image of any size is predicted, in the time that its pixels take: a large one is no fault.
WINDOWS: tuple[Mutator, ...] = (*BYTES, *(partial(resize_header, sides=FAR_OFF),) * 2)


def edit_zip(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """A field of a zip's directory: version, flags, method, sizes, checksum, offset, or a name."""
    marks = [*_positions(content, b"PK\x01\x02"), *_positions(content, b"PK\x03\x04")]
    if not marks:
        return flip_bits(rng, content, others)
    start, found = rng.choice(marks), bytearray(content)
    is_directory = content[start + 2] == 1
    field = start + rng.choice((6, 8, 10, 16, 20, 24, 28, 42) if is_directory else (4, 6, 8, 14, 18, 22, 26))
    if is_directory and rng.random() < 0.25:  # in the name
        field = start + 46 + rng.randrange(8)
        found[field : field + 3] = rng.choice((b"../", b"/..", b"\0ab", b"\xff\xfe\xfd", b"C:/"))
    else:
        found[field : field + 4] = struct.pack("<I", rng.choice((*EDGES, 8, 9, 12, 14, 99, rng.randrange(2**32))))
    return bytes(found[: len(content)])


def _positions(content: bytes, mark: bytes) -> list[int]:
    found, at = [], content.find(mark)
    while at >= 0:
        found.append(at)
        at = content.find(mark, at + 1)
    return found


def bomb_member(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """A zip whose one member of some kilobytes unpacks to five gigabytes."""
    names = _positions(content, b"PK\x01\x02")
    if not names:
        return flip_bits(rng, content, others)
    at = rng.choice(names)
    (length,) = struct.unpack_from("<H", content, at + 28)
    (offset,) = struct.unpack_from("<I", content, at + 42)
    name = content[at + 46 : at + 46 + length]
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)
    body = block * (BOMB_BYTES // 2**24) + packer.flush()
    said = rng.choice((BOMB_BYTES % 2**32, 0xFFFFFFFE, 1000))
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 20, 0, 8, 0, 33, 0, len(body), said, length, 0) + name
    end = content.rindex(b"PK\x05\x06")
    (start,) = struct.unpack_from("<I", content, end + 16)
    directory = bytearray(content[start:end])
    struct.pack_into("<HHIIII", directory, at - start + 8, 0, 8, 33 << 16, 0, len(body), said)
    struct.pack_into("<I", directory, at - start + 42, start)
    tail = bytearray(content[end:])
    struct.pack_into("<I", tail, 16, start + len(local) + len(body))
    assert offset < start
    return content[:start] + local + body + bytes(directory) + bytes(tail)


ZIP: tuple[Mutator, ...] = (*BYTES, *(edit_zip,) * 8)
