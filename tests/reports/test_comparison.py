"""Statistics of comparisons against numbers worked out by hand."""

import math

import pandas as pd
import pytest

from cacseg.reports.charts import number
from cacseg.reports.comparison import arm_tables, averaged, class_tables, grouped_classes, own, plus_minus, sentences
from cacseg.reports.comparison_plots import comparison_pictures

CELL = {"data": "mine", "model": "fcn", "steps": 500}
SCORES = {"plain": [50.0, 52.0, 57.0], "overlap": [50.5, 52.0, 57.5], "tuned": [52.0, 55.0, 61.0]}


def results(scores=SCORES, **others):
    rows = []
    for arm, values in scores.items():
        for seed, value in enumerate(values):
            row = {**CELL, "arm": arm, "seed": seed, "output": "plain", "own": "yes", "split": "val"}
            row |= {"images": 2, "mean_iou": value, "mean_accuracy": 1.0, "pixel_accuracy": 90.0}
            rows.append({**row, **others})
    return pd.DataFrame(rows)


def classes(differences=(0.0, 1.0, 2.0)):
    """Four classes; `tuned` has so much more of the rare ones in each seed."""
    rows = []
    shares = {"road": 90.0, "car": 9.0, "sign": 0.6, "lamp": 0.4, "train": 0.0}
    for arm in ("plain", "tuned"):
        for seed, more in enumerate(differences):
            for name, share in shares.items():
                iou = 40.0 + (more if arm == "tuned" and share < 1.0 else 0.0)
                row = {**CELL, "arm": arm, "seed": seed, "output": "plain", "own": "yes", "split": "val"}
                rows.append({**row, "class": name, "labelled": share, "iou": iou})
    return pd.DataFrame(rows)


def test_means_errors_and_paired_differences():
    lines = averaged(own(results()), "plain", "mean_iou", list(CELL)).set_index("arm")
    # 50, 52, 57: mean 53, variance 13, error sqrt(13 / 3); differences 2, 3, 4: variance 1.
    assert lines.loc["plain", "mean"] == 53.0
    assert lines.loc["plain", "error"] == pytest.approx(math.sqrt(13.0 / 3.0))
    assert lines.loc["tuned", "difference"] == 3.0
    assert lines.loc["tuned", "difference_error"] == pytest.approx(1.0 / math.sqrt(3.0))
    assert lines.loc["plain", "difference"] == 0.0


def test_zero_has_no_minus():
    assert [plus_minus(value, sign="+") for value in (-0.04, -0.0, 0.04, -0.06)] == ["+0.0", "+0.0", "+0.0", "-0.1"]
    assert plus_minus(-0.4, digits=0) == "0"
    assert [number(value) for value in (-0.04, -0.06, math.nan)] == ["0.0", "-0.1", "-"]


def test_seeds_that_the_baseline_lacks_are_not_paired():
    lines = averaged(own(results({"plain": [50.0], "tuned": [51.0, 60.0]})), "plain", "mean_iou", list(CELL))
    tuned = lines.set_index("arm").loc["tuned"]
    assert (tuned["seeds"], tuned["pairs"], tuned["mean"], tuned["difference"]) == (2, 1, 55.5, 1.0)
    assert math.isnan(tuned["difference_error"])


def test_the_table_of_arms():
    context = results({"tuned": [70.0, 80.0, 90.0]}, output="oracle", own="no")
    trained = results({"plain": [88.0]}, split="train")
    (table,) = arm_tables(pd.concat([results(), context, trained]), ["plain", "overlap", "tuned"])
    assert table.header[-3:] == ["plain", "oracle", "train"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["plain"] == ["3", "53.0 ± 2.1", "", "90.0 ± 0.0", "", "53.0", "", "88.0"]
    assert rows["tuned"] == ["3", "56.0 ± 2.6", "+3.0 ± 0.6", "90.0 ± 0.0", "+0.0 ± 0.0", "56.0", "80.0", ""]


def test_classes_by_how_often_they_occur():
    groups = grouped_classes(own(classes()))
    assert list(dict.fromkeys(groups["group"])) == ["rare, below 1 %", "frequent, above 5 %"]
    (table,) = class_tables(classes(), ["plain", "tuned"], groups=True)
    assert table.rows == [
        ["rare, below 1 %", "2", "40.0", "41.0 (+1.0 ± 0.6)"],
        ["frequent, above 5 %", "2", "40.0", "40.0 (+0.0 ± 0.0)"],
    ]
    (table,) = class_tables(classes(), ["plain", "tuned"], groups=False)
    assert [row[:2] for row in table.rows][1:] == [
        ["lamp", "0.40"],
        ["sign", "0.60"],
        ["car", "9.00"],
        ["road", "90.00"],
    ]


@pytest.mark.parametrize(
    ("tuned", "words"),
    [
        ([52.0, 55.0, 61.0], ["gains 3.0 ± 0.6 mIoU", "3 seeds"]),
        ([48.0, 49.0, 53.0], ["loses 3.0 ± 0.6 mIoU"]),
        ([49.0, 55.0, 58.0], ["no clear difference", "+1.0 ± 1.2"]),
        ([52.0], ["+2.0 mIoU", "1 seed: too few"]),
        ([52.0, 55.0], ["+2.5 ± 0.5 mIoU", "2 seeds: too few"]),
    ],
)
def test_what_is_claimed(tuned, words):
    (sentence,) = sentences(results({"plain": SCORES["plain"], "tuned": tuned}), ["plain", "tuned"])
    assert "mine" in sentence
    assert all(one in sentence for one in words), sentence


def test_every_arm_has_a_sentence_and_the_first_is_that_of_the_classifier():
    first, second = sentences(results(), ["plain", "overlap", "tuned"])
    assert "context-aware" in first
    assert "soft-Jaccard" in second


def test_the_baseline_alone_claims_and_draws_nothing():
    alone = results({"plain": [50.0]})
    assert sentences(alone, ["plain"]) == []
    assert list(comparison_pictures(alone, classes()[:5], ["plain"])) == []


def test_pictures_are_drawn_in_both_formats():
    found = dict(comparison_pictures(results(), classes(), ["plain", "overlap", "tuned"]))
    assert list(found) == ["differences.png", "differences.svg", "classes.png", "classes.svg"]
    assert found["differences.png"].startswith(b"\x89PNG")
    assert b"<svg" in found["classes.svg"]
