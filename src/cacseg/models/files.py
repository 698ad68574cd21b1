"""Files of tensors: read without running anything they hold, written whole or not at all."""

from __future__ import annotations

import json
import os
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
from safetensors.torch import save_file
from torch import Tensor

# Objects that training frameworks leave beside the weights (histories, configurations, scores). They are read as
# empty placeholders; whatever else a pickle asks for is refused.
HARMLESS_MODULES = ("mmengine.", "mmcv.", "numpy.")


class TensorFile(NamedTuple):
    """What a file holds."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]  # of safetensors; of a checkpoint of mmsegmentation its classes, as JSON


def read_tensors(path: str | Path) -> TensorFile:
    """The tensors of a .safetensors, .pth, .pt or .bin file, on the CPU, by name.

    Pickled files are read with torch's `weights_only`: nothing in them is ever executed. Dictionaries around the
    weights ("state_dict", "model", ...) are taken off. A file that is missing, cut short, of another kind or
    hostile gives a clear error.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"a file of weights is needed; {path} {what}.")
    with path.open("rb") as file:
        start = file.read(9)
    if len(start) < 9:
        raise ValueError(f"{path} is no file of weights: it has {len(start)} bytes. Was the download cut short?")
    if start[8:9] == b"{":  # looked at first: the length that stands before it may be any eight bytes
        return _read_safetensors(path)
    if start[:2] == b"PK" or start[:1] == b"\x80":
        content = _read_pickled(path)
        return TensorFile(_find_weights(content, path), _find_classes(content))
    raise ValueError(
        f"{path} is neither a safetensors file nor a PyTorch checkpoint (it starts with {start!r}). "
        "Give a .safetensors, .pth or .pt file."
    )


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """A safetensors file, written beside its place and moved there when it is whole.

    A crash, a full disk or a folder that cannot be written to leaves whatever was at `path` as it was.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists already. Choose another name, or pass overwrite=True to replace it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist. Create it first.")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, scratch, metadata=dict(metadata))
        mask = os.umask(0)
        os.umask(mask)
        scratch.chmod(0o666 & ~mask)  # as any new file; safetensors keeps its own to the owner
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{path} could not be written ({error}). Is the disk full, or the folder read-only?") from error
    finally:
        scratch.unlink(missing_ok=True)


def _read_safetensors(path: Path) -> TensorFile:
    try:
        with safe_open(path, framework="pt") as file:
            return TensorFile({name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}). Was the download or the copy cut short?") from error


def _read_pickled(path: Path) -> Any:
    try:
        placeholders = _placeholders(path)
        with (
            _quiet(),
            torch.serialization.safe_globals(placeholders) if placeholders else nullcontext(),
        ):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error)) or re.search(r"(?:class|function) (\S+)", str(error))
        asks = f"asks for {wanted[1]}" if wanted else "holds more than weights"
        raise ValueError(
            f"{path} {asks}, which reading weights does not need: loading it could run code, so it was refused and "
            "nothing was run. Export the weights alone: torch.save(checkpoint['state_dict'], ...)."
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is damaged ({reason}). Was the download or the copy cut short?") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks on pickle protocols that it reads, or refuses, all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _placeholders(path: Path) -> list[Any]:
    """An inert class for each harmless object that the file mentions, under that object's own name."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (AttributeError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError):
        return []  # an old torch, an old format or a damaged file: torch.load speaks for itself
    harmless = [name for name in names if name.startswith(HARMLESS_MODULES)]
    return [
        type(name, (_Placeholder,), {"__module__": module, "__qualname__": name})
        for module, _, name in (full.rpartition(".") for full in harmless)
    ]


class _Placeholder:
    """Takes whatever a pickle hands it and keeps nothing."""

    def __new__(cls, *_: Any) -> _Placeholder:
        return object.__new__(cls)

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def _find_weights(content: Any, path: Path) -> dict[str, Tensor]:
    """The dictionary of tensors within what a checkpoint holds."""
    for key in ("state_dict", "model_state_dict", "model", "state_dict_ema"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a dictionary of tensors; got {type(content).__name__}.")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        keys = ", ".join(str(key) for key in list(content)[:5])
        raise ValueError(f"{path} holds no tensors at its top level or under 'state_dict'; got the keys {keys}.")
    return tensors


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
    return {key: json.dumps(value) for key, value in found.items() if isinstance(value, list | tuple)}
