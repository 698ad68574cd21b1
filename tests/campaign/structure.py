"""Damages the content of structured text: JSON, CSV, TOML, lists of lines; and nested Python objects."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Path = tuple[Any, ...]

DEEP = 100_000  # brackets within brackets
HUGE = int("9" * 400)
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 255, 256, 2**31, 2**63, HUGE, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "../../../../tmp/x", "/etc/passwd", "a\0b", "\ud800", "ä" * 300, "1", "nan", "-1", "1e999"),
    *([], {}, [None], [[]], {"": None}, [0] * 5, {"a": {"b": [1]}}, ["x", 1], [1, 2], [-1, 1e9, "y"]),
)


def mutate_value(rng: Random, value: Any, extra: Sequence[Any] = ()) -> Any:
    """The same nested lists and dictionaries with some nodes replaced, left out, repeated or renamed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _mutate_once(rng, value, (*STRANGE, *extra))
    return value


def _mutate_once(rng: Random, value: Any, strange: Sequence[Any]) -> Any:
    places = list(_places(value))
    if len(places) <= 1 or rng.random() < 0.03:
        return rng.choice(strange)
    # First the depth, then the place: else a long list of numbers would get nearly all of the damage.
    depth = rng.choice(sorted({len(place) for place in places} - {0}))
    *above, key = rng.choice([place for place in places if len(place) == depth])
    parent = value
    for step in above:
        parent = parent[step]
    action = rng.choice(("replace", "replace", "replace", "remove", "repeat", "rename", "empty", "swap"))
    if action == "remove":
        del parent[key]
    elif action == "repeat" and isinstance(parent, list):
        parent[key:key] = [parent[key]] * rng.choice((1, 3, 300))
    elif action == "rename" and isinstance(parent, dict):
        parent[rng.choice(("", "x", f" {key}", str(key).upper(), "__class__"))] = parent.pop(key)
    elif action == "empty":
        parent[key] = type(parent[key])() if isinstance(parent[key], list | dict | str | int | float) else None
    elif action == "swap":
        other = rng.choice(places)
        found = value
        for step in other:
            if not isinstance(found, list | dict) or (isinstance(found, dict) and step not in found):
                return value
            found = found[step] if not isinstance(found, list) or step < len(found) else None
        parent[key] = copy.deepcopy(found)
    else:
        parent[key] = copy.deepcopy(rng.choice(strange))
    return value


def _places(value: Any, above: Path = ()) -> Any:
    yield above
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*above, key))
    elif isinstance(value, list):
        for key in list(range(len(value)))[:200]:
            yield from _places(value[key], (*above, key))


def mutate_text(rng: Random, text: str) -> bytes:
    """How another program would have saved it, or a damaged disk."""
    action = rng.choice(
        ("mark", "utf-16", "utf-32", "latin-1", "nul", "nuls", "crlf", "cr", "cut", "twice", "spaces", "empty")
    )
    start = rng.randrange(len(text) + 1)
    known: dict[str, Callable[[], bytes]] = {
        "mark": lambda: text.encode("utf-8-sig"),
        "utf-16": lambda: text.encode("utf-16"),
        "utf-32": lambda: text.encode("utf-32"),
        "latin-1": lambda: (text[:start] + "Straße, Bäume" + text[start:]).encode("latin-1", "replace"),
        "nul": lambda: (text[:start] + "\0" + text[start:]).encode(),
        "nuls": lambda: bytes(len(text)),
        "crlf": lambda: text.replace("\n", "\r\n").encode(),
        "cr": lambda: text.replace("\n", "\r").encode(),
        "cut": lambda: text[:start].encode(),
        "twice": lambda: (text + text).encode(),
        "spaces": lambda: text.replace(" ", "\t").replace(",", " , ").encode(),
        "empty": lambda: rng.choice((b"", b" ", b"\n", b"\n" * 1000)),
    }
    return known[action]()


