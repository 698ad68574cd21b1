"""What docs/data.md states: the layouts are the code's."""

import re
from pathlib import Path

from cacseg.data import DATA_SETS
from cacseg.data.class_list import builtin_classes
from cacseg.data.layouts import OWN

ROOT = Path(__file__).parents[2]


def _between(name):
    text = (ROOT / "docs/data.md").read_text()
    found = re.search(rf"<!-- {name}:.*?-->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found, f"no part named {name}"
    return found[1].strip().splitlines()[2:]


def test_layouts():
    others = {**dict.fromkeys(OWN, "yours"), "synthetic": 8, "pascal_context60": 60}
    rows = [
        f"| `{name}` | {others[name] if name in others else len(builtin_classes(name).names)} | `{tree}` |"
        for name, tree in DATA_SETS.items()
    ]
    assert _between("layouts") == rows
