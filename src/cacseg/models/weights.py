"""Weights for a backbone from a local file."""

from __future__ import annotations

import json
import warnings
from typing import NamedTuple

from cacseg.models.backbones import Backbone
from cacseg.models.files import TensorFile, list_names


class LoadReport(NamedTuple):
    """What became of every name on both sides."""

    loaded: list[str]  # our names that the file had a tensor for
    unused: list[str]  # names of the file that the backbone has no place for
    untouched: list[str]  # our names that no file of an image classifier can have: they keep their initial values


def load_backbone_weights(backbone: Backbone, file: TensorFile, source: str = "the file") -> LoadReport:
    """Weights in timm's names into the backbone, in place.

    Every tensor of the backbone must be in the file and have its shape, else nothing is loaded and the error names
    what is wrong, calling the file `source`. What the file has beside them (the head of an image classifier) is
    named in a warning.
    """
    given, ours = file.tensors, backbone.net.state_dict()
    for prefix in ("backbone.net.", "backbone."):  # of a whole model of ours, or of another library
        inside = {name: tensor for name, tensor in given.items() if name.startswith(prefix)}
        if inside:
            given = {name.removeprefix(prefix): tensor for name, tensor in inside.items()}
            break
    # timm's feature extractors flatten names, `stages.0.` becoming `stages_0.`: both are one name here.
    by_name = {name.replace("_", "."): name for name in given}
    matches = {name: by_name[key] for name in ours if (key := name.replace("_", ".")) in by_name}

    # A counter that nothing reads, and output normalisations that only the pyramid has.
    untouched = [name for name in ours if name.startswith("norms.") and name not in matches]
    optional = {*untouched, *(name for name in ours if name.endswith("num_batches_tracked"))}
    missing = [name for name in ours if name not in matches and name not in optional]
    wrong = [name for name, theirs in matches.items() if given[theirs].shape != ours[name].shape]
    if missing or wrong:
        lines = [f"{source} does not fit {backbone.name}; nothing was loaded."]
        if missing:
            lines.append(f"{len(missing)} of {len(ours)} tensors are not in the file: {list_names(missing)}.")
        if wrong:
            shapes = [f"{name} {tuple(given[matches[name]].shape)} for {tuple(ours[name].shape)}" for name in wrong]
            lines.append(f"{len(wrong)} have another shape: {list_names(shapes)}.")
        lines.append(f"The file must hold {backbone.name} in timm's names.")
        raise ValueError(" ".join(lines))
    backbone.net.load_state_dict({name: given[theirs] for name, theirs in matches.items()}, strict=False)
    unused = [name for name in given if name not in matches.values()]
    if unused:
        warnings.warn(
            f"{source}: {len(unused)} tensors have no place in {backbone.name} and were not loaded: "
            f"{list_names(unused)}.",
            stacklevel=2,
        )
    return LoadReport(list(matches), unused, untouched)


class Preprocessing(NamedTuple):
    """What images and convolutions must be like for weights to mean what they meant in training."""

    padding: str | None = None
    mean: list[float] | None = None
    std: list[float] | None = None


def read_preprocessing(file: TensorFile, source: str = "the file") -> Preprocessing:
    """What the metadata of a file states: padding as it is, mean and std as JSON lists."""
    stated = {}
    for key in ("mean", "std"):
        try:
            stated[key] = json.loads(file.metadata.get(key, "null"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{source} states its {key} as {file.metadata[key]!r}, which is no JSON.") from error
        if stated[key] is not None and not isinstance(stated[key], list):
            raise ValueError(f"{source} must state its {key} as a list, one number a channel; got {stated[key]!r}.")
    return Preprocessing(file.metadata.get("padding"), stated["mean"], stated["std"])
