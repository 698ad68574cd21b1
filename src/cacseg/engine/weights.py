"""Weights of trained models, loaded into another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cacseg.designs import DESIGNS
from cacseg.models import SegmentationModel
from cacseg.models.backbones import adapted_inputs
from cacseg.models.saved import read_model_file
from cacseg.presets import fill_preset

CLASSIFIERS = ("classifier.", "auxiliary.classifier.")


def load_weights(model: SegmentationModel, path: str | Path, *, reset_classifier: bool = False) -> list[str]:
    """Loads the tensors of a saved model into another of the same kind, in place; returns the names it left alone.

    Both must have the same number of classes, unless `reset_classifier`: then classifiers, the auxiliary's too, keep
    their initial values where the file has none that fit. The first layer of a model of colours is adapted to other
    channels. Any other mismatch is an error, and nothing is loaded.
    """
    file, arguments = read_model_file(path)
    count = arguments["num_classes"]
    if count != model.num_classes and not reset_classifier:
        raise ValueError(
            f"{path} is a model of {count} classes, and the data have {model.num_classes}. Set "
            "model.reset_classifier=true to keep everything but the classifiers."
        )
    ours = model.state_dict()
    inputs = {name: name for name in ours if name.startswith("backbone.") and name in file.tensors}
    tensors = {**file.tensors, **adapted_inputs(file.tensors, ours, inputs)}
    fits = {name for name, tensor in tensors.items() if name in ours and ours[name].shape == tensor.shape}
    if count != model.num_classes:  # rows of other classes mean nothing here, whatever their number
        fits = {name for name in fits if not name.startswith(CLASSIFIERS) or "projector" in name}
    if designs := _different_designs(arguments, model.arguments):
        if not reset_classifier:
            raise ValueError(
                f"{path} was trained with {designs[0]}, and this model has {designs[1]}: its projectors would be read "
                "in another way. Set model.preset and model.classifier_arguments as they were "
                f"({arguments['preset']}, {arguments.get('classifier_arguments') or {}}), or "
                "model.reset_classifier=true to start the projectors afresh."
            )
        fits = {name for name in fits if "_projector." not in name}
    left = [name for name in ours if name not in fits]
    wrong = left if not reset_classifier else [name for name in left if not name.startswith(CLASSIFIERS)]
    if wrong:
        raise ValueError(
            f"{path} holds a {arguments['classifier']} {arguments['name']} and does not fit this "
            f"{model.arguments['classifier']} {model.arguments['name']}: {len(wrong)} of {len(ours)} tensors are "
            f"missing or of another shape ({', '.join(wrong[:3])}). Nothing was loaded."
        )
    model.load_state_dict({name: tensors[name] for name in ours if name in fits}, strict=False)
    return left


def _different_designs(theirs: dict[str, Any], ours: dict[str, Any]) -> tuple[str, str] | None:
    """The formulas of two context-aware classifiers whose projectors are used differently; None if alike."""
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
