"""An evaluation that workers share, some of which die."""

import numpy as np
import pytest
import torch

import data_trees as trees
from cacseg.data import open_data
from cacseg.data.sample import Part
from cacseg.engine.evaluate import evaluate
from cacseg.engine.shared import evaluate_shared
from cacseg.runtime.shards import Shard
from distributed_evaluation import FirstClasses, small_data, small_model

SETTINGS = {"weights": "some"}


class Breaking(FirstClasses):
    """One image cannot be read."""

    def __init__(self, broken):
        super().__init__(small_data().data)
        self.broken, self.seen = broken, []

    def read(self, index):
        self.seen.append(index)
        if index == self.broken:
            raise OSError(f"{self.image_name(index)} is broken")
        return super().read(index)


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.mark.parametrize("oracle", [False, True])
def test_a_worker_that_dies_costs_the_image_it_was_at(model, tmp_path, oracle):
    expected = evaluate(model, small_data(), oracle=oracle)
    shards = [Shard(index, 3) for index in range(3)]
    names = [image.name for image in expected.images]
    owned = [[index for index, name in enumerate(names) if shard.owns(name)] for shard in shards]
    victim = max(range(3), key=lambda index: len(owned[index]))
    assert len(owned[victim]) > 1
    last = owned[victim][-1]
    how = {"oracle": oracle, "workers": 0}
    with pytest.raises(OSError, match="broken"):
        evaluate_shared(model, Breaking(last), tmp_path, shards[victim], SETTINGS, **how)
    for index in {0, 1, 2} - {victim}:
        assert evaluate_shared(model, small_data(), tmp_path, shards[index], SETTINGS, **how) is None
    again = Breaking(None)
    found = evaluate_shared(model, again, tmp_path, Shard(), SETTINGS, **how)
    assert again.seen == [last]
    assert [image.name for image in found.images] == names
    for name, counts in expected.counts.items():
        assert torch.equal(found.counts[name], counts)
        assert all(map(torch.equal, found.boundaries[name], expected.boundaries[name]))
        for one, other in zip(found.images, expected.images, strict=True):
            assert all(map(torch.equal, one.tallies[name], other.tallies[name]))
    once_more = evaluate_shared(model, Breaking(0), tmp_path, shards[0], SETTINGS, **how)  # nothing is left to read
    assert once_more.scores().mean_iou == expected.scores().mean_iou


def test_workers_with_other_settings_are_refused(model, tmp_path):
    evaluate_shared(model, small_data(), tmp_path, Shard(), SETTINGS, workers=0)
    with pytest.raises(ValueError, match="weights"):
        evaluate_shared(model, small_data(), tmp_path, Shard(), {"weights": "others"}, workers=0)


@pytest.mark.parametrize("changed", ["image", "labels"])
def test_an_image_that_changed_since_it_was_counted_is_counted_again(changed, model, tmp_path):
    trees.folder(tmp_path / "data")
    data = open_data("folder", tmp_path / "data", "train")
    part = Part(data, [0, 2])
    evaluate_shared(model, part, tmp_path / "out", Shard(), SETTINGS, workers=0)
    pair = data.pairs[2]
    if changed == "image":
        trees.write(tmp_path / "data" / pair.image, np.full((*trees.SIZE, 3), 200, np.uint8))
    else:
        trees.write(tmp_path / "data" / pair.labels, np.ones(trees.SIZE, np.uint8))
    done = []
    found = evaluate_shared(
        model, part, tmp_path / "out", Shard(), SETTINGS, workers=0, progress=lambda count, _: done.append(count)
    )
    assert done == [2]  # one of two was counted before
    expected = evaluate(model, part)
    for name, counts in expected.counts.items():
        assert torch.equal(found.counts[name], counts)


@pytest.mark.parametrize("damage", ["empty", "half", "flipped", "garbage"])
def test_damaged_counts_of_an_image_are_named(model, tmp_path, damage):
    evaluate_shared(model, small_data(), tmp_path, Shard(), SETTINGS)
    path = next((tmp_path / "images").rglob("*.npz"))
    whole = path.read_bytes()
    at = whole.index(b"PK\x01\x02")
    damaged = {"empty": b"", "half": whole[: len(whole) // 2], "flipped": whole[:at] + b"XX" + whole[at + 2 :]}
    damaged["garbage"] = b"garbage!"
    path.write_bytes(damaged[damage])
    size = len(damaged[damage])
    words = rf"{path.name} is damaged .*{size} bytes.*Remove it, and run any of the workers again"
    with pytest.raises(ValueError, match=words) as raised:
        evaluate_shared(model, small_data(), tmp_path, Shard(), SETTINGS)
    assert "pickle" not in str(raised.value)  # as numpy advises
    path.unlink()
    assert evaluate_shared(model, small_data(), tmp_path, Shard(), SETTINGS) is not None
