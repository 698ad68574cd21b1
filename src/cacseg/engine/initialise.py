"""Starting from a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cacseg.designs import DESIGNS
from cacseg.models import SegmentationModel
from cacseg.models.description import FORMAT
from cacseg.models.files import TensorFile, read_tensors
from cacseg.presets import fill_preset

CLASSIFIERS = ("classifier.", "auxiliary.classifier.")


def read_model_file(path: str | Path) -> tuple[TensorFile, dict[str, Any]]:
    """The tensors of a saved model, and the arguments of `create_model` that it was built with."""
    file = read_tensors(path)
    if file.metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not a model saved by model.save. For weights of a backbone use model.backbone_weights, for "
            "checkpoints of the authors or of mmsegmentation `cacseg import-weights`."
        )
    return file, json.loads(file.metadata["arguments"])


def load_weights(model: SegmentationModel, path: str | Path, *, reset_classifier: bool = False) -> list[str]:
    """The tensors of a saved model into another of the same kind, in place; gives the names that stayed as they were.

    Classes must be as many, unless `reset_classifier`: classifiers, the auxiliary's too, then keep their initial
    values wherever the file has none of their shape. Anything else that does not fit is an error and nothing is loaded.
    """
    file, arguments = read_model_file(path)
    count = arguments["num_classes"]
    if count != model.num_classes and not reset_classifier:
        raise ValueError(
            f"{path} is a model of {count} classes, and the data have {model.num_classes}. Set "
            "model.reset_classifier=true to keep everything but the classifiers."
        )
    ours = model.state_dict()
    fits = {name for name, tensor in file.tensors.items() if name in ours and ours[name].shape == tensor.shape}
    left = [name for name in ours if name not in fits]
    if count != model.num_classes:  # rows of other classes mean nothing here, whatever their number
        left = [name for name in ours if name not in fits or (name.startswith(CLASSIFIERS) and "projector" not in name)]
    if read_otherwise := _read_otherwise(arguments, model.arguments):
        if not reset_classifier:
            raise ValueError(
                f"{path} was trained with {read_otherwise[0]}, and this model has {read_otherwise[1]}: its projectors "
                "would be read in another way. Set model.preset and model.classifier_arguments as they were "
                f"({arguments['preset']}, {arguments.get('classifier_arguments') or {}}), or "
                "model.reset_classifier=true to start the projectors afresh."
            )
        left = [name for name in ours if name in left or "_projector." in name]
    wrong = left if not reset_classifier else [name for name in left if not name.startswith(CLASSIFIERS)]
    if wrong:
        raise ValueError(
            f"{path} holds a {arguments['classifier']} {arguments['name']} and does not fit this "
            f"{model.arguments['classifier']} {model.arguments['name']}: {len(wrong)} of {len(ours)} tensors are "
            f"missing or of another shape ({', '.join(wrong[:3])}). Nothing was loaded."
        )
    model.load_state_dict({name: file.tensors[name] for name in ours if name not in left}, strict=False)
    return left


def _read_otherwise(theirs: dict[str, Any], ours: dict[str, Any]) -> tuple[str, str] | None:
    """How two context-aware classifiers of the same shapes are made, in words, where that is not the same way."""
    if "plain" in (theirs["classifier"], ours["classifier"]):
        return None
    for branch in ("context_design", "oracle_design"):
        one, two = (
            (arguments.get("classifier_arguments") or {}).get(branch)
            or getattr(fill_preset(arguments["preset"]), branch)
            for arguments in (theirs, ours)
        )
        if one != two and "none" not in (one, two):
            return DESIGNS[one].formula, DESIGNS[two].formula
    return None
