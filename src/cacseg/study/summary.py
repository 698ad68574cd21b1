"""What the records of a study say: means, standard errors, and differences between runs of one seed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cacseg.study.results import Cell, Record, cell_of

GOAL = 1.0  # points of mIoU that an arm must gain to be called ahead
LEAST_PAIRS = 3  # seeds that an arm and the baseline share, for a verdict: of two numbers the scatter says too little
VERDICTS = ("ahead", "above", "even", "behind")
ORACLE = "oracle"  # the answer that has seen the labels: never an arm's own

# What all arms of a cell have in common, and what is wrong where they have not.
_SHARED = {
    "images": "were scored on different numbers of images",
    "data_digest": "saw different data",
    "shared": "differ in more than the arm's settings",
}


class Mean(NamedTuple):
    value: float
    error: float | None  # the standard error; None of a single number
    n: int


class Line(NamedTuple):
    """One answer of one arm in one cell."""

    cell: Cell
    arm: str
    answer: str
    own: bool  # the answer that the model gives when it is simply called
    miou: Mean  # percent
    difference: Mean | None  # from what it is compared with, seed by seed; None where no seed is in both
    differences: tuple[float, ...]
    pixels: Mean | None  # pixel accuracy in percent; None where a record has none
    pixel_difference: Mean | None  # as `difference`
    diverged: int  # of the runs
    sound: bool  # neither these nor the baseline's runs diverged

    @property
    def verdict(self) -> str:
        """By more than two standard errors: ahead (a point or more), above (less) or behind. Even otherwise.

        Empty where there are too few pairs, or where a run of either side diverged: its score says when, not how well.
        """
        if self.difference is None or self.difference.error is None or self.difference.n < LEAST_PAIRS:
            return ""
        if not self.sound:
            return ""
        value, error = self.difference.value, self.difference.error
        if abs(value) <= 2.0 * error:
            return "even"
        if value < 0.0:
            return "behind"
        return "ahead" if value >= GOAL else "above"


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and its standard error, from the scatter of the values."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(statistics.fmean(values), error, len(values))


def summarise(records: Iterable[Record], baseline: str | None = None) -> list[Line]:
    """A line for each answer of each arm in each cell; the baseline's first. Failed jobs take no part."""
    ended = _ended(records)
    baseline = _baseline(ended, baseline)
    groups = _by_arm(ended)
    lines: list[Line] = []
    for cell, arm in sorted(groups, key=lambda key: (key[0], key[1] != baseline, key[1])):
        group = groups[cell, arm]
        lines += _lines(cell, arm, group, groups.get((cell, baseline), []))
    return lines


def summarise_answers(records: Iterable[Record], beside: str) -> list[Line]:
    """A line for each other answer of each arm in each cell, its differences from `beside` in the very same models.

    Two answers of one model share its features, so that nothing of training twice is in their difference. Models
    without the answer `beside` take no part.
    """
    ended = _ended(records)
    there = sorted({name for record in ended for name in record["answers"]})
    if beside not in there:
        raise ValueError(f"there is no answer {beside!r} in the results. There is {', '.join(there) or 'none'}.")
    groups = _by_arm(record for record in ended if _scores([record], "miou", beside))
    lines = (line for (cell, arm), group in sorted(groups.items()) for line in _lines(cell, arm, group, group, beside))
    return [line for line in lines if line.answer != beside]


def own_lines(lines: Iterable[Line]) -> list[Line]:
    """The headline of each arm in each cell."""
    return [line for line in lines if line.own]


class Count(NamedTuple):
    """In how many cells an arm is what; a cell without a verdict is undecided."""

    arm: str
    cells: int  # that it has; other arms may have others
    verdicts: dict[str, int]  # by their names, in the order of VERDICTS
    undecided: int
    difference: float  # mean over the cells


def pool(lines: Iterable[Line], baseline: str | None = None) -> list[Count]:
    """One count for each arm but the baseline, of its own answers; the best mean difference first."""
    arms: dict[str, list[Line]] = {}
    for line in own_lines(lines):
        if line.arm != baseline and line.difference is not None:
            arms.setdefault(line.arm, []).append(line)
    found = []
    for arm, own in arms.items():
        verdicts = Counter(line.verdict for line in own)
        differences = [line.difference.value for line in own if line.difference is not None]
        found.append(
            Count(
                arm=arm,
                cells=len(own),
                verdicts={name: verdicts[name] for name in VERDICTS},
                undecided=verdicts[""],
                difference=statistics.fmean(differences),
            )
        )
    return sorted(found, key=lambda count: -count.difference)


