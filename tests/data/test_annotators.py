"""Labels of several annotators: one is drawn for each crop, everything else reads what most of them chose."""

import numpy as np
import pytest
import torch
from PIL import Image

from cacseg.data import Sample, open_data
from cacseg.data.check import check_data
from cacseg.data.hold_out import hold_out
from cacseg.data.sample import has_annotators, majority
from cacseg.data.transforms import TrainTransform
from cacseg.engine.decisions import decide_resident
from cacseg.engine.stream import TrainStream


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def tree(tmp_path):
    """Four images; three annotators of the first two, who agree on the left half, and one of the others."""
    (tmp_path / "classes.txt").write_text("road\ncar\nsky\n")
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for k in range(4):
            save(tmp_path / f"images/{split}/{k}.png", rng.integers(0, 256, (24, 32, 3), np.uint8))
            for number, folder in enumerate(("labels", "labels.2", "labels.3") if k < 2 else ("labels",)):
                labels = np.full((24, 32), number, np.uint8)
                labels[:, :16] = 1
                save(tmp_path / folder / split / f"{k}.png", labels)
    return tmp_path


def test_the_majority_and_its_ties():
    votes = [[0, 0, 1, 1, 255, 255, 2], [0, 1, 1, 1, 1, 255, 1], [0, 2, 2, 255, 255, 255, 255]]
    found = majority([np.array([one], np.uint8) for one in votes], 255)
    assert found.tolist() == [[0, 255, 1, 1, 1, 255, 255]]
    for seed in range(20):
        given = np.random.default_rng(seed).choice([0, 1, 2, 255], (4, 3, 50)).astype(np.uint8)
        counts = np.stack([(given == label).sum(0) for label in range(3)])
        tied = ((counts == counts.max(0)).sum(0) > 1) | (counts.max(0) == 0)
        np.testing.assert_array_equal(majority(list(given), 255), np.where(tied, 255, counts.argmax(0)))


def test_reading_takes_the_majority_and_a_number_draws_one(tree):
    data = open_data("folder", tree, "val")
    assert data.has_annotators
    assert (data.read(0).labels[:, :16] == 1).all()
    assert (data.read(0).labels[:, 16:] == 255).all()
    assert [int(data.read_drawn(0, number)[1][0, 31]) for number in (0.0, 0.34, 0.99)] == [0, 1, 2]
    assert [int(data.read_drawn(2, number)[1][0, 31]) for number in (0.0, 0.99)] == [0, 0]


def test_crops_draw_each_annotator_alike_by_seed_and_position(tree):
    data = open_data("folder", tree, "train")
    transform = TrainTransform((24, 32), ratios=(1.0, 1.0), max_share=1.0, flip=0.0, distort=False)
    stream = TrainStream(data, transform, seed=3)
    again = TrainStream(data, transform, seed=3)
    found = []
    for position in range(300):
        labels = stream[position].labels
        if stream.order(position) < 2:
            found.append(int(labels[0, 31]))
            assert position > 40 or torch.equal(labels, again[position].labels)
    counts = np.bincount(found)
    assert counts.sum() == 150
    assert abs(counts - 50).max() < 23  # 4 standard deviations


def test_a_held_out_part_draws_as_well(tree):
    held, _ = hold_out(open_data("folder", tree, "train"), 0.3, None)
    assert has_annotators(held)
    stream = TrainStream(held, TrainTransform((24, 32), ratios=(1.0, 1.0), flip=0.0, distort=False), 0)
    assert {int(stream[position].labels[0, 31]) for position in range(40)} == {0, 1, 2}


def test_one_drawn_label_has_the_gradient_of_soft_labels_on_average():
    """Of cross-entropy, over all annotators: what training sees is an unbiased sample of the soft labels' gradient."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 3, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    given = torch.randint(0, 3, (4, 4, 5), generator=generator)
    soft = torch.stack([(given == label).double().mean(0) for label in range(3)])[None]
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, soft), logits)
    drawn = [torch.autograd.grad(torch.nn.functional.cross_entropy(logits, one[None]), logits)[0] for one in given]
    torch.testing.assert_close(torch.stack(drawn).mean(0), expected)


def test_without_annotators_nothing_is_drawn(tree):
    for folder in ("labels.2", "labels.3"):
        for path in (tree / folder).rglob("*.png"):
            path.unlink()
    data = open_data("folder", tree, "train")
    assert not has_annotators(data)
    assert isinstance(data.read(0), Sample)
    assert TrainStream(data, TrainTransform((24, 32)), 0).draws_annotator is False


def test_images_of_annotators_are_not_kept_on_the_device(tree):
    data = open_data("folder", tree, "train")
    kept, words = decide_resident((data, data), torch.device("cuda"))
    assert not kept
    assert "annotators" in words


def test_a_check_counts_them_and_names_a_file_without_an_image(tree):
    report = check_data("folder", tree, workers=0)
    assert not any(one.problems for one in report.splits)
    assert any("2 images" in note and "annotators" in note for note in report.notes)
    train = next(one for one in report.splits if one.split == "train")
    assert int(train.pixels[255]) == 2 * 24 * 16
    save(tree / "labels.2/train/nobody.png", np.zeros((24, 32), np.uint8))
    save(tree / "labels.3/train/1.png", np.full((24, 32), 7, np.uint8))
    problems = "\n".join(p for one in check_data("folder", tree, workers=0).splits for p in one.problems)
    assert "nobody.png" in problems
    assert "labels.3/train/1.png" in problems
    with pytest.raises(OSError, match=r"nobody\.png"):
        open_data("folder", tree, "train")
