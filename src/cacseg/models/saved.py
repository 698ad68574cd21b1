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
    facts = {
        "arguments": model.arguments,
        "class_names": model.class_names,
        "palette": model.palette,
        "mean": model.mean,
        "std": model.std,
    }
    return {
        "format": FORMAT,
        "cacseg_version": __version__,
        "model": model.arguments["name"],
        **{key: json.dumps(value) for key, value in facts.items()},
    }


def load(path: str | Path, device: str | torch.device = "cpu") -> SegmentationModel:
    """The model that `model.save(path)` wrote, with its class names and palette, in evaluation mode."""
    file = read_tensors(path)
    arguments = _read_arguments(file, path)
    try:
        model = create_model(**arguments)
    except (TypeError, ValueError) as error:
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
    model.load_state_dict(file.tensors)
    model.class_names = json.loads(file.metadata.get("class_names", "null"))
    model.palette = json.loads(file.metadata.get("palette", "null"))
    return model.to(device).eval()


def _read_arguments(file: TensorFile, path: str | Path) -> dict[str, Any]:
    """The arguments of `create_model` that a file holds, nothing but what `model.arguments` can hold."""
    if file.metadata.get("format") != FORMAT:
        found = f"the format {file.metadata['format']!r}" if "format" in file.metadata else "no description of one"
        raise ValueError(
            f"{path} is not a model saved by model.save (format {FORMAT!r}): it has {found}. For checkpoints of the "
            "authors or of mmsegmentation use `cacseg import-weights`, for weights of a backbone "
            "create_model(..., backbone_weights=PATH)."
        )
    try:
        arguments = json.loads(file.metadata["arguments"])
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} has a damaged description of its model ({error!r}).") from error
    # A file must not be able to start a download or to read other files.
    allowed = set(inspect.signature(create_model).parameters) - {"pretrained", "backbone_weights"}
    if not isinstance(arguments, Mapping) or not {"name"} <= set(arguments) <= allowed:
        extra = sorted(set(arguments) - allowed) if isinstance(arguments, Mapping) else arguments
        raise ValueError(
            f"{path} describes its model with arguments that this version ({__version__}) does not know: {extra}. "
            f"It was written by cacseg {file.metadata.get('cacseg_version')}."
        )
    return dict(arguments)
