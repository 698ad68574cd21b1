"""Describes every setting, for `cacseg train --settings`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from cacseg.engine.options import Section
from cacseg.recipes.config import Config


class Setting(NamedTuple):
    """A row of the table."""

    key: str
    kind: str
    value: str  # as --set takes it
    description: str


def describe_settings(config: Config | None = None) -> Iterator[Setting]:
    """Every setting with its value in a configuration; without one with its default, where it has one."""
    for section, of_section in Config.model_fields.items():
        for name, field in cast(type[Section], of_section.annotation).model_fields.items():
            if config is not None:
                value = spell(getattr(getattr(config, section), name))
            else:
                value = "of the recipe" if field.is_required() else spell(field.default)
            yield Setting(f"{section}.{name}", name_type(field.annotation), value, field.description or "")


def spell(value: Any) -> str:
    """A value as `parse_setting` reads it."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ",".join(map(spell, value))
    return "none" if value is None else json.dumps(value)


def name_type(annotation: Any) -> str:
    """A field's type in the spelling of values: "float | none", "int,int", "cpu | gpu"."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return name_type(inner[0])
    if origin is Literal:
        return " | ".join(str(one) or "(empty)" for one in inner)
    if origin in (Union, UnionType):
        return " | ".join(map(name_type, inner))
    if origin is tuple:
        return ",".join("..." if one is Ellipsis else name_type(one) for one in inner)
    return "none" if annotation is NoneType else (origin or annotation).__name__
