"""The tables of results in README.md and docs are those of the records in docs/records."""

import re
from pathlib import Path

import pandas as pd
import pytest

from cacseg.recipes.ablate import TABLES
from cacseg.reports.comparison import ablation_table, averaged, plus_minus
from cacseg.reports.tables import markdown_table

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "docs" / "records"
CELL = ["data", "model", "steps"]
ARMS = ("plain_overlap", "paper", "released", "tuned")  # beside plain

# Title, model, record, and the cell in it: data, model, steps.
GAINS = [
    ("Cityscapes at 512x256, kept aside", "UPerNet", "kept_aside", ("city", "upernet", 2000)),
    ("Clothing Co-Parsing, kept aside", "UPerNet", "kept_aside", ("ccp", "upernet", 1500)),
    ("LabelMeFacade, kept aside", "UPerNet", "kept_aside", ("lmf", "upernet", 800)),
    ("CamVid, small crops", "FCN", "gains", ("camvid", "fcn_mobilenetv2", 800)),
    ("CamVid", "FCN", "gains", ("camvid", "fcn_mobilenetv2", 2000)),
    ("CamVid", "DeepLabV3+", "gains", ("camvid", "deeplabv3plus_near", 1000)),
    ("CamVid, held out of train", "FCN", "gains", ("camvid_held_out", "fcn_mobilenetv2", 1000)),
    ("CamVid, held out of train", "FCN, all dilated", "gains", ("camvid_held_out", "fcn_all", 1000)),
    ("MSRC-21", "FCN", "gains", ("msrc21_unscaled", "fcn_mobilenetv2", 2000)),
    ("MSRC-21", "FCN", "gains", ("msrc21_unscaled", "fcn_mobilenetv2", 4000)),
    ("MSRC-21", "FCN, all dilated", "gains", ("msrc21_unscaled", "fcn_all", 2000)),
    ("MSRC-21", "UPerNet", "gains", ("msrc21_unscaled", "upernet_mobilenetv2", 500)),
]
IN_README = (0, 1, 2, 4, 5, 8, 9, 11)


def recorded(name, value, by):
    rows = pd.read_csv(RECORDS / f"{name}.csv")
    lines = averaged(rows[rows["own"] == "yes"], "plain", value, by)
    assert set(lines["seeds"]) == {3}
    return lines


def shown_as(line):
    """A mean, and in brackets its difference from plain at equal seeds."""
    difference = f" ({plus_minus(line.difference, line.difference_error, '+')})"
    return f"{line.mean:.1f}" + ("" if line.arm == "plain" else difference)


def gain_rows():
    lines = {}
    for name in ("kept_aside", "gains"):
        for line in recorded(name, "miou", CELL).itertuples():
            lines[name, line.data, line.model, line.steps, line.arm] = shown_as(line)
    for title, model, name, cell in GAINS:
        cells = [lines.get((name, *cell, arm), "") for arm in ("plain", *ARMS)]
        yield f"| {' | '.join([title, model, str(cell[2]), *cells])} |"


def class_rows():
    """Of the classes of street scenes those whose IoU `tuned` changes by more than five points."""
    for name, of_class in recorded("street_scenes_classes", "iou", ["class"]).groupby("class", sort=False):
        lines = {line.arm: line for line in of_class.itertuples()}
        if abs(lines["tuned"].difference) > 5.0:
            cells = [shown_as(lines[arm]) for arm in ("plain", "plain_overlap", "released", "tuned")]
            yield f"| {' | '.join([name, *cells])} |"


def shown(page, name):
    """The rows of the table between the comments <!-- NAME: ... --> and <!-- /NAME -->."""
    text = (ROOT / page).read_text()
    (table,) = re.findall(rf"<!-- {name}: .*?-->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    return table.strip().splitlines()[2:]


def test_the_gains_in_the_readme():
    rows = list(gain_rows())
    assert shown("README.md", "gains") == [rows[index] for index in IN_README]


@pytest.mark.parametrize(("name", "rows"), [("gains", gain_rows), ("classes", class_rows)])
def test_the_tables_of_the_results(name, rows):
    assert shown("docs/results.md", name) == list(rows())


@pytest.mark.parametrize("name", TABLES)
def test_ablation_tables_are_the_recorded_ones(name):
    table = ablation_table(pd.read_csv(RECORDS / f"ablation_{name}.csv"), name)
    page = (ROOT / "docs" / "ablations.md").read_text()
    (shown,) = re.findall(rf"<!-- {name}:.*?-->\n(.*?)<!-- /{name} -->", page, re.DOTALL)
    assert shown.strip().splitlines() == markdown_table(table.header, table.rows)
