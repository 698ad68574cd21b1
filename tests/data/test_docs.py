"""What docs/data.md states: the layouts are the code's, the throughput is the recorded one."""

import json
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


def test_throughput():
    result = json.loads((ROOT / "benchmarks/results/data_pipeline.json").read_text())
    rows = []
    for kind, title in (("ours", "cacseg"), ("theirs", "mmsegmentation 1.2.2")):
        speeds, versions = result["rounds"][kind], result["versions"][kind]
        median = result["images_per_second"][kind]
        ratio = f"{result['ratio']:.2f}x" if kind == "ours" else "1x"
        rows.append(
            f"| {title} | {versions['opencv']} | {median:.1f} | {min(speeds):.1f} to {max(speeds):.1f} | {ratio} |"
        )
    assert _between("throughput") == rows
    assert result["versions"]["theirs"]["mmsegmentation"] == "1.2.2"
    assert result["ratio"] >= 1.2
