"""The tables of results in README.md and docs/results.md are those of the records in studies/results."""

import re
from pathlib import Path

import pytest

from cacseg.study.classes import classes_tables, read_classes
from cacseg.study.results import read_records
from cacseg.study.summary import summarise

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "studies" / "results"
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


def gain_rows():
    """mIoU, and in brackets its difference from plain at equal seeds."""
    lines = {}
    for name in ("kept_aside", "gains"):
        for line in summarise(read_records([RESULTS / f"{name}.csv"]), "plain"):
            if line.own:
                assert line.miou.n == 3
                lines[name, line.cell.data, line.cell.model, line.cell.steps, line.arm] = line
    for title, model, name, cell in GAINS:
        row = [title, model, str(cell[2]), f"{lines[(name, *cell, 'plain')].miou.value:.1f}"]
        for arm in ARMS:
            line = lines.get((name, *cell, arm))
            difference = line and f"{line.difference.value:+.1f} ± {line.difference.error:.1f}"
            row.append(f"{line.miou.value:.1f} ({difference})" if line else "")
        yield f"| {' | '.join(row)} |"


def class_rows():
    """Of the classes of street scenes those whose IoU `tuned` changes by more than five points."""
    (table,) = classes_tables(read_classes([RESULTS / "street_scenes_classes.csv"]), "plain", differences=True)
    assert table.header == ["class", "plain", "plain_overlap", "released", "tuned"]
    for row in table.rows:
        if abs(float(re.search(r"\((\S+)", row[-1])[1])) > 5.0:
            yield f"| {' | '.join(row)} |"


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
