"""Files of tensors: read without running anything they hold, written whole or not at all."""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cacseg._files import write_file

# What training frameworks leave beside the weights (histories, configurations, scores) is read as empty
# placeholders; whatever else a pickle asks for is refused.
PLACEHOLDER_PACKAGES = ("mmengine.", "mmcv.")
PLACEHOLDER_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.dtypes")
# Of those, the names in old files, whose contents torch cannot list beforehand.
PLACEHOLDER_NAMES = (
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
)


class TensorFile(NamedTuple):
    """What a file holds."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]  # of safetensors; of a checkpoint of mmsegmentation its classes, as JSON
    skipped: tuple[str, ...] = ()  # names beside the tensors that hold something else


def read_tensors(path: str | Path) -> TensorFile:
    """The tensors of a .safetensors, .pth, .pt or .bin file, on the CPU, by name.

    Pickled files are read with torch's `weights_only`: nothing in them is ever executed. Dictionaries around the
    weights ("state_dict", "model", ...) are taken off. A file that is missing, cut short, of another kind or
    hostile gives a clear error.
    """
    path = Path(path)
    if not path.is_file():
        what = "is no regular file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"a file of weights is needed; {path} {what}.")
    with path.open("rb") as file:
        start = file.read(9)
    if len(start) < 9:
        raise ValueError(f"{path} is no file of weights: it has {len(start)} bytes. Was the download cut short?")
    if start[8:9] == b"{":  # looked at first: the length that stands before it may be any eight bytes
        return _read_safetensors(path)
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return _find_weights(_read_pickled(path), path)
    raise ValueError(
        f"{path} is neither a safetensors file nor a PyTorch checkpoint (it starts with {start!r}). "
        "Give a .safetensors, .pth or .pt file."
    )


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """A safetensors file, whole or not at all: what was at `path` stays where writing fails."""
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, dict(metadata))
    write_file(path, content, overwrite=overwrite, flush=True)


def list_names(names: list[str], most: int = 5) -> str:
    """The first few, for an error."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "") or "none"


def _read_safetensors(path: Path) -> TensorFile:
    try:
        with safe_open(path, framework="pt") as file:
            return TensorFile({name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is damaged ({error}). Was the download or the copy cut short?") from error


def _read_pickled(path: Path) -> Any:
    if zipfile.is_zipfile(path) and any(name.endswith("/constants.pkl") for name in zipfile.ZipFile(path).namelist()):
        raise ValueError(f"{path} is a TorchScript program, not a file of weights. Save its state_dict() instead.")
    try:
        placeholders = _placeholders(path)
        with _quiet(), torch.serialization.safe_globals(placeholders) if placeholders else nullcontext():
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or forged file makes of the reader
        wanted = re.search(r"GLOBAL ([\w.]+) (?:was not an allowed|whose module)", str(error))
        if isinstance(error, pickle.UnpicklingError) and wanted:
            raise ValueError(
                f"{path} asks for {wanted[1]}, which reading weights does not need: loading it could run code, so it "
                "was refused and nothing was run. Export the weights alone: torch.save(checkpoint['state_dict'], ...)."
            ) from error
        reason = str(error).splitlines()[0].split(". ")[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} cannot be read ({reason}): it is damaged, or holds objects beside its weights. Was the download "
            "or the copy cut short?"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on pickle protocols that it reads, or refuses, all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _placeholders(path: Path) -> list[Any]:
    """An inert class for each harmless object that the file mentions, under that object's own name."""
    names = set(PLACEHOLDER_NAMES)
    try:
        names.update(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # an old torch (which lacks it), an old format or a damaged file: torch.load speaks for itself
        if torch.__version__ < "2.6":
            return []
    parts = [full.rpartition(".") for full in sorted(names)]
    return [
        type(name, (_Placeholder,), {"__module__": module, "__qualname__": name})
        for module, _, name in parts
        if module in PLACEHOLDER_MODULES or f"{module}.".startswith(PLACEHOLDER_PACKAGES)
    ]


class _Placeholder:
    """Takes whatever a pickle hands it and keeps nothing."""

    def __new__(cls, *_: Any) -> _Placeholder:
        return object.__new__(cls)

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def _find_weights(content: Any, path: Path) -> TensorFile:
    """The dictionary of tensors within what a checkpoint holds."""
    metadata = _find_classes(content)
    for key in ("state_dict", "model_state_dict", "model", "state_dict_ema"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a dictionary of tensors; got {type(content).__name__}.")
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and _is_plain(value)}
    if not tensors:
        keys = ", ".join(str(key) for key in list(content)[:5])
        raise ValueError(f"{path} holds no tensors at its top level or under 'state_dict'; got the keys {keys}.")
    return TensorFile(tensors, metadata, tuple(str(name) for name in content if name not in tensors))


def _is_plain(value: Any) -> bool:
    """A dense tensor with values."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def _find_classes(content: Any) -> dict[str, str]:
    """Class names and palette, where mmsegmentation 0.x ("CLASSES") and 1.x ("dataset_meta") keep them."""
    meta = content.get("meta") if isinstance(content, Mapping) else None
    if not isinstance(meta, Mapping):
        return {}
    newer = meta["dataset_meta"] if isinstance(meta.get("dataset_meta"), Mapping) else {}
    found = {
        "class_names": meta.get("CLASSES") or newer.get("classes"),
        "palette": meta.get("PALETTE") or newer.get("palette"),
    }
    stated = {}
    for key, value in found.items():
        try:
            stated[key] = json.dumps(value)
        except TypeError:  # arrays and the like, which were not read
            continue
    return {key: value for key, value in stated.items() if value != "null"}