def baseline_of(records: Iterable[Record], given: str | None = None) -> str:
    """The arm that others are compared with: the given one, or what all records say."""
    return _baseline(list(records), given)


def _baseline(records: Sequence[Record], given: str | None) -> str:
    arms, stated = {record["arm"] for record in records}, sorted({record["baseline"] for record in records})
    if given is None and len(stated) > 1:
        raise ValueError(f"the studies have different baselines, {', '.join(stated)}. Choose one with --baseline.")
    if not records:
        raise ValueError("there is nothing to compare: no job is left.")
    baseline = stated[0] if given is None else given
    if baseline not in arms:
        there = ", ".join(sorted(arms))
        raise ValueError(f"there is no result of the baseline {baseline!r}. There is {there}: --baseline NAME.")
    return baseline


def check_comparable(records: Iterable[Record]) -> None:
    """In a cell: runs of an arm have the same settings, and all arms the same images and the same other settings."""
    arms: dict[tuple[Cell, str], Record] = {}
    cells: dict[tuple[Cell, str], Record] = {}
    for record in records:
        if record["status"] == "failed":
            continue
        cell = cell_of(record)
        first = arms.setdefault((cell, record["arm"]), record)
        if first["digest"] != record["digest"]:
            raise ValueError(
                f"{first['id']} and {record['id']} were made with different settings and cannot be put together. "
                "Leave the ones or the others out: --only, or another folder."
            )
        for key, words in _SHARED.items():
            if not record.get(key):  # not in all that was ever written
                continue
            first = cells.setdefault((cell, key), record)
            if str(first[key]) != str(record[key]):
                raise ValueError(
                    f"{first['id']} and {record['id']} {words} and cannot be compared. Leave one out: --only, or "
                    "another folder."
                )


def _ended(records: Iterable[Record]) -> list[Record]:
    """The jobs that have not failed, checked to be comparable."""
    ended = [record for record in records if record["status"] != "failed"]
    if not ended:
        raise ValueError("there is nothing to compare: no job has ended well.")
    check_comparable(ended)
    return ended


def _by_arm(records: Iterable[Record]) -> dict[tuple[Cell, str], list[Record]]:
    groups: dict[tuple[Cell, str], list[Record]] = {}
    for record in records:
        groups.setdefault((cell_of(record), record["arm"]), []).append(record)
    return groups


def _scores(group: Iterable[Record], measure: str, answer: str | None = None) -> dict[int, float]:
    """By seed, of an answer or of each record's own; without the records that have none."""
    found = {
        record["seed"]: record["answers"].get(answer or record["default_output"], {}).get(measure) for record in group
    }
    return {seed: score for seed, score in found.items() if score is not None}


def _paired(scores: dict[int, float], base: dict[int, float]) -> tuple[float, ...]:
    return tuple(scores[seed] - base[seed] for seed in sorted(scores) if seed in base)


def _lines(
    cell: Cell, arm: str, group: Sequence[Record], base: Sequence[Record], base_answer: str | None = None
) -> list[Line]:
    """Differences are from the base's own answers, or from another of its answers."""
    own = group[0]["default_output"]
    diverged, of_base = (sum(one["status"] == "diverged" for one in records) for records in (group, base))
    found = []
    for answer in dict.fromkeys(name for record in group for name in record["answers"]):
        scores, pixels = _scores(group, "miou", answer), _scores(group, "pixel_accuracy", answer)
        if not scores:  # no pixel was labelled
            continue
        differences = _paired(scores, _scores(base, "miou", base_answer))
        pixel_differences = _paired(pixels, _scores(base, "pixel_accuracy", base_answer))
        found.append(
            Line(
                cell=cell,
                arm=arm,
                answer=answer,
                own=answer == own,
                miou=mean_of(list(scores.values())),
                difference=mean_of(differences) if differences else None,
                differences=differences,
                pixels=mean_of(list(pixels.values())) if pixels else None,
                pixel_difference=mean_of(pixel_differences) if pixel_differences else None,
                diverged=diverged,
                sound=diverged + of_base == 0,
            )
        )
    return found
