"""Values of options that hold more than one thing."""

from __future__ import annotations


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals or not value:
            raise ValueError(f"{option} must be NAME=VALUE; got {text!r}.")
        if name in found:
            raise ValueError(f"{option} {name}= is given twice.")
        found[name] = value
    return found


def lists(option: str, texts: list[str] | None) -> dict[str, list[str]]:
    found = pairs(option, texts)
    return {name: [one.strip() for one in value.replace("+", ",").split(",")] for name, value in found.items()}


def integers(option: str, text: str) -> tuple[int, ...]:
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be whole numbers between commas; got {text!r}.") from None
    if len(set(values)) < len(values):
        raise ValueError(f"{option} must be different numbers; got {text!r}.")
    return values
