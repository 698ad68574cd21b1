"""Strips of pictures, and confusions, as parts of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cacseg.data.pictures import CHANGES, WORSE
from cacseg.reports.charts import confusion_matrix, html_table, text
from cacseg.reports.strips import Examination, Strip
from cacseg.runtime.colours import Colour

CONFUSIONS = 25  # rows of the table
LISTED = 30  # classes of a legend that is open
COLUMNS = 8  # of pictures, where those of one model are below one another


def images_section(seen: Examination, weights: str) -> str:
    swatches = "".join(_swatch(name, colour) for name, colour in CHANGES.items())
    several = any(
        cell.title.startswith("changes") for group in seen.groups.values() for one in group for cell in one.cells
    )
    among = f"{seen.scored} of the {seen.total}" if seen.scored < seen.total else f"all {seen.total}"
    where = f"Chosen among {among} images of {seen.split}; {weights}. Point at a mask for its classes."
    parts = [f"<p>{text(where)}</p>"]
    parts.append(f'<ul class="legend">{swatches if several else _swatch("wrong", WORSE)}</ul>')
    classes = "".join(_swatch(name, colour) for name, colour in seen.classes.items())
    listed = f'<ul class="legend" data-classes>{classes}</ul>'
    many = len(seen.classes) > LISTED
    parts.append(f"<details><summary>{len(seen.classes)} classes</summary>{listed}</details>" if many else listed)
    for title, strips in seen.groups.items():
        parts.append(f"<h3>{text(title)}</h3>{_strip(strips[0])}")
        if rest := "".join(map(_strip, strips[1:])):  # which the script closes on a phone
            parts.append(f'<details class="rest" open><summary>{len(strips) - 1} more</summary>{rest}</details>')
    return "".join(parts)


def _swatch(name: str, colour: Colour) -> str:
    return (
        f'<li data-colour="{",".join(map(str, colour))}"><i style="background:rgb{tuple(colour)}"></i>{text(name)}</li>'
    )


def _strip(strip: Strip) -> str:
    places: list[str] = []
    for cell in strip.cells:
        figure = (
            f'<figure><img src="{cell.picture}" alt="{text(cell.title)}" decoding="async"{" data-mask" * cell.is_mask}>'
            f"<figcaption><b>{text(cell.title)}</b> {text(cell.words)}</figcaption></figure>"
        )
        if cell.below:
            places[-1] = f'<div class="pair">{places[-1]}{figure}</div>'
        else:
            places.append(figure)
    paired = any(cell.below for cell in strip.cells)
    kind = f'"cells paired" style="--columns:{min(COLUMNS, len(places))}"' if paired else '"cells"'
    return f'<div class="strip"><h4>{text(strip.name)}</h4><div class={kind}>{"".join(places)}</div></div>'


def confusion_section(counts: Mapping[str, Tensor], names: Sequence[str], where: str) -> str:
    """The most frequent confusions of the last one, then a matrix for each."""
    labelled = next(iter(counts.values())).sum(1)
    last = list(counts.values())[-1]
    wrong = last - torch.diag(last.diagonal())
    pairs = [divmod(int(k), len(names)) for k in wrong.flatten().argsort(descending=True)[:CONFUSIONS]]
    rows = []
    for row, column in pairs:
        if wrong[row, column] > 0:
            shares = [f"{100 * float(one[row, column]) / float(labelled[row]):.1f}" for one in counts.values()]
            rows.append(
                [names[row], names[column], *shares, f"{100 * float(wrong[row, column]) / float(labelled.sum()):.2f}"]
            )
    order = labelled.argsort(descending=True, stable=True).tolist()
    pictures = "".join(confusion_matrix(name, one, names, order) for name, one in counts.items())
    header = ["labelled", "taken for", *(f"{name}, % of the class" for name in counts), "% of all pixels"]
    words = f"The most frequent confusions of {list(counts)[-1]}, on {where}."
    matrix = "A row: the pixels of one labelled class, by what they were taken for; shades grow with the square root."
    return (
        f'<p>{text(words)}</p>{html_table(header, rows, words=2)}<p>{matrix}</p><div class="matrices">{pictures}</div>'
    )
