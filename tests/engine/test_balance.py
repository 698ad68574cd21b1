"""How often images are shown and what classes weigh, against counts by hand."""

import numpy as np
import pytest

from cacseg.data import Sample
from cacseg.engine.balance import count_classes, frequency_weights, repeat_factors
from engine_runs import Stripes


class Few(Stripes):
    """Four images of 2x5: class 0 in all, class 1 in two, class 2 in one, half of which is ignored."""

    rows = ([0] * 10, [0] * 8 + [1] * 2, [0] * 6 + [1] * 4, [0] * 4 + [2] + [255] * 5)

    def __init__(self):
        super().__init__(length=4)

    def read(self, index):
        labels = np.array(self.rows[index], np.uint8).reshape(2, 5)
        return Sample(np.zeros((2, 5, 3), np.uint8), labels)


def test_classes_are_counted():
    counts = count_classes(Few())
    assert counts.pixels.tolist() == [[10, 0, 0], [8, 2, 0], [6, 4, 0], [4, 0, 1]]
    assert counts.labelled.tolist() == [10, 10, 10, 5]


@pytest.mark.parametrize(
    ("threshold", "factors"),
    [(0.2, [1, 1, 1, 1]), (0.4, [1, 1, 1, 1.6**0.5]), (1.0, [1, 2**0.5, 2**0.5, 2.0])],
)
def test_images_of_rare_classes_come_more_often(threshold, factors):
    np.testing.assert_allclose(repeat_factors(count_classes(Few()), threshold), factors)


def test_weights_are_the_median_frequency_over_the_own():
    """28 of 35 pixels, 6 of 20 where class 1 is, 1 of 5 where class 2 is: the median is 0.3."""
    assert frequency_weights(count_classes(Few())) == (0.375, 1.0, 1.5)


def test_a_class_that_no_image_has_weighs_one():
    class Three(Few):
        class_names = ("left", "right", "sky", "sea")

    assert frequency_weights(count_classes(Three()))[3] == 1.0


def test_labels_that_are_all_ignored_have_no_frequency():
    class Ignored(Few):
        rows = ([255] * 10,) * 4

    with pytest.raises(ValueError, match="ignored"):
        frequency_weights(count_classes(Ignored()))
