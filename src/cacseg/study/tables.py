"""Summaries as tables: cells of text, for a terminal or for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cacseg.study.results import Cell
from cacseg.study.summary import ORACLE, VERDICTS, Count, Line, Mean, own_lines

WORDS = [*Cell._fields, "arm", "answer", "verdict"]  # the first columns of a row for each answer


class TextTable(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]
    words: int  # columns of words, from the left; the others hold numbers


def arms_table(lines: Sequence[Line], baseline: str) -> TextTable:
    """A row for each arm in each cell: its own answer, how far it is from the baseline, its other answers beside."""
    others = [name for name in dict.fromkeys(line.answer for line in lines) if name != ORACLE]
    shown = [*others, *([ORACLE] if any(line.answer == ORACLE for line in lines) else [])]
    values = {(line.cell, line.arm, line.answer): line.miou for line in lines}
    rows = []
    for line in own_lines(lines):
        rows.append(
            [
                *_compared(line, is_base=line.arm == baseline),
                *(
                    f"{values[line.cell, line.arm, name].value:.2f}" if (line.cell, line.arm, name) in values else ""
                    for name in shown
                ),
            ]
        )
    title = f"mIoU and pixel accuracy in percent, beside {baseline!r} at equal seeds; mIoU of all answers"
    return TextTable(title, [*WORDS, *_numbers(baseline), *shown], rows, words=len(WORDS))


def answers_table(lines: Sequence[Line], beside: str) -> TextTable:
    """A row for each other answer of each arm in each cell, and how far it is from `beside` in the same models."""
    title = f"mIoU and pixel accuracy in percent, beside the answer {beside!r} of the same models"
    return TextTable(title, [*WORDS, *_numbers(beside)], [_compared(line) for line in lines], words=len(WORDS))


def _compared(line: Line, is_base: bool = False) -> list[str]:
    """The cells of a line below `WORDS` and `_numbers`; what is compared with has no difference."""
    pairs = line.difference.n if line.difference is not None else 0
    fewer = f" ({pairs} seeds)" if pairs != line.miou.n else ""
    return [
        *(str(part) for part in line.cell),
        line.arm + (f" ({line.diverged} diverged)" if line.diverged else ""),
        line.answer,
        "" if is_base else line.verdict,
        str(line.miou.n),
        plus_minus(line.miou),
        "" if is_base or line.difference is None else signed(line.difference) + fewer,
        "" if line.pixels is None else f"{line.pixels.value:.2f}",
        "" if is_base or line.pixel_difference is None else signed(line.pixel_difference),
    ]


def _numbers(compared_with: str) -> list[str]:
    return ["seeds", "mIoU", f"from {compared_with}", "pixels", f"from {compared_with}"]


def wide_table(lines: Sequence[Line], baseline: str) -> TextTable:
    """A row for each cell, a column for each arm: the mIoU of its own answer, how far that is from the baseline."""
    own = own_lines(lines)
    found = {(line.cell, line.arm): line for line in own}
    arms = sorted({line.arm for line in own}, key=lambda arm: (arm != baseline, arm))
    rows = []
    for cell in dict.fromkeys(line.cell for line in own):
        rows.append([*map(str, cell), *(_wide(found.get((cell, arm)), arm == baseline) for arm in arms)])
    title = f"mIoU in percent, and how far from {baseline!r} at equal seeds"
    return TextTable(title, [*Cell._fields, *arms], rows, words=len(Cell._fields))


def _wide(line: Line | None, is_base: bool) -> str:
    if line is None:
        return ""
    diverged = f", {line.diverged} diverged" if line.diverged else ""
    if is_base or line.difference is None:
        return f"{line.miou.value:.1f}{diverged}"
    error = "" if line.difference.error is None else f" ± {line.difference.error:.1f}"
    fewer = f", {line.difference.n} seeds" if line.difference.n != line.miou.n else ""
    return f"{line.miou.value:.1f} ({line.difference.value:+.1f}{error}{fewer}){diverged}"


def pooled_table(counts: Iterable[Count]) -> TextTable:
    """A row for each arm: in how many of its cells it is ahead, above, even or behind."""
    rows = [
        [one.arm, str(one.cells), f"{one.difference:+.2f}", *map(str, (*one.verdicts.values(), one.undecided))]
        for one in counts
    ]
    header = ["arm", "cells", "mean difference", *VERDICTS, "undecided"]
    return TextTable("over the cells that each arm has", header, rows, words=1)


def plus_minus(mean: Mean) -> str:
    return f"{mean.value:.2f}" + ("" if mean.error is None else f" ± {mean.error:.2f}")


def signed(mean: Mean) -> str:
    return f"{mean.value:+.2f}" + ("" if mean.error is None else f" ± {mean.error:.2f}")


def markdown(table: TextTable) -> str:
    """The table for a page; the title is the page's to write."""
    line = ["---"] * table.words + ["---:"] * (len(table.header) - table.words)
    return "\n".join("| " + " | ".join(row) + " |" for row in [table.header, line, *table.rows]) + "\n"
