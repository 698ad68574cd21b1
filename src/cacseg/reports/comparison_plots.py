"""Pictures of a comparison: paired differences of each arm, and of each class by how often it occurs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cacseg.reports.comparison import CELL, GROUPS, own, paired
from cacseg.reports.pictures import saved

# Okabe and Ito's colours, told apart by colour-blind readers; markers differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP"  # one fewer than colours, so that both repeat together after 42
FORMATS = ("png", "svg")
COLUMNS = 3


def comparison_pictures(
    results: pd.DataFrame, classes: pd.DataFrame, arms: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the pictures; none where no arm has a seed in common with the baseline."""
    rows = paired(own(results), arms[0], "mean_iou", [*CELL, "seed"])
    rows = rows[(rows["arm"] != arms[0]) & rows["difference"].notna()]
    if rows.empty:
        return
    figures = {"differences": difference_figure(rows, arms[0])}
    models = own(classes).groupby(CELL[:2], sort=False)
    for (data, model), of_model in models:
        name = "classes" if len(models) == 1 else "classes-" + "-".join(f"{data} {model}".replace("/", " ").split())
        figures[name] = class_figure(of_model, arms)
    for name, figure in figures.items():
        for format in FORMATS:
            yield f"{name}.{format}", saved(figure, format)


def difference_figure(rows: pd.DataFrame, baseline: str) -> Figure:
    """A panel for each cell, a row for each arm: a dot for each seed, the mean and two standard errors above them."""
    arms, cells = list(dict.fromkeys(rows["arm"])), list(rows.groupby(CELL, sort=False))
    columns = min(COLUMNS, len(cells))
    lines = math.ceil(len(cells) / columns)
    figure, places = panels(lines, columns, (0.9 + 0.08 * max(map(len, arms)), 3.4), (1.2, 0.55 * len(arms) + 0.5))
    for axes in places[len(cells) :]:
        axes.set_visible(False)
    for axes, (cell, of_cell) in zip(places, cells, strict=False):
        draw_rows(axes, of_cell, arms, "arm", [""], "")
        axes.set_title(f"{cell[0]}, {cell[2]} steps\n{cell[1]}", fontsize=9, parse_math=False)
        axes.set_xlabel(f"mIoU minus {baseline}, points", fontsize=9, parse_math=False)
        axes.tick_params(axis="x", labelbottom=True)
    figure.suptitle("dots: seeds; bars: mean ± 2 standard errors", fontsize=9)
    return figure


def class_figure(classes: pd.DataFrame, arms: Sequence[str]) -> Figure:
    """A panel for each number of steps, a row for each class, the rarest on top: the mean difference of each arm."""
    there = classes[classes["labelled"] > 0.0].sort_values("labelled", kind="stable")
    shares = there.drop_duplicates("class").set_index("class")["labelled"]
    rows = paired(there, arms[0], "iou", [*CELL, "class", "seed"])
    rows = rows[(rows["arm"] != arms[0]) & rows["difference"].notna()]
    names, others = list(shares.index), [arm for arm in arms[1:] if arm in set(rows["arm"])]
    cells = list(rows.groupby(CELL, sort=False))
    height = max(0.2, 0.1 + 0.09 * len(others))
    left = 1.4 + 0.075 * max(map(len, names))
    figure, places = panels(1, len(cells), (left, 3.4), (1.5, height * len(names)))
    for axes, (cell, of_cell) in zip(places, cells, strict=True):
        draw_rows(axes, of_cell, names, "class", others, "arm")
        axes.set_yticks(range(len(names)), [f"{name}  {shares[name]:.2g} %" for name in names])
        for edge, _ in list(GROUPS.values())[1:]:
            axes.axhline((shares < edge).sum() - 0.5, color="0.45", linewidth=0.9, linestyle="--", zorder=1)
        axes.set_title(f"{cell[0]}, {cell[2]} steps\n{cell[1]}", fontsize=9, parse_math=False)
        axes.set_xlabel(f"IoU minus {arms[0]}, points", fontsize=9, parse_math=False)
    handles = places[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=min(3, len(others)), fontsize=8.5)
    words = "share of labelled pixels; dashed: " + " and ".join(f"{low:g} %" for low, _ in list(GROUPS.values())[1:])
    figure.suptitle(f"mean ± 2 standard errors by class, with its {words}", fontsize=9)
    return figure


def panels(lines: int, columns: int, widths: Sequence[float], heights: Sequence[float]) -> tuple[Figure, list[Any]]:
    """Axes that share their scales; of `widths` and `heights` the first is for the margins, the second for each."""
    size = max(5.0, widths[0] + widths[1] * columns), heights[0] + heights[1] * lines + 0.45 * lines
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    return figure, list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)


def draw_rows(axes: Any, rows: pd.DataFrame, names: Sequence[str], name: str, kinds: Sequence[str], kind: str) -> None:
    """Differences in a row for each of `names`, within it one below the other for each of `kinds`."""
    axes.axvline(0.0, color="0.25", linewidth=1.2, zorder=1)
    for place, one in enumerate(kinds):
        of_kind = rows[rows[kind] == one] if kind else rows
        found = of_kind.groupby(name, sort=False)["difference"].agg(["mean", "sem"]).reindex(names)
        shift = 0.8 * ((place + 0.5) / len(kinds) - 0.5)
        heights = [index + shift - (0.12 if not kind else 0.0) for index in range(len(names))]
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        errors = 2.0 * found["sem"].fillna(0.0)
        axes.errorbar(
            found["mean"], heights, xerr=errors, fmt=marker, color=colour, label=one, markersize=4, elinewidth=1.2
        )
        if not kind:
            below = [names.index(value) + 0.18 for value in of_kind[name]]
            axes.plot(of_kind["difference"], below, "o", color=colour, alpha=0.5, markersize=3.5)
    axes.set_yticks(range(len(names)), names, fontsize=8.5, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for edge in range(1, len(names)):
        axes.axhline(edge - 0.5, color="0.9", linewidth=0.7, zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def ablation_figure(lines: pd.DataFrame, title: str) -> Figure:
    """A row for each row of the paper's table: our difference from its first row, and the paper's own."""
    names = [f"{line.variant}  {line.text}" for line in lines.itertuples()]
    figure, (axes,) = panels(1, 1, (1.0 + 0.07 * max(map(len, names)), 3.6), (1.6, 0.26 * len(names)))
    draw_rows(axes, pd.DataFrame({"row": [], "difference": []}), names, "row", [], "")
    heights = range(len(names))
    errors = 2.0 * lines["difference_error"].fillna(0.0)
    axes.errorbar(
        lines["difference"], heights, xerr=errors, fmt="o", color=COLOURS[0], markersize=5, label="here, ± 2 se"
    )
    axes.plot(
        lines["paper_difference"], heights, "D", color=COLOURS[1], markersize=5, mfc="none", label="paper, ADE20K"
    )
    axes.set_xlabel("mIoU minus the first row, points", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5)
    figure.suptitle(title, fontsize=10, parse_math=False)
    return figure
