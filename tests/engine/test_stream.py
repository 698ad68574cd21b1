"""What stands at a position of the stream does not depend on who reads it."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cacseg.data import Sample
from cacseg.data.sample import read_sample
from cacseg.engine.stream import MicroBatches, Order, TrainStream, collate, share_of_batch
from engine_runs import Stripes, crop_32


def test_an_epoch_is_a_permutation_and_the_next_another():
    first, second = (list(map(Order(3, 50), range(start, start + 50))) for start in (0, 50))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != list(map(Order(4, 50), range(50)))


def test_with_weights_an_epoch_shows_images_in_proportion():
    """Each the whole number below or above its expected times, whoever asks first for which position."""
    weights = np.array([1.0, 1.0, 3.0, 0.5, 1.0, 2.0, 1.0, 1.5])
    expected = weights * 8 / weights.sum()
    order = Order(3, 8, weights)
    epochs = [[order(position) for position in range(start, start + 8)] for start in range(0, 8 * 1000, 8)]
    for epoch in epochs:
        assert (np.abs(np.bincount(epoch, minlength=8) - expected) < 1.0).all()
    np.testing.assert_allclose(np.bincount(np.concatenate(epochs), minlength=8) / 1000, expected, atol=0.05)
    assert len({tuple(epoch) for epoch in epochs}) > 950
    backwards = Order(3, 8, weights)
    assert [backwards(position) for position in reversed(range(40))][::-1] == [order(place) for place in range(40)]


@pytest.mark.parametrize(("accumulate", "world_size"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_the_parts_of_a_step_are_its_batch(accumulate, world_size):
    """Whatever the split, step s covers positions 8 s to 8 s + 7, each once."""
    steps, start = 3, 5
    read = [
        list(islice(MicroBatches(8, accumulate, rank, world_size, start_step=start), steps * accumulate))
        for rank in range(world_size)
    ]
    for step in range(steps):
        parts = [part for rank in read for part in rank[step * accumulate : (step + 1) * accumulate]]
        positions = [position for part in parts for position in part]
        assert sorted(positions) == list(range((start + step) * 8, (start + step + 1) * 8))


def test_a_batch_that_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match=r"got 16 images for 3 devices times 1\. Near it are 15 and 18"):
        share_of_batch(16, 1, 3)
    with pytest.raises(ValueError, match=r"got 2 images for 2 devices times 2. Near it are 4"):
        share_of_batch(2, 2, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_starts_do_not_change_the_data(workers):
    stream = TrainStream(Stripes(), crop_32, seed=7)
    expected = [collate([stream[position] for position in range(first, first + 4)]) for first in (8, 12, 16)]
    loader = DataLoader(stream, batch_sampler=MicroBatches(4, start_step=2), collate_fn=collate, num_workers=workers)
    for batch, other in zip(loader, expected, strict=False):
        assert all(torch.equal(one, two) for one, two in zip(batch, other, strict=True))


def test_another_seed_gives_other_crops():
    first, second = (TrainStream(Stripes(length=1), crop_32, seed=seed) for seed in (0, 1))
    assert not all(torch.equal(first[position].image, second[position].image) for position in range(3))


def test_a_wrong_label_is_named_with_its_image():
    data = Stripes()
    sample = data.read(4)
    data.read = lambda index: sample
    sample.labels[3, 5] = 255
    assert read_sample(data, 4) is sample  # ignored, so all is well
    sample.labels[3, 6] = 17
    with pytest.raises(ValueError, match=r"in \[0, 3\) or the ignore index 255; got 17 \(stripes, train: image_004\)"):
        read_sample(data, 4)
    data.read = lambda index: Sample(sample.image, np.zeros((20, 56), np.uint8))
    with pytest.raises(ValueError, match=r"one size; stripes, train: image_004 is 56x40 and its labels 56x20"):
        read_sample(data, 4)
