import json
import re
from html import unescape
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

from cacseg.reports.charts import POINTS, Line, class_bars, confusion_matrix, curves, difference_bars, html_table


def attributes(page, name):
    return json.loads(unescape(re.search(rf'{name}="([^"]*)"', page)[1]))


def test_a_curve_is_drawn_from_left_to_right_and_hovering_knows_its_values():
    values = pd.Series([1.0, 3.0, 2.0], index=[0, 50, 100])
    page = curves("a < b", {1: Line("x & y", values)})
    ElementTree.fromstring(page)
    points = re.search(r'<polyline class="line s1" points="([^"]*)"', page)[1].split()
    across, down = zip(*(map(float, point.split(",")) for point in points), strict=True)
    assert list(across) == sorted(across)
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)
    assert down[1] < down[2] < down[0]  # up is less
    line = attributes(page, "data-curves")["lines"][0]
    assert line == {"name": "x & y", "slot": 1, "at": [[0, 1.0], [50, 3.0], [100, 2.0]]}


def test_long_curves_are_thinned_without_bias_and_empty_ones_left_out():
    values = pd.Series(np.arange(9000.0), index=np.arange(1, 9001))
    page = curves("loss", {0: Line("a", values, values / 10), 1: Line("b", pd.Series([np.nan], index=[1]))})
    (line,) = attributes(page, "data-curves")["lines"]
    assert len(line["at"]) == POINTS
    assert line["at"][-1][0] == 9000
    assert np.mean([value for _, value in line["at"]]) == pytest.approx(values.mean(), rel=1e-3)
    assert curves("none", {0: Line("b", pd.Series([np.nan], index=[1]))}) == ""


@pytest.mark.parametrize("values", [[2.0], [0.0, 0.0], [-3.0, -3.0]])
def test_a_flat_curve_has_a_place(values):
    page = curves("flat", {0: Line("a", pd.Series(values, index=range(len(values))))})
    assert "nan" not in page
    assert "inf" not in page


def test_bars_are_as_long_as_their_values():
    page = class_bars(["sky", "<b>"], [60.0, 40.0], {"plain": [50.0, float("nan")], "context": [75.0, 12.5]})
    ElementTree.fromstring(page)
    assert re.findall(r"width:([\d.]+)%", page) == ["50.0", "75.0", "0.0", "12.5"]
    page = difference_bars(["sky", "sea"], [60.0, 40.0], [50.0, 50.0], {1: [4.0, -2.0]}, {1: [1.0, 5.0]})
    places = re.findall(r"margin-left:([\d.]+)%;width:([\d.]+)%", page)
    assert places == [("50.0", "50.0"), ("25.0", "25.0")]
    assert page.count("pale") == 1  # the second is less than two standard errors


@pytest.mark.parametrize("n", [3, 30, 150])
def test_a_confusion_matrix_knows_the_share_of_each_cell(n):
    counts = torch.randint(0, 100, (n, n), generator=torch.Generator().manual_seed(0))
    counts[1] = 0  # a class without a label
    order = list(reversed(range(n)))
    page = confusion_matrix("a title", counts, [f"class {k}" for k in range(n)], order)
    ElementTree.fromstring(page)
    data = attributes(page, "data-matrix")
    assert data["names"][0] == f"class {n - 1}"
    values = np.array([float(value or 0) for value in data["permille"].split(",")]).reshape(n, n)
    shares = (1000 * counts / counts.sum(1, keepdim=True).clamp(min=1)).flip(0, 1).numpy()
    assert np.abs(values - shares).max() <= 0.5
    assert len(page) < 200_000


def test_words_of_a_table_are_escaped():
    page = html_table(["a", "b"], [["<i>", "1"], ["x", "2"]])
    assert len(ElementTree.fromstring(page).findall(".//tr")) == 3
    assert "&lt;i&gt;" in page
