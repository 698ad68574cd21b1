"""Tables of what the code knows: layouts of data sets, protocols of evaluation, architectures that `convert` knows."""

from __future__ import annotations

from typer.main import get_command

from cacseg.adapters.supported import as_markdown
from cacseg.cli import app
from cacseg.data import DATA_SETS
from cacseg.data.class_list import builtin_classes
from cacseg.data.layouts import OWN
from cacseg.recipes.named import PAPER_DATA


def layouts() -> list[str]:
    others = {**dict.fromkeys(OWN, "yours"), "synthetic": "8", "pascal_context60": "60"}
    rows = ["| name | classes | layout |", "|---|---|---|"]
    for name, tree in DATA_SETS.items():
        classes = others[name] if name in others else str(len(builtin_classes(name).names))
        rows.append(f"| `{name}` | {classes} | `{tree}` |")
    return rows


def protocols() -> list[str]:
    rows = ["| data set | scale | windows |", "|---|---|---|"]
    for name, entry in PAPER_DATA.items():
        data, windows = entry.data, "whole"
        assert data.val_scale is not None
        if data.window is not None and data.stride is not None:
            windows = f"{data.window[0]}x{data.window[1]}, stride {data.stride[0]}x{data.stride[1]}"
        rows.append(f"| `{name}` | {data.val_scale[0]}, {data.val_scale[1]} | {windows} |")
    return rows


def commands() -> list[str]:
    """Each command and the first line of its help."""
    rows = ["| command | what |", "|---|---|"]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        rows.append(f"| `cacseg {name}` | {command.help.strip().splitlines()[0].strip()} |")
    return rows


def supported() -> list[str]:
    return as_markdown().splitlines()
