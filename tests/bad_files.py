"""Files that would take a process down: sizes that headers claim, pipes, links that lead nowhere or back."""

import io
import os
import socket
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SMALL = Image.fromarray(np.zeros((8, 8, 3), np.uint8))


def encoded(kind, picture=SMALL, **options):
    content = io.BytesIO()
    picture.save(content, kind, **options)
    return content.getvalue()


def png(width, height, bits=8, kind=2):
    """A PNG of a few bytes whose header claims so many pixels; kind 0 is grey, 2 colours, 3 a palette."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))]
    parts += [(b"PLTE", bytes(6))] if kind == 3 else []
    parts += [(b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def jpeg(width, height, progressive=False):
    content = bytearray(encoded("JPEG", progressive=progressive))
    place = content.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    content[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(content)


def gif(width, height):
    """A canvas of any size around frames of 8x8."""
    content = bytearray(encoded("GIF", save_all=True, append_images=[SMALL] * 3))
    content[6:10] = struct.pack("<HH", width, height)
    return bytes(content)


def bmp(width, height):
    content = bytearray(encoded("BMP"))
    content[18:26] = struct.pack("<ii", width, height)
    return bytes(content)


def tiff(width, height):
    tags = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 1)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)


def webp(width, height):
    """The extended form, whose canvas is stated before its pictures."""
    inner = encoded("WEBP", lossless=True)[12:]
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + bytes(4) + sides + inner
    return b"RIFF" + struct.pack("<I", len(body)) + body


CLAIMS = {
    "claims.jpg": jpeg(32767, 32767),
    "claims_progressive.jpg": jpeg(32767, 32767, progressive=True),
    "claims.png": png(60_000, 60_000),
    "claims.tif": tiff(100_000, 100_000),
    "claims.bmp": bmp(50_000, -50_000),
    "claims_gif.png": gif(65_535, 65_535),
    "claims.webp": webp(16_383, 16_383),
}


def make_traps(folder: Path) -> dict[str, str]:
    """Files with suffixes of images that must not be waited for, and the words that each failure has."""
    os.mkfifo(folder / "pipe.png")
    (folder / "nowhere.png").symlink_to("gone.png")
    (folder / "itself.png").symlink_to("itself.png")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(folder / "socket.png"))  # which may have 107 bytes
    return {"pipe.png": "pipe", "nowhere.png": "gone.png", "itself.png": "link", "socket.png": "socket"}


def make_loops(folder: Path) -> None:
    """Two links of a folder to itself, and two folders that lead to each other."""
    for name in ("again", "and_again"):
        (folder / name).symlink_to(".")
    for name in ("p", "q"):
        (folder / name).mkdir()
    (folder / "p/other").symlink_to("../q")
    (folder / "q/other").symlink_to("../p")
