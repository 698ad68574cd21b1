"""What tests of round twenty-eight and of the README share: every block dilated, UPerNet trained three times."""

import statistics

from cacseg.study.results import read_records
from cacseg.study.summary import Mean, mean_of, summarise
from study_pages import FCN, HALF, NEAR, PLANNED, RESULTS, scores, signed_pair

MSRC = ("msrc21_unscaled", "fcn_all", "adamw", 2000)
HELD_OUT = ("camvid_held_out", "fcn_all", "adamw", 1000)
DEEPLAB = ("camvid_held_out", "deeplabv3plus_all", "adamw", 1000)
UPERNET = ("msrc21_unscaled", "upernet_mobilenetv2", "adamw", 500)
# The same with the first blocks dilated, and the file that has it.
BEFORE = {
    MSRC: ("unscaled", HALF),
    HELD_OUT: ("ends", ("camvid_held_out", FCN, "adamw", 1000)),
    DEEPLAB: ("ends", ("camvid_held_out", NEAR, "adamw", 1000)),
}
TRAININGS = ("confirm.csv", "strong.csv", "repeats/strong.csv")


def default_output(arm):
    return "plain" if arm.startswith("plain") and arm != "plain_overlap" else "context"


def of(cell, arm, answer=None):
    return scores("strong", cell, arm, answer or default_output(arm))


def before(cell, arm, seeds=PLANNED):
    return scores(*BEFORE[cell], arm, default_output(arm), seeds)


def mean(values):
    return statistics.fmean(values.values())


def own_records(path, cell):
    for one in read_records([RESULTS / path]):
        if tuple(one[axis] for axis in ("data", "model", "optimiser", "steps")) == cell:
            yield one


def all_runs(arm):
    """The answers of every run of UPerNet, with its seed: of confirm.csv, of this study, of the same once more."""
    for path in TRAININGS:
        for one in own_records(path, UPERNET):
            if one["arm"] == arm:
                yield str(one["seed"]), {answer: values["miou"] for answer, values in one["answers"].items()}


def over_all(arm, answer=None):
    return mean_of([answers[answer or default_output(arm)] for _, answers in all_runs(arm)])


def by_seed(arm):
    found = {}
    for seed, answers in all_runs(arm):
        found.setdefault(seed, []).append(answers[default_output(arm)])
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def training_of(path):
    """`tuned` and plain of one file, by seed."""
    found = {"plain": {}, "tuned": {}}
    for one in own_records(path, UPERNET):
        if one["arm"] in found:
            found[one["arm"]][one["seed"]] = one["answers"][default_output(one["arm"])]["miou"]
    return found["plain"], found["tuned"]


def training_rows():
    """UPerNet three times with the same seeds."""
    for path in TRAININGS:
        (line,) = (
            line for line in summarise(list(own_records(path, UPERNET)), "plain") if line.own and line.arm == "tuned"
        )
        plain, tuned = training_of(path)
        row = [f"`{path}`", f"{mean(plain):.1f}", f"{mean(tuned):.1f}", signed_pair(line.difference), line.verdict]
        yield f"| {' | '.join(row)} |"


def beside(first, second):
    """Of two means whose runs are not paired."""
    return Mean(first.value - second.value, (first.error**2 + second.error**2) ** 0.5, min(first.n, second.n))
