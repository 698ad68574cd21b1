"""What a saved model says of itself beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cacseg._version import __version__
from cacseg.presets import CLASSIFIER_FIELDS, MODEL_FIELDS, Preset, fill_preset

FORMAT = "cacseg model 1"


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
    return {"format": FORMAT, "cacseg_version": __version__, "model": arguments["name"], **described}


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
