"""Charts for a page: curves as SVG, bars as HTML, confusion matrices as pictures. Colours are those of its style."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from cacseg.reports.strips import data_uri

POINTS = 300  # of a curve; more are averaged
SLOTS = 6  # colours of the style
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300, 172, 44, 8, 10, 22  # of a chart, in its own pixels
NUMBERED, NAMED = 16, 40  # up to so many classes, a confusion matrix has numbers and names
BLUE = (45, 125, 225)  # shows on white and on black


class Line(NamedTuple):
    name: str
    values: pd.Series  # by step
    errors: pd.Series | None = None


def legend(names: Sequence[str], first: int = 0) -> str:
    """A legend: names and their colours, which begin with the `first`."""
    items = (f'<li><i class="s{k % SLOTS}"></i>{text(names[k])}</li>' for k in range(first, len(names)))
    return f'<ul class="legend">{"".join(items)}</ul>'


def curves(title: str, lines: Mapping[int, Line], limits: tuple[float, float] | None = None) -> str:
    """A chart of lines over steps, keyed by the number of their colour; empty with fewer than two points."""
    lines = {slot: _thinned(line) for slot, line in lines.items() if line.values.notna().sum() > 1}
    if not lines:
        return ""
    low, high = limits or extent(lines.values())
    steps = [step for line in lines.values() for step in line.values.index]
    first, last = min(0, *steps), max(steps)
    ticks = [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
    step_ticks = [int(tick) for tick in MaxNLocator(3, integer=True).tick_values(first, last) if first <= tick <= last]

    def across(step: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(1, last - first), 1)

    def down(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    parts = [f'<path class="grid" d="M{LEFT} {down(tick)}H{WIDTH - RIGHT}"/>' for tick in ticks]
    parts += [f'<text x="{LEFT - 5}" y="{down(tick) + 4}" class="end">{tick:g}</text>' for tick in ticks]
    parts += [
        f'<text x="{across(step)}" y="{HEIGHT - 6}" class="{"end" if step == last else "middle"}">{short(step)}</text>'
        for step in step_ticks
    ]
    hover = []
    for slot, line in lines.items():
        values = line.values.dropna()
        points = [f"{across(step)},{down(value)}" for step, value in values.items()]
        if line.errors is not None:
            errors = line.errors.reindex(values.index).fillna(0.0)
            edges = [f"{across(step)},{down(value)}" for step, value in (values + errors).items()]
            edges += [f"{across(step)},{down(value)}" for step, value in (values - errors)[::-1].items()]
            parts.append(f'<polygon class="band s{slot % SLOTS}" points="{" ".join(edges)}"/>')
        parts.append(f'<polyline class="line s{slot % SLOTS}" points="{" ".join(points)}"/>')
        if len(points) <= 12:
            dots = (point.split(",") for point in points)
            parts += [f'<circle class="dot s{slot % SLOTS}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in dots]
        hover.append({"name": line.name, "slot": slot % SLOTS, "at": [[int(k), rounded(v)] for k, v in values.items()]})
    data = json.dumps({"first": first, "last": last, "left": LEFT, "right": WIDTH - RIGHT, "lines": hover})
    return (
        f'<figure class="chart"><figcaption>{text(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{text(title)}" data-curves="{text(data)}">{"".join(parts)}'
        f'<path class="cross" d="M0 {TOP}V{HEIGHT - BOTTOM}"/></svg></figure>'
    )


def extent(lines: Iterable[Line]) -> tuple[float, float]:
    """The lowest and the highest value of some lines, errors included, never equal."""
    ends = [
        edge
        for line in lines
        for errors in [0.0 if line.errors is None else line.errors.fillna(0.0)]
        for edge in ((line.values - errors).min(), (line.values + errors).max())
    ]
    low, high = min(ends), max(ends)
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return low - margin, high + margin


def class_bars(names: Sequence[str], shares: Sequence[float], values: Mapping[str, Sequence[float]]) -> str:
    """A row for each class: its share of the labels, and a bar of its IoU (percent) for each output."""
    rows = []
    for k, name in enumerate(names):
        bars = [
            f'<div class="bar s{slot % SLOTS}"><b style="width:{0.0 if math.isnan(of[k]) else of[k]:.1f}%"></b></div>'
            f"<span>{number(of[k])}</span>"
            for slot, of in enumerate(values.values())
        ]
        rows.append(_class_row(name, shares[k], bars))
    return f'<div class="classes">{"".join(rows)}</div>'


def difference_bars(
    names: Sequence[str],
    shares: Sequence[float],
    base: Sequence[float],
    differences: Mapping[int, Sequence[float]],
    errors: Mapping[int, Sequence[float]],
) -> str:
    """A row for each class: the IoU of the baseline, and a bar to the left or right for each arm's difference.

    Bars of less than two standard errors are pale.
    """
    found = [abs(value) for of in differences.values() for value in of if not math.isnan(value)]
    most = max([1.0, *found])
    rows = []
    for k, name in enumerate(names):
        bars = []
        for slot, of in differences.items():
            value, error = of[k], errors[slot][k]
            width = 0.0 if math.isnan(value) else 50.0 * abs(value) / most
            start = 50.0 - width if value < 0 else 50.0
            words = number(value, "+") + ("" if math.isnan(error) else f" ± {error:.1f}")
            style = f"margin-left:{start:.1f}%;width:{width:.1f}%"
            kind = f"bar both s{slot % SLOTS}{' pale' if abs(value) <= 2.0 * error else ''}"
            bars.append(f'<div class="{kind}"><b style="{style}"></b></div><span>{words}</span>')
        rows.append(_class_row(name, shares[k], bars, f'<small class="base">{number(base[k])}</small>'))
    return f'<div class="classes wide">{"".join(rows)}</div>'


def _class_row(name: str, share: float, bars: Sequence[str], more: str = "") -> str:
    label = f'<div class="name"><span title="{text(name)}">{text(name)}</span><small>{share:.2g} %</small>{more}</div>'
    return f'<div class="row">{label}<div class="bars">{"".join(bars)}</div></div>'


def confusion_matrix(title: str, counts: Tensor, names: Sequence[str], order: Sequence[int]) -> str:
    """Each row holds the pixels of one labelled class, darker the more of them were taken for the column's class.

    Shades grow with the square root, so that a few percent can be seen. Classes are in the given order.
    """
    totals = counts.sum(1, keepdim=True)
    shares = (counts.double() / totals.clamp(min=1)).numpy()[np.ix_(order, order)]
    n, ordered = len(order), [names[k] for k in order]
    picture = np.empty((n, n, 4), np.uint8)
    picture[..., :3] = BLUE
    picture[..., 3] = np.round(255 * np.sqrt(shares))
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "PNG", optimize=True)
    cell = 30 if n <= NUMBERED else 15 if n <= NAMED else max(2, 520 // n)
    margin = 8 + round(6.3 * max(map(len, ordered))) if n <= NAMED else 18
    side = n * cell
    width, height = margin + side + 2, margin + side + 2
    parts = [
        f'<image x="{margin}" y="{margin}" width="{side}" height="{side}" preserveAspectRatio="none" '
        f'href="{data_uri(content.getvalue(), "png")}"/>',
        f'<rect class="frame" x="{margin}" y="{margin}" width="{side}" height="{side}"/>',
    ]
    if n <= NAMED:
        for k, name in enumerate(ordered):
            middle = margin + (k + 0.5) * cell
            parts.append(f'<text class="end" x="{margin - 5}" y="{middle + 4}">{text(name)}</text>')
            parts.append(f'<text transform="translate({middle + 4} {margin - 5}) rotate(-90)">{text(name)}</text>')
    else:
        parts.append(f'<text x="{margin}" y="{margin - 5}">predicted, frequent classes first</text>')
        parts.append(f'<text class="end" transform="translate({margin - 5} {margin}) rotate(-90)">labelled</text>')
    if n <= NUMBERED:
        for row, column in np.argwhere(shares >= 0.005):
            shade = "dense" if shares[row, column] > 0.3 else "light"
            x, y = margin + (column + 0.5) * cell, margin + (row + 0.5) * cell + 4
            parts.append(f'<text class="middle {shade}" x="{x}" y="{y}">{100 * shares[row, column]:.0f}</text>')
    permille = ",".join(str(value) if value else "" for value in np.round(1000 * shares).astype(int).ravel().tolist())
    data = json.dumps({"names": ordered, "permille": permille})
    fitted = "" if n <= NAMED else ' class="fitted"'  # without names it may shrink
    return (
        f'<figure class="matrix"><figcaption>{text(title)}</figcaption><div class="scroll"><svg{fitted} '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="confusion matrix, {text(title)}" data-matrix="{text(data)}">{"".join(parts)}</svg></div></figure>'
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """An HTML table: the first `words` columns are text, the others numbers."""

    def line(cells: Sequence[str], tag: str) -> Iterator[str]:
        for place, cell in enumerate(cells):
            yield f"<{tag}>{text(cell)}</{tag}>" if place < words else f'<{tag} class="number">{text(cell)}</{tag}>'

    head = f"<thead><tr>{''.join(line(header, 'th'))}</tr></thead>"
    body = "".join(f"<tr>{''.join(line(row, 'td'))}</tr>" for row in rows)
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _thinned(line: Line) -> Line:
    """Averages neighbouring points, to at most POINTS."""
    values = line.values.dropna()
    bins = np.arange(len(values)) * min(POINTS, len(values)) // max(1, len(values))
    if len(values) <= POINTS:
        return line._replace(values=values)
    steps = pd.Series(values.index).groupby(bins).last()

    def mean(of: pd.Series) -> pd.Series:
        return pd.Series(of.to_numpy()).groupby(bins).mean().set_axis(steps)

    errors = None if line.errors is None else mean(line.errors.reindex(values.index))
    return line._replace(values=mean(values), errors=errors)


def text(words: object) -> str:
    """Escaped for HTML; what is not UTF-8 in the name of a file as \\udcff."""
    return escape(str(words).encode("utf-8", "backslashreplace").decode())


def number(value: float | None, sign: str = "") -> str:
    """72.4; a dash where there is none; no "-0.0"."""
    return "-" if value is None or math.isnan(value) else f"{round(value, 1) + 0.0:{sign}.1f}"


def rounded(value: float) -> float:
    """Four digits, for what hovering shows."""
    return float(f"{value:.4g}")


def short(step: int) -> str:
    """20k for 20000."""
    return f"{step / 1000:g}k" if step >= 10000 and step % 100 == 0 else str(step)