def mutate_json(rng: Random, content: bytes, _: Sequence[bytes] = ()) -> bytes:
    kind = rng.random()
    if kind < 0.15:
        return mutate_text(rng, content.decode())
    if kind < 0.22:
        opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
        closed = rng.random() < 0.7
        return (opening * DEEP + "0" + closing * DEEP * closed).encode()
    value = mutate_value(rng, json.loads(content))
    if kind < 0.27:  # deep below a place that is read
        mark = "@deep@"
        value = _mutate_once(rng, value, [mark])
        deep = "[" * DEEP + "]" * DEEP
        return json.dumps(value).replace(f'"{mark}"', deep).encode()
    return to_json(value)


def to_json(value: Any) -> bytes:
    return json.dumps(value, skipkeys=True).encode("utf-8", "replace")


CELLS = (
    "",
    "nan",
    "inf",
    "-1",
    "1e999",
    "x",
    '"',
    "'",
    "a,b",
    "0x10",
    "ä",
    "\0",
    "9" * 400,
    "x" * 200_000,
    "True",
    "../../x",
    "/x",
)


def mutate_csv(rng: Random, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    text = content.decode()
    if rng.random() < 0.3:
        return mutate_text(rng, text)
    rows = [line.split(",") for line in text.split("\n")]
    for _ in range(rng.choice((1, 1, 2, 5))):
        row = rng.choice([rows[0], *rows])
        action = rng.choice(("cell", "cell", "cell", "column", "row", "header", "repeat", "wider", "quote"))
        if action == "cell" and row:
            row[rng.randrange(len(row))] = rng.choice(CELLS)
        elif action == "column" and rows[0]:
            place = rng.randrange(len(rows[0]))
            for one in rows:
                del one[place : place + 1]
        elif action == "row":
            rows.remove(row)
            rows = rows or [[""]]
        elif action == "header":
            rng.shuffle(rows[0])
        elif action == "repeat":
            rows.insert(rng.randrange(len(rows) + 1), list(row))
        elif action == "wider":
            row.extend(rng.choice(CELLS) for _ in range(rng.choice((1, 3, 50))))
        elif action == "quote" and row:
            row[0] = '"' + row[0]
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "replace")


LINES = (
    *(
        "",
        "[",
        "[[[[",
        "=",
        "a =",
        "= 1",
        '"',
        '"""',
        "x = {",
        "[a]",
        "[a.b.c]",
        "a.b = 1",
        "x = 1e999",
        "x = nan",
        "#",
    ),
    *(
        "\0",
        "x" * 200_000,
        "x = 1979-05-27",
        "[tuned]",
        "[[tuned]]",
        "../../x",
        "/etc/passwd",
        "- - - -",
        "a: [",
        "&a [*a]",
    ),
    *(
        "-1 0 0 1 1 0 1",
        "0 nan nan 1 1 0 1",
        "0 1e300 2 3 4 5 6",
        "99 0 0 1 0 1 1",
        "0 0.1",
        "classes 1 2 3",
        "x 300 0 0",
    ),
    *("!!python/object/apply:os.system ['true']", "%", "nc: -1", "names: 3", "names: {a: b}", "train: [1, 2]", "nc: x"),
)


def mutate_lines(rng: Random, content: bytes, _: Sequence[bytes] = ()) -> bytes:
    """TOML, YAML, lists of classes and the like."""
    text = content.decode()
    kind = rng.random()
    if kind < 0.25:
        return mutate_text(rng, text)
    if kind < 0.32:
        opening, closing = rng.choice(
            (("x = " + "[" * DEEP, "]" * DEEP), ("[" * DEEP, "]" * DEEP), ("{a: " * 2000, "}" * 2000))
        )
        return (text + "\n" + opening + closing).encode()
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(lines))
        action = rng.choice(("replace", "insert", "remove", "repeat", "value", "swap"))
        if action == "replace":
            lines[place] = rng.choice(LINES)
        elif action == "insert":
            lines.insert(place, rng.choice(LINES))
        elif action == "remove" and len(lines) > 1:
            del lines[place]
        elif action == "repeat":
            lines[place:place] = [lines[place]] * rng.choice((1, 300))
        elif action == "value":
            head, mark, _ = lines[place].partition(rng.choice(("=", ":", " ")))
            lines[place] = f"{head}{mark} {rng.choice(CELLS)}"
        else:
            other = rng.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
    return "\n".join(lines).encode("utf-8", "replace")
