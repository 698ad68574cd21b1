"""Images held out of a split: the same ones each time, together with their group."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import data_trees as trees
from cacseg.data import open_data
from cacseg.data.hold_out import hold_out


def _names(data):
    return {data.image_name(k) for k in range(len(data))}


def _folder(root: Path, names):
    for name in names:
        trees.write(root / f"images/train/{name}.png", trees.image(0))
        trees.write(root / f"labels/train/{name}.png", np.zeros(trees.SIZE, np.uint8))
    trees.write_text(root / "classes.txt", "a\nb\n")
    return open_data("folder", root, "train")


def test_a_share_that_stays_as_data_grow(tmp_path):
    data = _folder(tmp_path, [f"image_{k:03d}" for k in range(200)])
    train, val = hold_out(data, 0.2, None)
    assert not _names(train) & _names(val)
    assert _names(train) | _names(val) == _names(data)
    assert 20 <= len(val) <= 60
    assert (train.split, val.split) == ("train", "val")
    more = _folder(tmp_path, [f"image_{k:03d}" for k in range(200, 220)])
    assert _names(val) <= _names(hold_out(more, 0.2, None)[1])
    assert _names(train) <= _names(hold_out(more, 0.2, None)[0])


def test_sides_do_not_depend_on_other_names(tmp_path):
    """Of any few names, those below the share and those above stay where they are as others come."""
    data = _folder(tmp_path, [f"image_{k:02d}" for k in range(40)])
    held = _names(hold_out(data, 0.3, None)[1])
    assert 3 < len(held) < 30
    pairs = np.random.default_rng(0).permutation(np.array(data.pairs, object)[:, 0])
    of_name = {pair.name: pair for pair in data.pairs}
    stable = 0
    for count in range(2, 40):
        some = replace(data, pairs=tuple(of_name[name] for name in pairs[:count]))
        train, val = hold_out(some, 0.3, None)
        if held & _names(some) and _names(some) - held:
            stable += 1
            assert _names(val) == held & _names(some)
        else:  # the share gives none, or all: one changes sides
            assert len(val) == 1 or len(train) == 1
    assert stable > 30


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_at_least_one_of_each(share, tmp_path):
    train, val = hold_out(_folder(tmp_path, ["a", "b", "c"]), share, None)
    assert len(train) >= 1
    assert len(val) >= 1


def test_groups_stay_together(tmp_path):
    data = _folder(tmp_path, [f"video{v}_{k}" for v in range(12) for k in range(4)])
    train, val = hold_out(data, 0.3, r"^(video\d+)_")
    groups = [{name.partition("_")[0] for name in _names(part)} for part in (train, val)]
    assert not groups[0] & groups[1]
    assert len(val) == 4 * len(groups[1]) > 0
    for pattern in (r"^(film)", r"^video"):
        with pytest.raises(ValueError, match=r"val_group.*video0_0"):
            hold_out(data, 0.3, pattern)
    with pytest.raises(ValueError, match=r"2 groups .* or more; the split 'train' has 1"):
        hold_out(data, 0.3, r"^(video)")
