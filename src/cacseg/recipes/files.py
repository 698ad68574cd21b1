"""config.json: the configuration of a run beside its weights, readable again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cacseg._files import write_file
from cacseg._text import parse_json, shorten
from cacseg._version import __version__
from cacseg.models.files import FORMAT as MODEL_FORMAT
from cacseg.models.files import keep_preset, preset_values
from cacseg.recipes.config import Config, change, flat, validated

CONFIG = "config.json"
FORMAT = "cacseg run 1"

# Settings that a run decides when it starts, and the value that asks for it. The decision stands in config.json.
DECIDED = {
    "data.resident": "auto",
    "training.graph": "auto",
    "training.batch": "auto",
    "model.class_weights": "frequency",
    "model.mean": None,  # of data.bands
    "model.std": None,
}

# Settings that may differ when a run is resumed: they change when and where things happen, not what is learnt. Files
# that a run started from are not read again.
RESUMABLE_CHANGES = frozenset(
    {
        "data.root",
        "data.max_pixels",
        "model.weights",
        "model.backbone_weights",
        "model.pretrained",
        "training.workers",
        "training.validate_every",
        "training.patience",
        "training.scored_train_images",
        "training.save_every",
        "training.log_every",
        "training.accelerator",
        "training.devices",
        "training.nodes",
        "training.loggers",
    }
)


class SavedConfig(NamedTuple):
    """What config.json holds."""

    recipe: str
    config: Config
    model_arguments: dict[str, Any]  # of create_model, filled in: the same model without the files it started from
    python: dict[str, str] = {}  # noqa: RUF012 (what `cacseg.train` was given, by the names of the classes)


def write_config(
    folder: Path,
    recipe: str,
    config: Config,
    model_arguments: Mapping[str, Any],
    python: Mapping[str, str] | None = None,
) -> None:
    content = {
        "format": FORMAT,
        "cacseg_version": __version__,
        "recipe": recipe,
        "config": config.model_dump(mode="json"),
        "model_arguments": dict(model_arguments),
        "preset_values": preset_values(model_arguments),
        **({} if python is None else {"python": dict(python)}),
    }
    write_file(folder / CONFIG, json.dumps(content, indent=2) + "\n", flush=True)


def read_config(path: str | Path) -> SavedConfig:
    """The configuration of a run: its folder, or the file itself."""
    path = Path(path)
    file = path / CONFIG if path.is_dir() else path
    try:
        content = parse_json(file.read_bytes())
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {shorten(content.get('format'))}, not {FORMAT!r}")
        if not isinstance(content["recipe"], str):
            raise ValueError(f"its recipe is {shorten(content['recipe'])}")
        arguments = keep_preset(content["model_arguments"], content.get("preset_values"))
        return SavedConfig(content["recipe"], validated(content["config"]), arguments, dict(content.get("python", {})))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{file} does not exist. Pass the folder that `cacseg train -o` wrote, or its {CONFIG}."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no configuration of a run ({error}).") from error


def is_run(folder: Path) -> bool:
    """Whether a folder has a configuration that is not of a saved model, which `save_pretrained` writes."""
    try:
        return bool(parse_json((folder / CONFIG).read_bytes())["format"] != MODEL_FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return (folder / CONFIG).is_file()  # `read_config` says what is wrong with it


def read_recipe(path: str | Path) -> tuple[str, Config]:
    """A name and a configuration to start a run with: of an earlier run, or of --print-config."""
    path = Path(path)
    if path.is_file():
        try:
            content = parse_json(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} is no JSON ({error}).") from error
        if isinstance(content, dict) and "format" not in content and set(content) & set(Config.model_fields):
            try:
                return path.stem, validated(content)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
    if path.is_dir() and not (path / CONFIG).exists():
        raise FileNotFoundError(
            f"{path} is no run: {path / CONFIG} does not exist. For a folder of images and labels: "
            f"cacseg train folder --root {path}. To repeat a run, pass the folder that `cacseg train -o` wrote."
        )
    saved = read_config(path)
    return saved.recipe, saved.config


def differences(before: Config, now: Config) -> list[str]:
    """The settings that a resumed run may not change, with both values; "auto" and the like are what it has decided."""
    first, second = dict(flat(before)), dict(flat(now))
    return [
        f"{key} was {first[key]!r}, now {second[key]!r}"
        for key in first
        if key not in RESUMABLE_CHANGES and first[key] != second[key] and second[key] != DECIDED.get(key, object)
    ]


def keep_decisions(config: Config, before: Config) -> Config:
    """The configuration of a resumed run with what the run has decided."""
    known, wanted = dict(flat(before)), dict(flat(config))
    return change(config, {key: known[key] for key, word in DECIDED.items() if wanted[key] == word})
