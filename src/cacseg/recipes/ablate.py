"""Plans of the paper's four ablation tables: a run for each row and seed; rows that are the same thing run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cacseg.recipes.compare import CONTEXT, Settings
from cacseg.recipes.config import Config, change, suggest
from cacseg.recipes.demo import demo
from cacseg.variants import VARIANTS

# The tables, and how the names of their rows begin.
TABLES = {"loss": "loss_", "distillation": "kl_", "similarity": "cosine_", "design": "design_"}
STEPS, BATCH, SIZE, IMAGES = 60, 8, (64, 64), 60


def scenes() -> Config:
    """Generated scenes, small enough for all tables with two seeds within an hour on two CPU cores."""
    model = {"model.name": "fcn", "model.output_stride": 16}
    own = {"data.size": SIZE, "data.crop": SIZE, "training.batch": BATCH, "training.workers": 0}
    own["training.scored_train_images"] = 0
    return change(demo(STEPS, IMAGES), {**model, **own})


def rows_of(table: str) -> list[str]:
    """The names of a table's rows."""
    if table not in TABLES:
        hint = suggest(table, TABLES, f"There are {', '.join(TABLES)}, and all.")
        raise ValueError(f"there is no table {table!r}. {hint}")
    return [name for name in VARIANTS if name.startswith(TABLES[table])]


def first_alike(name: str) -> str:
    """The first row of any table that is the same thing."""
    row = VARIANTS[name]
    return next(one for one, other in VARIANTS.items() if (other.classifier, other.loss) == (row.classifier, row.loss))


def ablation_arms(tables: Sequence[str], preset: str) -> dict[str, Settings]:
    """An arm for each different row of the tables."""
    names = dict.fromkeys(first_alike(name) for table in tables for name in rows_of(table))
    return {name: {**CONTEXT, "model.preset": preset, "model.variant": name} for name in names}


def with_paper(table: str, lines: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table in its order: the paper's mIoU and ours, each with its difference from the first row.

    `lines` have `arm`, `seed` and `mean_iou`; rows that no run has are left out.
    """
    by_arm = {arm: rows.set_index("seed")["mean_iou"] for arm, rows in lines.groupby("arm")}
    names = [name for name in rows_of(table) if first_alike(name) in by_arm]
    found: list[Mapping[str, Any]] = []
    for name in names:
        row, first = VARIANTS[name], VARIANTS[names[0]]
        ours = by_arm[first_alike(name)]
        difference = (ours - by_arm[first_alike(names[0])]).dropna()
        found.append(
            {
                "table": table,
                "variant": name,
                "text": row.text,
                "paper": row.paper_miou,
                "paper_difference": round(row.paper_miou - first.paper_miou, 2),
                "seeds": len(ours),
                "mean_iou": ours.mean(),
                "error": ours.sem(),
                "difference": difference.mean(),
                "difference_error": difference.sem(),
            }
        )
    return pd.DataFrame(found)
