"""conversion.safetensors: what `convert` was told, and the projectors, beside the files of the model's own library."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from cacseg._hub import download, is_hub_name
from cacseg._tensors import check_finite, read_safetensors, write_safetensors
from cacseg._text import parse_json, shorten
from cacseg.adapters.seam import SeamClassifier
from cacseg.presets import CLASSIFIER_FIELDS, MODEL_FIELDS, or_default

if TYPE_CHECKING:
    from cacseg.adapters.converted import ConvertedModel

FILE, FORMAT = "conversion.safetensors", "cacseg conversion 1"
PROJECTORS = ("context_projector.", "oracle_projector.")


class Arguments(NamedTuple):
    """Those of `convert` that a model must be converted with again."""

    seam: str | None
    classifier_arguments: dict[str, Any]
    loss_arguments: dict[str, Any]
    auxiliaries: Sequence[str]
    auxiliary_weight: float | None


def with_conversion(save: Callable[..., Any], is_converted: Callable[[Any], bool]) -> Callable[..., Any]:
    """A library's `save_pretrained` that also writes the file, for `convert(..., saved=FOLDER)`."""
    signature = inspect.signature(save)

    @functools.wraps(save)
    def save_pretrained(self: Any, save_directory: Any, *inputs: Any, **named: Any) -> Any:
        bound = signature.bind(self, save_directory, *inputs, **named)
        given = bound.arguments
        push = is_converted(self) and given.pop("push_to_hub", False)
        state = dict(given.get("state_dict") or {})  # of which transformers 5.0 leaves nothing
        result = save(*bound.args, **bound.kwargs)
        if is_converted(self) and given.get("is_main_process", True):
            write_conversion(self, Path(save_directory), state)
        if push:  # afterwards: transformers uploads what it has written itself
            name = named.pop("repo_id", None) or Path(save_directory).name
            known = inspect.signature(self.push_to_hub).parameters
            return self.push_to_hub(name, **{key: value for key, value in named.items() if key in known})
        return result

    return save_pretrained


def write_conversion(model: ConvertedModel, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """The file of a model; `state` is its state dict where the model itself holds only parts of it."""
    seam, given = model._cacseg_seam(), model.conversion.arguments
    # What the preset stands for today is written out: it may be something else tomorrow.
    resolved = {name: getattr(seam, name) for name in (*CLASSIFIER_FIELDS, "ignore_index") if name != "zero_start"}
    if seam.oracle_projector is None:  # dropped, or never there, which `given` says
        del resolved["oracle_design"]
    options = seam.criterion.options[seam.preset]._asdict()
    of_loss = {name: value for name, value in options.items() if name not in (*CLASSIFIER_FIELDS, *MODEL_FIELDS)}
    arguments = given._replace(
        seam=model.seam,
        classifier_arguments={**given.classifier_arguments, **resolved},
        loss_arguments={**given.loss_arguments, **of_loss},
    )
    own = {name: value for name, value in seam.state_dict().items() if name.startswith(PROJECTORS)}
    tensors = {name: (state or {}).get(f"{model.seam}.{name}", value) for name, value in own.items()}
    metadata = {"format": FORMAT, "arguments": json.dumps(arguments._asdict(), default=_as_list)}
    write_safetensors(folder / FILE, tensors, metadata, overwrite=True)


def read_conversion(source: str | Path, given: Arguments) -> tuple[Arguments, dict[str, Tensor]]:
    """Arguments of `convert` and the projectors, from a folder, the file itself or a name on the Hub.

    Of what is `given`, arguments of the losses and auxiliaries come before those in the file.
    """
    if given.seam is not None or given.classifier_arguments:
        names = ", ".join([*(["seam"] if given.seam else []), *given.classifier_arguments])
        raise ValueError(f"{source} holds the seam and the arguments of the classifier; got {names}. Leave it out.")
    path = Path(source).expanduser()
    if not path.exists() and is_hub_name(source):
        path = download(str(source), FILE)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"saved must be a folder that save_pretrained of a converted model wrote; there is no {path}. Give that "
            "folder, or convert with the same arguments as before and load_state_dict."
        )
    tensors, metadata = read_safetensors(path)
    check_finite(tensors.items(), path)
    try:
        if metadata.get("format") != FORMAT:
            raise ValueError(f"its format must be {FORMAT!r}; got {metadata.get('format')!r}")
        known = _read_arguments(metadata["arguments"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of a conversion ({error}).") from error
    known = known._replace(
        loss_arguments={**known.loss_arguments, **given.loss_arguments},
        auxiliaries=given.auxiliaries or known.auxiliaries,
        auxiliary_weight=or_default(given.auxiliary_weight, known.auxiliary_weight),
    )
    return known, tensors


def _read_arguments(text: str) -> Arguments:
    """Of JSON, each of its type."""
    known = Arguments(**parse_json(text))
    kinds: dict[str, Any] = {"seam": str, "classifier_arguments": dict, "loss_arguments": dict, "auxiliaries": list}
    for name, value in known._asdict().items():
        kind = kinds.get(name, (int, float))
        if not (isinstance(value, kind) or (value is None and name in ("seam", "auxiliary_weight"))):
            raise ValueError(f"its {name} is {shorten(value)}")
    if not all(isinstance(name, str) for name in known.auxiliaries):
        raise ValueError(f"its auxiliaries are {shorten(known.auxiliaries)}")
    return known


def load_projectors(seam: SeamClassifier, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Puts saved projectors into a new classifier; without those of the oracle, it was dropped before."""
    if seam.oracle_projector is not None and not any(name.startswith(PROJECTORS[1]) for name in tensors):
        seam.drop_oracle()
    own = seam.state_dict()
    shapes = {name: tuple(value.shape) for name, value in own.items() if name.startswith(PROJECTORS)}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if shapes != found:
        wrong = [name for name in sorted({*shapes, *found}) if shapes.get(name) != found.get(name)]
        first = f"{wrong[0]} must be {shapes.get(wrong[0])}; got {found.get(wrong[0])}"
        raise ValueError(
            f"{source} does not fit this model: {len(wrong)} tensors differ ({first}). Convert the model that was "
            "saved beside it."
        )
    seam.load_state_dict({**own, **tensors})


def _as_list(value: Any) -> Any:
    """Tensors and arrays, for JSON."""
    return value.tolist()
