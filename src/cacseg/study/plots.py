"""Differences from the baseline as a picture: every seed, their mean, and two standard errors."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cacseg.study.summary import GOAL, Line, own_lines

# Okabe and Ito's colours, told apart by colour-blind readers; markers differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP"  # one fewer than colours, so that both repeat together after 42
FORMATS = ("png", "svg", "pdf")

Variant = tuple[str, str]  # model and optimiser, told apart by colour within a panel
Panel = tuple[str, int]  # data set and steps


def difference_picture(lines: Sequence[Line], baseline: str, title: str, format: str = "png") -> bytes:
    """A panel for each data set and number of steps, a row for each arm, a mark for each model and optimiser.

    Marks are means with bars of two standard errors, strokes below them the seeds.
    """
    if format not in FORMATS:
        raise ValueError(f"a picture is one of {', '.join(FORMATS)}; got {format!r}.")
    own = [line for line in own_lines(lines) if line.arm != baseline and line.difference is not None]
    if not own:
        raise ValueError(f"there is nothing to draw: no arm but {baseline!r} has a seed in common with it.")
    arms = list(dict.fromkeys(line.arm for line in own))
    panels: list[Panel] = sorted({(line.cell.data, line.cell.steps) for line in own})
    rows, columns = layout(panels)
    variants = sorted({(line.cell.model, line.cell.optimiser) for line in own})
    row = 0.16 * len(variants) + 0.14  # inches
    figure = Figure(
        figsize=(
            1.2 + 0.07 * max(map(len, arms), default=0) + 3.4 * columns,
            1.5 + 0.12 * len(variants) + rows * (row * len(arms) + 0.45),
        ),
        dpi=130,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in places.flat[len(panels) :]:
        axes.set_visible(False)
    for place, (axes, panel) in enumerate(zip(places.flat, panels, strict=False)):
        _draw(axes, [line for line in own if (line.cell.data, line.cell.steps) == panel], arms, variants)
        axes.set_title(f"{panel[0]}, {panel[1]} steps", fontsize=10, parse_math=False)
        if place + columns >= len(panels):  # the last of its column
            axes.set_xlabel(f"points of mIoU beside {baseline}", fontsize=9, parse_math=False)
            axes.tick_params(axis="x", labelbottom=True)
    handles = [
        Line2D([], [], linestyle="", marker=_marker(place), color=_colour(place), label=f"{model}, {optimiser}")
        for place, (model, optimiser) in enumerate(variants)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, 2), fontsize=8.5)
    figure.suptitle(
        f"{title}\nmeans ± 2 standard errors; strokes: seeds; dotted: the goal", fontsize=10, parse_math=False
    )
    content = io.BytesIO()
    figure.savefig(content, format=format, metadata={"Software": None} if format == "png" else {"Date": None})
    return content.getvalue()


def _draw(axes: Any, lines: Sequence[Line], arms: Sequence[str], variants: Sequence[Variant]) -> None:
    axes.axvline(0.0, color="0.25", linewidth=1.2, zorder=1)
    axes.axvline(GOAL, color="0.55", linewidth=0.9, linestyle=":", zorder=1)
    for line in lines:
        place = variants.index((line.cell.model, line.cell.optimiser))
        shift = 0.8 * ((place + 0.5) / len(variants) - 0.5)
        height, colour = arms.index(line.arm) + shift, _colour(place)
        assert line.difference is not None
        below = [height + 0.3 / len(variants)] * len(line.differences)
        axes.plot(line.differences, below, "|", color=colour, alpha=0.6, markersize=4.5)
        axes.errorbar(
            line.difference.value,
            height,
            xerr=None if line.difference.error is None else 2.0 * line.difference.error,
            fmt=_marker(place),
            color=colour,
            markersize=5,
            capsize=2,
            elinewidth=1.3,
        )
    axes.set_yticks(range(len(arms)), arms, fontsize=9, parse_math=False)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    for edge in range(1, len(arms)):
        axes.axhline(edge - 0.5, color="0.9", linewidth=0.8, zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def layout(panels: Sequence[Panel]) -> tuple[int, int]:
    """Rows and columns: a row for each data set where all have the same several steps; else two columns, no gaps."""
    data, steps = {name for name, _ in panels}, {count for _, count in panels}
    if len(steps) > 1 and len(panels) == len(data) * len(steps):
        return len(data), len(steps)
    columns = min(2, len(panels))
    return -(-len(panels) // columns), columns


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _marker(place: int) -> str:
    return MARKERS[place % len(MARKERS)]
