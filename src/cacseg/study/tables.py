"""Summaries as tables: cells of text, for a terminal or for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cacseg.study.summary import ORACLE, Count, Line, Mean, own_lines


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
        is_base = line.arm == baseline
        difference = "" if is_base or line.difference is None else signed(line.difference)
        rows.append(
            [
                *(str(part) for part in line.cell),
                line.arm + (f" ({line.diverged} diverged)" if line.diverged else ""),
                line.answer,
                "" if is_base else line.verdict,
                str(line.miou.n),
                plus_minus(line.miou),
                difference,
                *(
                    f"{values[line.cell, line.arm, name].value:.2f}" if (line.cell, line.arm, name) in values else ""
                    for name in shown
                ),
            ]
        )
    header = ["data", "model", "optimiser", "steps", "arm", "answer", "verdict", "seeds", "mIoU", f"from {baseline}"]
    return TextTable(f"mIoU in percent, beside {baseline!r} at equal seeds", [*header, *shown], rows, words=7)


def pooled_table(counts: Iterable[Count]) -> TextTable:
    """A row for each arm: in how many cells it is ahead, even or behind."""
    rows = [
        [one.arm, f"{one.difference:+.2f}", *map(str, (one.ahead, one.even, one.behind, one.undecided))]
        for one in counts
    ]
    header = ["arm", "mean difference", "ahead", "even", "behind", "undecided"]
    return TextTable("over all cells", header, rows, words=1)


def plus_minus(mean: Mean) -> str:
    return f"{mean.value:.2f}" + ("" if mean.error is None else f" ± {mean.error:.2f}")


def signed(mean: Mean) -> str:
    return f"{mean.value:+.2f}" + ("" if mean.error is None else f" ± {mean.error:.2f}")


def markdown(table: TextTable) -> str:
    """The table for a page; the title is the page's to write."""
    line = ["---"] * table.words + ["---:"] * (len(table.header) - table.words)
    return "\n".join("| " + " | ".join(row) + " |" for row in [table.header, line, *table.rows]) + "\n"
