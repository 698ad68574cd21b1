"""safetensors files: read with care, written with a checksum of all that they hold; and values that must be finite."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from cacseg._files import write_file

CHECKSUM = "checksum"  # in the metadata


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file, without its checksum, which must be right; files from elsewhere have none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except (SafetensorError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is damaged ({reason}). Was the download or the copy cut short?") from error
    written = metadata.pop(CHECKSUM, None)
    if written is not None and written != checksum(tensors, metadata):
        raise ValueError(
            f"{path} is damaged: its tensors or its description are not those that were saved (checksum {written}, "
            f"now {checksum(tensors, metadata)}). Copy or download it again. Who changed it on purpose leaves "
            f"{CHECKSUM!r} out of its metadata."
        )
    return tensors, metadata


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """A file with its checksum, whole or not at all: what was at `path` stays where writing fails."""
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_file(path, save(own, {**metadata, CHECKSUM: checksum(own, metadata)}), overwrite=overwrite, flush=True)


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """CRC-32 of the metadata and of names, types, shapes and bytes of the tensors, whatever their order.

    It finds damage; it is no signature.
    """
    names = sorted(tensors)
    shapes = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    found = zlib.crc32(json.dumps([sorted(metadata.items()), shapes]).encode())
    for name in names:
        found = zlib.crc32(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return f"crc32:{found:08x}"


def check_finite(tensors: Iterable[tuple[str, Tensor]], source: str | Path) -> None:
    """An error with the names of tensors that hold NaN or infinity."""
    bad = [name for name, tensor in tensors if not is_finite(tensor)]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise ValueError(
            f"weights must be finite; {source} holds NaN or infinity in {', '.join(bad[:3])}{more}. Did its training "
            "diverge, or was the file damaged? Take another checkpoint of it."
        )


def is_finite(tensor: Tensor) -> bool:
    """The smallest and the largest value are found ten times as fast as each is looked at, and NaN is both."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return True
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = values.float() if values.element_size() < 4 else values  # of 8 and 16 bits, for which not all is there
    return all(bool(one.isfinite()) for one in torch.aminmax(values))
