"""Writes the measured tables of README.md and docs anew: make tables

A table stands between <!-- NAME: ... --> and <!-- /NAME -->. Results come from docs/records, times and memory from
benchmarks/results, the rest from the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import code_tables as code
import result_tables as results
import search_tables as search
import time_tables as times

from cacseg.recipes.ablate import TABLES

ROOT = Path(__file__).resolve().parent.parent
Table = Callable[[], list[str]]
PAGES: dict[str, dict[str, Table]] = {
    "README.md": {"gains": results.readme_table, "costs": times.readme_table},
    "docs/results.md": {
        "gains": results.gains_table,
        "kept_aside": results.kept_aside_table,
        "groups": results.group_table,
        "classes": results.class_table,
        "adapting": results.adapting_table,
        "search": search.search_table,
        "long": search.long_table,
        "tried": search.tried_table,
    },
    "docs/speed.md": {
        "loss": times.loss_times,
        "step": times.step_times,
        "infer": times.inference_times,
        "jobs": times.jobs,
        "cores": times.core_times,
    },
    "docs/cli.md": {"list": code.commands},
    "docs/convert.md": {"supported": code.supported},
    "docs/evaluation.md": {"protocols": code.protocols},
    "docs/models.md": {"blocks": times.blocks, "dilated": times.dilated_times, "pyramid": times.pyramid_times},
    "docs/training.md": {"heads": results.heads, "balance": results.balance_table},
    "docs/large.md": {
        "large": partial(times.large_images, "large_image"),
        "kept": partial(times.large_images, "large_image_kept"),
        "rates": times.side_rates,
        "tiles": times.tiled_heads,
        "shards": times.shard_rates,
        "carry": times.carried_context,
    },
    "docs/export.md": {
        "models": times.export_differences,
        "converted": times.converted_differences,
        "precisions": times.export_precisions,
        "onnx": times.onnx_times,
    },
    "docs/data.md": {
        "label_formats": times.label_formats,
        "label_drawing": times.label_drawing,
        "throughput": times.throughput,
        "layouts": code.layouts,
    },
    "docs/faults.md": {"fuzz": times.damaged_files, "chaos": times.killed_jobs, "long": times.long_jobs},
    "docs/paper.md": {
        "models": results.paper_table,
        **{name: partial(results.ablation, name) for name in TABLES},
    },
}


def rendered(page: str) -> str:
    """A page with its tables made anew."""
    text = (ROOT / page).read_text()
    for name, table in PAGES[page].items():
        body = "\n".join(table())
        pattern = rf"(<!-- {name}: .*?-->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(pattern, rf"\g<1>{body}\n\g<2>", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{page} must have the table {name!r} once; it has it {count} times.")
    return text


def main() -> None:
    for page in PAGES:
        before, after = (ROOT / page).read_text(), rendered(page)
        if before != after:
            (ROOT / page).write_text(after)
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
