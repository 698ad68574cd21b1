"""Outlines of regions: exact, valid rings, bridges, and work that grows with the pixels."""

import time

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from cacseg.data.spans import paint, polygon_spans
from cacseg.runtime.outlines import find_regions, outlines

RING = np.pad(np.full((5, 6), 1, np.uint8), 2)
RING[4:6, 4:7] = 0


def masks():
    numbers = np.random.default_rng(0)
    for k in range(60):
        height, width = numbers.integers(1, 30, 2)
        size, count = 1 + k % 3, 1 + k % 4
        labels = np.kron(numbers.integers(0, count, (height, width)), np.ones((size, size))).astype(np.uint8)
        yield labels[:height, :width]


def turn(ring):
    (x, y), (next_x, next_y) = ring.T, np.roll(ring, -1, 0).T
    return (y * next_x - x * next_y).sum()


def test_paths_have_the_pixels_of_their_regions():
    for labels in masks():
        found = outlines(labels)
        counts = np.array([len(points) for _, points in found])
        spans = polygon_spans(np.concatenate([points for _, points in found]), counts, labels.shape)
        covered = np.zeros(labels.size, int)
        for start, end in zip(spans.start, spans.end, strict=True):
            covered[start:end] += 1
        assert (covered == 1).all()
        values = np.array([label for label, _ in found], np.uint8)
        np.testing.assert_array_equal(paint([spans], values, labels.shape, 255, False), labels)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools, by numpy 2
def test_others_read_paths_to_the_same_pixels():
    """pycocotools as they are; OpenCV, whose pixels are points, sixteen times as large."""
    for labels in masks():
        for one in find_regions(labels):
            points = one.path()
            runs = coco_mask.merge(coco_mask.frPyObjects([points.ravel().tolist()], *labels.shape))
            region = coco_mask.decode(runs).astype(bool)
            assert region.sum() == one.area
            assert (labels[region] == one.label).all()
            large = np.zeros((16 * labels.shape[0], 16 * labels.shape[1]), np.uint8)
            cv2.fillPoly(large, [(16 * points).astype(np.int32)], 1)
            np.testing.assert_array_equal(large[8::16, 8::16], region)


def test_regions_are_parted_by_corners_and_their_rings_do_not_touch_themselves():
    for labels in masks():
        found = find_regions(labels)
        count = sum(
            cv2.connectedComponents((labels == k).astype(np.uint8), connectivity=4)[0] - 1 for k in np.unique(labels)
        )
        assert len(found) == count
        assert [one.area for one in found] == sorted((one.area for one in found), reverse=True)
        for one in found:
            assert turn(one.rings[0]) > 0
            assert all(turn(ring) < 0 for ring in one.rings[1:])
            assert sum(map(turn, one.rings)) == 2 * one.area
            assert all(len(np.unique(ring, axis=0)) == len(ring) for ring in one.rings)


def test_a_ring_around_a_background_that_is_left_out():
    (one,) = find_regions(RING, skip=[0])
    assert (one.label, one.area) == (1, 24)
    assert [ring.tolist() for ring in one.rings] == [
        [[2, 2], [2, 7], [8, 7], [8, 2]],
        [[4, 4], [7, 4], [7, 6], [4, 6]],
    ]
    assert [2, 4] in one.path().tolist()  # where the bridge ends
    assert find_regions(np.zeros((3, 4), np.uint8), skip=[0]) == []


@pytest.mark.parametrize("simplify", [1.0, 3.0])
def test_simplified_paths_stay_near(simplify):
    """Bridges are the same there and back, so that what changes lies near the edges."""
    y, x = np.mgrid[:90, :120]
    labels = ((np.hypot(x - 60, y - 45) < 40) & (np.hypot(x - 70, y - 40) > 15)).astype(np.uint8)
    (whole,), (one,) = find_regions(labels, skip=[0]), find_regions(labels, skip=[0])
    points = one.path(simplify)
    assert len(points) < 0.6 * len(whole.path())
    drawn = paint(
        [polygon_spans(points, np.array([len(points)]), labels.shape)], np.ones(1, np.uint8), labels.shape, 0, False
    )
    edge = cv2.morphologyEx(labels, cv2.MORPH_GRADIENT, np.ones((2 * int(simplify) + 3,) * 2, np.uint8)) > 0
    assert (drawn[~edge] == labels[~edge]).all()
    assert 0 < (drawn != labels).mean() < 0.01 * simplify


def test_what_would_vanish_stays_whole():
    labels = np.zeros((7, 9), np.uint8)
    labels[3, 4] = 1
    found = dict(outlines(labels, 2.0))
    assert len(found[1]) == 4
    drawn = np.concatenate([found[0], found[1]]), np.array([len(found[0]), 4])
    np.testing.assert_array_equal(
        paint([polygon_spans(*drawn, labels.shape)], np.array([0, 1], np.uint8), labels.shape, 255, False), labels
    )


def test_work_grows_with_the_pixels():
    """Eight times the noise would take 64 times as long if each hole looked at all the others."""
    numbers, seconds = np.random.default_rng(0), []
    for height in (25, 200):
        labels = np.where(numbers.random((height, 300)) < 0.1, 1, 0).astype(np.uint8)
        rounds = []
        for _ in range(2):
            start = time.process_time()
            outlines(labels)
            rounds.append(time.process_time() - start)
        seconds.append(min(rounds))
    assert seconds[1] < 20 * seconds[0]
