"""Pictures: what can be checked without eyes. They were looked at, with 6, 21 and 150 classes."""

from types import SimpleNamespace

import numpy as np

from cacseg.data import Sample
from cacseg.reports.pictures import LEFT_OUT, RIGHT, WRONG, comparison_sheet, errors


def test_errors_are_red_where_they_are():
    labels = np.array([[0, 1], [2, 255]], np.uint8)
    predicted = np.array([[0, 2], [2, 0]], np.uint8)
    found = errors(predicted, labels, 255)
    assert found.tolist() == [[list(RIGHT), list(WRONG)], [list(RIGHT), list(LEFT_OUT)]]


def test_a_sheet_shows_every_sample_and_the_classes_that_occur():
    numbers = np.random.default_rng(0)
    palette = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 0, 250)]
    samples = [
        Sample(numbers.integers(0, 256, (*size, 3), np.uint8), numbers.integers(0, 2, size, np.uint8))
        for size in ((40, 60), (60, 40))
    ]
    masks = [[np.full(one.labels.shape, 2, np.uint8) for one in samples]] * 2
    data = SimpleNamespace(class_names=["a", "b", "c", "d"], palette=palette, ignore_index=255)
    sheet = comparison_sheet(samples, ["first", "second"], masks, ["one", "two"], data)
    assert sheet.dtype == np.uint8
    assert sheet.shape[0] > 2 * 160
    assert sheet.shape[1] >= 6 * 160 * 2 / 3
    colours = {tuple(colour) for colour in np.unique(sheet.reshape(-1, 3), axis=0).tolist()}
    assert palette[2] in colours
    assert palette[3] not in colours  # occurs nowhere, so it is not in the legend either
    assert WRONG in colours


def test_a_panorama_does_not_widen_the_sheet():
    widths = []
    for width in (80, 800):
        sample = Sample(np.zeros((40, width, 3), np.uint8), np.zeros((40, width), np.uint8))
        data = SimpleNamespace(class_names=["a"], palette=[(9, 9, 9)], ignore_index=255)
        widths.append(comparison_sheet([sample], ["x"], [[sample.labels]], ["one"], data).shape[1])
    assert widths[0] == widths[1]
