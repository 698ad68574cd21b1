"""Files of tensors: read without running anything they hold, written whole or not at all.

And what a saved model says of itself beside its weights.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cacseg._tensors import read_safetensors, write_safetensors
from cacseg._version import __version__
from cacseg.presets import CLASSIFIER_FIELDS, MODEL_FIELDS, Preset, fill_preset
from cacseg.runtime.backend import check_classes as check_classes

FORMAT = "cacseg model 1"  # of a saved model
NAMES = ("format", "cacseg_version", "model")  # in its description; all else is JSON

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
    weights ("state_dict", "model", ...) are taken off.
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
        return TensorFile(*read_safetensors(path))
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
    write_safetensors(Path(path), tensors, metadata, overwrite=overwrite)


def list_names(names: list[str]) -> str:
    """The first few, for an error."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


def _read_pickled(path: Path) -> Any:
    if _is_program(path):
        raise ValueError(f"{path} is a TorchScript program, not a file of weights. Save its state_dict() instead.")
    try:
        placeholders = _placeholders(path)
        allowed = torch.serialization.safe_globals(placeholders) if placeholders else nullcontext()
        with warnings.catch_warnings(), allowed:
            # torch's remarks on pickle protocols that it reads, or refuses, all the same
            warnings.simplefilter("ignore")
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


def _is_program(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError):  # torch.load says what is wrong
        return False


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
    tensors = {
        name: value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
    }
    if not tensors:
        keys = ", ".join(str(key) for key in list(content)[:5])
        raise ValueError(f"{path} holds no tensors at its top level or under 'state_dict'; got the keys {keys}.")
    return TensorFile(tensors, metadata, tuple(str(name) for name in content if name not in tensors))


def _find_classes(content: Any) -> dict[str, str]:
    """Class names and palette, where mmsegmentation 0.x ("CLASSES") and 1.x ("dataset_meta") keep them."""
    meta = content.get("meta") if isinstance(content, Mapping) else None
    if not isinstance(meta, Mapping):
        return {}
    newer = meta["dataset_meta"] if isinstance(meta.get("dataset_meta"), Mapping) else {}
    stated = {}
    for key, name in (("class_names", "classes"), ("palette", "palette")):
        value = meta.get(name.upper()) or newer.get(name)
        with suppress(TypeError):  # arrays and the like, which were not read
            stated[key] = json.dumps(value)
    return {key: value for key, value in stated.items() if value != "null"}


def describe(arguments: Mapping[str, Any], class_names: Any, palette: Any) -> dict[str, str]:
    """The metadata of a saved model, strings as safetensors wants: the arguments of `create_model`, and its classes."""
    if not arguments:
        raise ValueError(
            "only a model of cacseg.create_model can be saved so that it loads again; this one was put together by "
            "hand. Save model.state_dict() instead."
        )
    facts = {"arguments": arguments, "class_names": class_names, "palette": palette}
    facts |= {key: arguments[key] for key in ("mean", "std")}  # once more, for readers of the file
    facts["preset_values"] = preset_values(arguments)
    described = {key: json.dumps(value, default=_as_list) for key, value in facts.items()}
    names, colours = json.loads(described["class_names"]), json.loads(described["palette"])
    check_classes(names, colours, arguments["num_classes"], "the model")
    return {**dict(zip(NAMES, (FORMAT, __version__, arguments["name"]), strict=True)), **described}


def preset_values(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the name of a preset stands for as a file is written; None with a plain classifier, which needs none."""
    if arguments.get("classifier", "plain") == "plain":
        return None
    return fill_preset(arguments["preset"])._asdict()


def keep_preset(arguments: Mapping[str, Any], values: Any) -> dict[str, Any]:
    """The arguments with what their preset stood for when a file was written, where today it is something else.

    `values` are the `preset_values` of then. What the arguments say themselves stays.
    """
    if values is None:
        return dict(arguments)
    if not isinstance(values, Mapping) or not set(values) <= set(Preset._fields):
        raise ValueError(f"its preset has values that this version ({__version__}) does not know: {values}.")
    today = fill_preset(arguments["preset"])._asdict()
    kept = dict(arguments)
    groups = {one: dict(arguments.get(one, {})) for one in ("classifier_arguments", "loss_arguments")}
    for field, value in values.items():
        # Where projectors start matters to new weights alone.
        if value == today[field] or field == "zero_start" or arguments.get(field) is not None:
            continue
        if field in MODEL_FIELDS:
            kept[field] = value
        else:
            groups["classifier_arguments" if field in CLASSIFIER_FIELDS else "loss_arguments"].setdefault(field, value)
    return {**kept, **groups}


def _as_list(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as Python's, for JSON."""
    try:
        return value.tolist()
    except AttributeError:
        raise ValueError(f"a saved model can hold numbers, strings and lists of them; got {value!r}.") from None
