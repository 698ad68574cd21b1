"""What the tests of the pages about results share: records, their lines, and what a page shows."""

import functools
import math
import re
import statistics
from pathlib import Path

from cacseg.study.results import AXES, part_of, read_records
from cacseg.study.summary import mean_of, own_lines, summarise, summarise_answers

DOCS = Path(__file__).parents[1] / "docs"
RESULT_PAGES = ("results.md", "results-centred.md")  # of the default, and of the one before it
RESULTS = Path(__file__).parents[1] / "studies" / "results"
CELL = ("data", "model", "optimiser", "steps")
CELLS = ("presets", "fits", "full", "further", "whole", "ends", "rates", "unscaled", "recipe")  # of `centred`
PHOTOGRAPHS = ("presets", "fits", "rest", "full", "further", "ends", "unscaled", "recipe")  # where `evened` has
PLANNED = ("0", "1", "2")  # seeds; of some cells there are more, added later
SIX = (*PLANNED, "3", "4", "5")
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
FCN, NEAR = "fcn_mobilenetv2", "deeplabv3plus_near"
WHOLE = ("msrc21_unscaled", FCN, "adamw", 4000)  # the recipe of MSRC-21, all of its steps
HALF = ("msrc21_unscaled", FCN, "adamw", 2000)
# Of a cell the files that have `fixed` and `fixed_overlap`, and the one that has `tuned` and `plain_overlap`.
ADAPTING = [
    ("ends", "ends", ("camvid_held_out", FCN, "adamw", 1000)),
    ("ends", "full", ("msrc21", FCN, "adamw", 2000)),
    ("unscaled", "unscaled", HALF),
]
SCENES = [("scenes", "scenes", ("scenes", "deeplabv3plus", rule, 150)) for rule in ("adamw", "adamw_fast")]


@functools.cache
def records_of(name):
    return read_records([RESULTS / f"{name}.csv"])


@functools.cache
def lines_of(name, seeds=None, arms=None, baseline="plain"):
    only = {axis: names for axis, names in (("seeds", seeds), ("arms", arms)) if names is not None}
    return summarise(part_of(records_of(name), only), baseline)


def by_arm(lines):
    """Each arm's own answer, by its name and its cell."""
    return {(line.arm, *line.cell): line for line in own_lines(lines)}


def line_of(arm, name, cell, baseline, seeds=PLANNED):
    """An arm's own answer in one cell, beside another arm."""
    return by_arm(lines_of(name, seeds, baseline=baseline))[(arm, *cell)]


def shown(page, kind):
    """The tables of a page between comments such as <!-- table: NAME -->, by their names."""
    found = re.findall(rf"<!-- {kind}: (\w+).*?-->\n(.*?)<!-- /{kind} -->", (DOCS / page).read_text(), re.DOTALL)
    return {name: table.strip() for name, table in found}


def words_of(*pages):
    """Pages without their line breaks."""
    return " ".join(re.sub(r"\s+", " ", (DOCS / page).read_text()) for page in pages)


def rows_of(page, name):
    """The rows of the one table between the comments <!-- NAME: ... --> and <!-- /NAME -->."""
    (table,) = re.findall(rf"<!-- {name}: .*?-->\n(.*?)<!-- /{name} -->", (DOCS / page).read_text(), re.DOTALL)
    return table.strip().splitlines()[2:]


def own_of(arm, seeds, names=CELLS):
    """The arm's own answer in every cell with enough seeds for a verdict; of a cell in two files the first."""
    found = {}
    for name in names:
        for line in lines_of(name, seeds):
            if line.own and line.arm == arm and line.verdict:
                found.setdefault(line.cell, line)
    return list(found.values())


def where_it_is(cell, arm):
    """The first file that has an arm in a cell, with the seeds that were planned."""
    return next(name for name in CELLS if any(line.cell == cell for line in own_of(arm, PLANNED, (name,))))


def sign(mean):
    return 0 if abs(mean.value) <= 2.0 * mean.error else math.copysign(1, mean.value)


def pair(mean, digits=1):
    return f"{mean.value:.{digits}f} ± {mean.error:.{digits}f}"


def signed_pair(mean):
    return f"{mean.value:+.1f} ± {mean.error:.1f}"


def beside_evened(*names):
    """`evened` and `centred` beside plain, and `centred` beside `evened`, in every cell that has all three."""
    for name in names:
        from_plain = by_arm(lines_of(name, PLANNED))
        from_evened = by_arm(lines_of(name, PLANNED, baseline="evened"))
        for cell in (cell for arm, *cell in from_plain if arm == "evened"):
            found = from_plain[("evened", *cell)], from_plain[("centred", *cell)], from_evened[("centred", *cell)]
            assert [line.difference.n for line in found] == [len(PLANNED)] * 3
            yield found


def scores(name, cell, arm, answer, seeds=PLANNED, measure="miou"):
    """mIoU, or pixel accuracy, by seed."""
    only = dict(zip(AXES, ([str(one)] for one in cell), strict=False)) | {"arms": [arm], "seeds": seeds}
    return {str(one["seed"]): one["answers"][answer][measure] for one in part_of(records_of(name), only)}


def apart(first, second):
    """Of two scores by seed: the mean difference."""
    return mean_of([first[seed] - second[seed] for seed in first])


def own(name, cell, arm, seeds=PLANNED, measure="miou"):
    return scores(name, cell, arm, "plain" if arm == "plain" else "context", seeds, measure)


def adapting(name, other, cell, measure="miou"):
    """`tuned` beside the same with one classifier for all images."""
    return apart(own(other, cell, "tuned", measure=measure), own(name, cell, "fixed_overlap", measure=measure))


def beside_both(name, cell, arm, others=("centred", "relative"), *, biased=False):
    """An arm's context answers, with its bias or without, beside the mean of `centred` and of `relative` without one.

    Of several arms, such as two trainings of one recipe, their mean.
    """
    arms = (arm,) if isinstance(arm, str) else arm
    records = part_of(records_of(name), {"seeds": PLANNED})
    scores = {(one["arm"], one["seed"]): one["answers"] for one in records if tuple(one[axis] for axis in CELL) == cell}

    def score(of, seed, measure, biased=False):
        answers = scores[(of, seed)]
        return answers["context" if biased or "context_alone" not in answers else "context_alone"][measure]

    for measure in ("miou", "pixel_accuracy"):
        pairs = [
            statistics.fmean(score(one, seed, measure, biased) for one in arms)
            - statistics.fmean(score(other, seed, measure) for other in others)
            for of, seed in scores
            if of == arms[0]
        ]
        yield mean_of(pairs)


def told_apart(name, cell, seeds=None, arm="relative"):
    """What the bias of an arm with `presence` gives: its line beside the same models' answers without it."""
    only = {"arms": [arm]} | ({} if seeds is None else {"seeds": seeds})
    lines = summarise_answers(part_of(records_of(name), only), "context_alone")
    (line,) = (line for line in lines if line.own and line.cell == cell)
    return line


def told(mean, way, digits=1):
    """Its size in words such as "1.2 ± 0.4 below": the words name the sign, which must be the mean's."""
    assert mean.value * way > 0 or f"{abs(mean.value):.{digits}f}" == f"{0:.{digits}f}"
    return pair(mean, digits).lstrip("-")
