"""A study as it is written down: a TOML file of data sets, models, optimisers, steps, arms and seeds."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = Mapping[str, Any]  # "section.field" (or "section.field.entry") to value

_KEYS = ("name", "seeds", "steps", "baseline", "settings", "data", "models", "optimisers", "arms")
_NAME = re.compile(r"[A-Za-z0-9_-]+")  # of what becomes part of a file's name; no dots, which stand between
# What the grid itself decides; a setting of the same would be silently lost.
_DECIDED = {
    "schedule.steps": "the list `steps` (--steps)",
    "training.seed": "the list `seeds` (--seeds)",
    "data.root": "--root NAME=PATH on the command line",
}


@dataclass(frozen=True)
class DataChoice:
    """A recipe's data set, and the images that answers are compared on."""

    recipe: str
    held_out: float | None  # this share of the training split; None: the validation split
    settings: Settings


@dataclass(frozen=True)
class Study:
    """Every combination of data set, model, optimiser, number of steps, arm and seed is a job."""

    name: str
    baseline: str  # the arm that all others are compared with
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    settings: Settings
    data: Mapping[str, DataChoice]
    models: Mapping[str, Settings]
    optimisers: Mapping[str, Settings]
    arms: Mapping[str, Settings]


def read_study(path: str | Path) -> Study:
    """The study of a file; an error names the file and what in it is wrong."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no study {path}.") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder. Give one of the TOML files in it.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML ({error}).") from error
    try:
        return parse_study(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_study(content: Mapping[str, Any]) -> Study:
    """The study of what tomllib read."""
    check_known("key", content, _KEYS)
    missing = [key for key in _KEYS if key not in content and key != "settings"]
    if missing:
        needed = ", ".join(key for key in _KEYS if key != "settings")
        raise ValueError(f"a study needs {needed}; {', '.join(missing)} is missing.")
    name, arms = content["name"], _choices(content, "arms")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name must be of letters, digits, '_' and '-'; got {name!r}.")
    check_known("baseline", [str(content["baseline"])], arms)
    return Study(
        name=name,
        baseline=content["baseline"],
        seeds=_integers(content, "seeds", least=0),
        steps=_integers(content, "steps", least=1),
        settings=_settings(content.get("settings", {}), "settings"),
        data={name: _data_choice(name, table) for name, table in _tables(content, "data").items()},
        models=_choices(content, "models"),
        optimisers=_choices(content, "optimisers"),
        arms=arms,
    )


def check_known(kind: str, given: Collection[Any], known: Collection[Any]) -> None:
    """Each of the given is known; of the first that is not, the nearest is named."""
    for one in given:
        if one not in known:
            nearest = difflib.get_close_matches(str(one), list(map(str, known)), n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"There is {', '.join(map(str, known))}."
            raise ValueError(f"there is no {kind} {one!r}. {hint}")


def _integers(content: Mapping[str, Any], key: str, least: int) -> tuple[int, ...]:
    values = content[key]
    whole = isinstance(values, list) and all(type(value) is int and value >= least for value in values)
    if not whole or not values or len(set(values)) < len(values):
        raise ValueError(f"{key} must be a list of different whole numbers of at least {least}; got {values!r}.")
    return tuple(values)


def _tables(content: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    tables = content[key]
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError(f"{key} must be tables, [{key}.NAME], one at least; got {tables!r}.")
    for name in tables:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{key}.{name}: a name must be of letters, digits, '_' and '-'.")
    return tables


def _choices(content: Mapping[str, Any], key: str) -> dict[str, Settings]:
    found = {}
    for name, table in _tables(content, key).items():
        check_known(f"key in [{key}.{name}]", table, ("settings",))
        found[name] = _settings(table.get("settings", {}), f"{key}.{name}")
    return found


def _data_choice(name: str, table: Mapping[str, Any]) -> DataChoice:
    check_known(f"key in [data.{name}]", table, ("recipe", "held_out", "settings"))
    recipe, share = table.get("recipe"), table.get("held_out")
    if not isinstance(recipe, str):
        raise ValueError(f"data.{name} needs recipe = NAME, one of `cacseg train --list`; got {recipe!r}.")
    if share is not None and not (isinstance(share, float) and 0.0 < share < 1.0):
        raise ValueError(f"data.{name}: held_out must be a share between 0 and 1; got {share!r}.")
    return DataChoice(recipe, share, _settings(table.get("settings", {}), f"data.{name}"))


def _settings(table: Any, where: str) -> Settings:
    """`"model.name" = "fcn"` and `model.name = "fcn"` are one; so are entries of arguments."""
    if not isinstance(table, dict):
        raise ValueError(f"{where}: settings must be a table; got {table!r}.")
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flattened(key, value)
    check_undecided(found, where)
    return found


def check_undecided(settings: Settings, where: str) -> None:
    """No setting of what the grid decides."""
    for key in settings:
        if key in _DECIDED:
            raise ValueError(f"{where}: {key} is decided by {_DECIDED[key]}, not by a setting.")


def _flattened(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value or key.count(".") >= 2:  # an empty table stays: it empties arguments
        return {key: value}
    found: dict[str, Any] = {}
    for inner, one in value.items():
        found |= _flattened(f"{key}.{inner}", one)
    return found
