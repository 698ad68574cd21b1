"""A whole model in one safetensors file that needs no other knowledge to be loaded."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cacseg._version import __version__
from cacseg.models.files import TensorFile, read_tensors
from cacseg.models.model import SegmentationModel
from cacseg.models.zoo import create_model

FORMAT = "cacseg model 1"


def describe(model: SegmentationModel) -> dict[str, str]:
    """The metadata of a saved model: strings, as safetensors wants, of JSON."""
    if not model.arguments:
        raise ValueError(
            "only a model of cacseg.create_model can be saved so that it loads again; this one was put together by "
            "hand. Save model.state_dict() instead."
        )
    changeable = {"mean": model.mean, "std": model.std, "auxiliary_weight": model.auxiliary_weight}
    facts = {
        "arguments": {**model.arguments, **changeable},
        "class_names": model.class_names,
        "palette": model.palette,
        "mean": model.mean,
        "std": model.std,
    }
    described = {key: json.dumps(value, default=_as_list) for key, value in facts.items()}
    names, palette = json.loads(described["class_names"]), json.loads(described["palette"])
    check_classes(names, palette, model.num_classes, "the model")
    return {"format": FORMAT, "cacseg_version": __version__, "model": model.arguments["name"], **described}


def load(path: str | Path, device: str | torch.device = "cpu") -> SegmentationModel:
    """The model that `model.save(path)` wrote, with its class names and palette, in evaluation mode."""
    file = read_tensors(path)
    arguments = _read_arguments(file, path)
    try:
        model = create_model(**arguments)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} describes a model that cannot be built: {error}") from error
    ours = model.state_dict()
    unknown, missing = sorted(file.tensors.keys() - ours.keys()), sorted(ours.keys() - file.tensors.keys())
    wrong = [name for name in ours.keys() & file.tensors.keys() if file.tensors[name].shape != ours[name].shape]
    if unknown or missing or wrong:
        raise ValueError(
            f"{path} does not fit the model it describes ({arguments['name']}): {len(missing)} tensors are missing "
            f"{missing[:3]}, {len(unknown)} unknown {unknown[:3]}, {len(wrong)} of another shape {wrong[:3]}. "
            f"It was written by cacseg {file.metadata.get('cacseg_version')}; this is {__version__}."
        )
    model.class_names, model.palette = (_read_json(file, key, path) for key in ("class_names", "palette"))
    check_classes(model.class_names, model.palette, model.num_classes, str(path))
    model.to(file.tensors["classifier.weight"].dtype).load_state_dict(file.tensors)
    return model.to(device).eval()


def check_classes(names: Any, palette: Any, num_classes: int, source: str) -> None:
    """A name and a colour for each class, or none at all."""
    if names is not None and not (len(names) == num_classes and all(isinstance(name, str) for name in names)):
        raise ValueError(f"class_names of {source} must be {num_classes} strings; got {str(names)[:80]}.")
    if palette is None:
        return
    colours = [colour for colour in palette if isinstance(colour, list | tuple) and len(colour) == 3]
    whole = all(isinstance(value, int) and 0 <= value <= 255 for colour in colours for value in colour)
    if len(colours) != num_classes or len(palette) != num_classes or not whole:
        raise ValueError(
            f"palette of {source} must be {num_classes} colours of red, green and blue in 0..255; got "
            f"{str(palette)[:80]}."
        )


def _as_list(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as Python's, for JSON."""
    try:
        return value.tolist()
    except AttributeError:
        raise ValueError(f"a saved model can hold numbers, strings and lists of them; got {value!r}.") from None


def _read_json(file: TensorFile, key: str, path: str | Path) -> Any:
    try:
        return json.loads(file.metadata.get(key, "null"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} has a damaged description of its model ({key}: {error}).") from error


def _read_arguments(file: TensorFile, path: str | Path) -> dict[str, Any]:
    """The arguments of `create_model` that a file holds, nothing but what `model.arguments` can hold."""
    if file.metadata.get("format") != FORMAT:
        found = f"the format {file.metadata['format']!r}" if "format" in file.metadata else "no description of one"
        raise ValueError(
            f"{path} is not a model saved by model.save (format {FORMAT!r}): it has {found}. For checkpoints of the "
            "authors or of mmsegmentation use `cacseg import-weights`, for weights of a backbone "
            "create_model(..., backbone_weights=PATH)."
        )
    arguments = _read_json(file, "arguments", path)
    # A file must not be able to start a download, to read other files or to claim sizes that it does not hold.
    allowed = set(inspect.signature(create_model).parameters) - {"pretrained", "backbone_weights"}
    if not isinstance(arguments, Mapping) or not {"name"} <= set(arguments) <= allowed:
        extra = sorted(set(arguments) - allowed) if isinstance(arguments, Mapping) else arguments
        raise ValueError(
            f"{path} describes its model with arguments that this version ({__version__}) does not know: {extra}. "
            f"It was written by cacseg {file.metadata.get('cacseg_version')}."
        )
    weight, claimed = file.tensors.get("classifier.weight"), arguments.get("num_classes")
    if weight is None or weight.ndim != 4 or weight.shape[0] != claimed:
        held = "no classifier" if weight is None else f"a classifier of shape {tuple(weight.shape)}"
        raise ValueError(f"{path} does not fit the model it describes: it claims {claimed} classes and holds {held}.")
    return dict(arguments)
