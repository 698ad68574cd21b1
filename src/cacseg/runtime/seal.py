"""A checksum within an ONNX file, by which damage is found; without any library that reads such files."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from cacseg._files import write_file

KEY = "cacseg_checksum"  # of the metadata
UNSEALED = "crc32:00000000"  # its value until the file is whole, and that it is counted with
# A pair of the metadata: its value is the second field and as long as UNSEALED.
_PLACE = re.compile(re.escape(KEY.encode()) + rb"\x12" + bytes([len(UNSEALED)]) + rb"(crc32:[0-9a-f]{8})")


def seal(path: Path) -> None:
    """Puts the CRC-32 of a file in the place of `UNSEALED`."""
    content = path.read_bytes()
    found = _PLACE.search(content)
    if found is None:
        raise ValueError(f"{path} has no place for a checksum: its metadata must have {KEY}={UNSEALED}.")
    start, end = found.span(1)
    write_file(path, b"".join([content[:start], _checksum(content, start, end), content[end:]]))


def check_seal(path: Path) -> None:
    """An error where a file is not what was sealed; one without a checksum passes."""
    content = path.read_bytes()
    found = _PLACE.search(content)
    if found is not None and (now := _checksum(content, *found.span(1))) != found[1]:
        raise ValueError(
            f"{path} is damaged: it is not the file that was exported (checksum {found[1].decode()}, now "
            f"{now.decode()}). Copy it again, or export it again."
        )


def _checksum(content: bytes, start: int, end: int) -> bytes:
    view = memoryview(content)
    found = zlib.crc32(view[end:], zlib.crc32(UNSEALED.encode(), zlib.crc32(view[:start])))
    return f"crc32:{found:08x}".encode()
