"""Counts and scores against loops over pixels, the policies for ignored and absent, and what must not change them."""

import math

import pytest
import torch

from cacseg.metrics import Tally, boundary_tally, confusion, inner, most_likely, scores, tally


def naive_counts(predictions, labels, num_classes, ignore_index):
    counts = [[0] * num_classes for _ in range(num_classes)]
    for label, prediction in zip(labels.flatten().tolist(), predictions.flatten().tolist(), strict=True):
        if label != ignore_index:
            counts[label][prediction] += 1
    return torch.tensor(counts)


def naive_mean_iou(predictions, labels, num_classes, ignore_index):
    """From sets of pixels, without any matrix."""
    pixels = [
        (place, label, prediction)
        for place, (label, prediction) in enumerate(
            zip(labels.flatten().tolist(), predictions.flatten().tolist(), strict=True)
        )
        if label != ignore_index
    ]
    found = []
    for k in range(num_classes):
        true = {place for place, label, _ in pixels if label == k}
        said = {place for place, _, prediction in pixels if prediction == k}
        if true | said:
            found.append(len(true & said) / len(true | said))
    return sum(found) / len(found)


def draw(num_classes=5, shape=(3, 9, 7), ignore_index=255, dtype=torch.long, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, shape, generator=generator)
    predictions = torch.where(
        torch.rand(shape, generator=generator) < 0.6, labels, torch.randint(0, num_classes, shape, generator=generator)
    )
    labels[torch.rand(shape, generator=generator) < 0.2] = ignore_index
    return predictions, labels.to(dtype)


def test_counts_that_are_made_in_pieces(monkeypatch):
    predictions, labels = draw()
    monkeypatch.setattr("cacseg.metrics.PIXELS", 10)
    assert torch.equal(confusion(predictions, labels, 5), naive_counts(predictions, labels, 5, 255))


@pytest.mark.parametrize("dtype", [torch.long, torch.uint8])
@pytest.mark.parametrize(("num_classes", "ignore_index"), [(5, 255), (150, 255), (5, 2), (2, 0), (19, 19)])
def test_equals_a_naive_count(num_classes, ignore_index, dtype):
    predictions, labels = draw(num_classes, ignore_index=ignore_index, dtype=dtype)
    counts = confusion(predictions, labels, num_classes, ignore_index)
    assert counts.dtype == torch.int64
    assert torch.equal(counts, naive_counts(predictions, labels, num_classes, ignore_index))
    expected = naive_mean_iou(predictions, labels, num_classes, ignore_index)
    assert scores(counts).mean_iou == pytest.approx(expected, abs=1e-15)


def test_equals_torchmetrics():
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    predictions, labels = draw(7)
    expected = multiclass_confusion_matrix(predictions, labels, 7, ignore_index=255)
    assert torch.equal(confusion(predictions, labels, 7), expected)


@pytest.mark.gpu
def test_counts_on_a_gpu_are_those_of_the_cpu_and_wait_for_nobody():
    predictions, labels = draw(150, (2, 64, 64))
    expected = confusion(predictions, labels, 150)
    predictions, labels = predictions.cuda(), labels.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts = confusion(predictions, labels, 150)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(counts.cpu(), expected)


def test_counts_add_up_over_any_split():
    predictions, labels = draw(shape=(4, 8, 8))
    whole = confusion(predictions, labels, 5)
    images = sum(confusion(p, y, 5) for p, y in zip(predictions, labels, strict=True))
    halves = sum(confusion(predictions[..., part], labels[..., part], 5) for part in (slice(0, 3), slice(3, None)))
    assert torch.equal(whole, images)
    assert torch.equal(whole, halves)


def test_renaming_the_classes_renames_the_scores():
    predictions, labels = draw()
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = torch.where(labels == 255, 255, order[labels.clamp(max=4)])
    before, after = scores(confusion(predictions, labels, 5)), scores(confusion(order[predictions], renamed, 5))
    assert torch.equal(before.iou, after.iou[order])
    assert torch.equal(before.accuracy, after.accuracy[order])
    assert before.mean_iou == pytest.approx(after.mean_iou, abs=1e-15)
    assert before.pixel_accuracy == after.pixel_accuracy


def test_only_labels_leave_a_pixel_out():
    """A prediction of the ignored class counts as wrong, as any other wrong one."""
    labels, predictions = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 2, 1, 0])
    counts = confusion(predictions, labels, 3, ignore_index=2)
    assert counts.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert counts.sum() == 3
    assert scores(counts).iou.tolist() == [0.5, 1.0, 0.0]


def test_absent_classes():
    """In neither: no score, left out of the means. Predicted alone: IoU 0, which counts; its accuracy is undefined."""
    counts = torch.tensor([[6, 0, 2, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    found = scores(counts)
    assert found.iou[:3].tolist() == pytest.approx([6 / 9, 1 / 2, 0.0])
    assert math.isnan(found.iou[3])
    assert found.mean_iou == pytest.approx((6 / 9 + 1 / 2 + 0.0) / 3)
    assert found.accuracy[:2].tolist() == pytest.approx([6 / 8, 1 / 2])
    assert torch.isnan(found.accuracy[2:]).all()
    assert found.mean_accuracy == pytest.approx((6 / 8 + 1 / 2) / 2)
    assert found.dice[:3].tolist() == pytest.approx([12 / 15, 2 / 3, 0.0])
    assert math.isnan(found.dice[3])
    assert found.mean_dice == pytest.approx((12 / 15 + 2 / 3 + 0.0) / 3)
    assert found.pixel_accuracy == pytest.approx(7 / 10)
    assert torch.isnan(found.boundary_iou).all()
    assert math.isnan(found.mean_boundary_iou)


def test_nothing_labelled_gives_no_score():
    counts = confusion(torch.zeros(4, dtype=torch.long), torch.full((4,), 255), 3)
    assert counts.sum() == 0
    found = scores(counts)
    assert all(math.isnan(value) for value in found[4:])


def test_a_tally_scores_as_its_matrix():
    predictions, labels = draw(shape=(3, 6, 6))
    counts = torch.stack([confusion(p, y, 5) for p, y in zip(predictions, labels, strict=True)])
    summed = scores(Tally(*(one.sum(0) for one in tally(counts))))
    for one, two in zip(summed, scores(counts.sum(0)), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


def naive_boundary(mask):
    """The published code in loops: the mask less its erosion by d steps of a 3x3 square, zeros around the image."""
    height, width = len(mask), len(mask[0])
    distance = max(1, int(round(0.02 * math.sqrt(height**2 + width**2))))  # noqa: RUF046
    eroded = mask
    for _ in range(distance):
        eroded = [
            [
                all(
                    0 <= y + dy < height and 0 <= x + dx < width and eroded[y + dy][x + dx]
                    for dy in (-1, 0, 1)
                    for dx in (-1, 0, 1)
                )
                for x in range(width)
            ]
            for y in range(height)
        ]
    return {(y, x) for y in range(height) for x in range(width) if mask[y][x] and not eroded[y][x]}


def naive_boundary_counts(predictions, labels, num_classes, ignore_index):
    """Sums over images, one class after another; ignored pixels are in no mask."""
    sums = torch.zeros(3, num_classes, dtype=torch.long)
    for predicted, labelled in zip(predictions.tolist(), labels.tolist(), strict=True):
        for k in range(num_classes):
            true, said = (
                naive_boundary(
                    [
                        [value == k and label != ignore_index for value, label in zip(*rows, strict=True)]
                        for rows in zip(values, labelled, strict=True)
                    ]
                )
                for values in (labelled, predicted)
            )
            sums[:, k] += torch.tensor([len(true & said), len(true), len(said)])
    return sums


def draw_regions(size, seed=0, n=3, ignore_index=255):
    """Blobs of several pixels, moved a little and with some holes in the prediction."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, n, (2, 1, 4, 4), generator=generator).float()
    labels = torch.nn.functional.interpolate(coarse, size=size)[:, 0].long()
    predictions = labels.roll((1, 2), (1, 2))
    predictions[torch.rand(labels.shape, generator=generator) < 0.01] = 0
    labels[:, : size[0] // 6, size[1] // 3 :] = ignore_index
    return predictions, labels


@pytest.mark.parametrize("ignore_index", [255, 3, 1])
@pytest.mark.parametrize("size", [(40, 56), (75, 80), (120, 34), (3, 9), (1, 1)])
def test_boundaries_equal_those_of_the_published_code(size, ignore_index):
    predictions, labels = draw_regions(size, ignore_index=ignore_index)
    found = boundary_tally(predictions, labels.to(torch.uint8), 3, ignore_index)
    expected = naive_boundary_counts(predictions, labels, 3, ignore_index)
    assert torch.equal(torch.stack(found), expected)
    hits, labelled, predicted = expected.double()
    score = scores(confusion(predictions, labels, 3, ignore_index), found)
    torch.testing.assert_close(score.boundary_iou, hits / (labelled + predicted - hits), equal_nan=True)


def test_a_perfect_prediction_has_perfect_boundaries():
    """Around ignored pixels too, whatever is predicted there."""
    predictions, labels = draw_regions((60, 70))
    perfect = torch.where(labels == 255, predictions, labels)
    hits, labelled, predicted = boundary_tally(perfect, labels, 3)
    assert hits.equal(labelled)
    assert hits.equal(predicted)
    assert 0 < hits.sum() < (labels != 255).sum()


def test_a_moved_region_loses_more_at_its_boundary():
    labels = torch.zeros(100, 100, dtype=torch.long)
    labels[20:80, 20:80] = 1
    predictions = labels.roll(2, 0)
    found = scores(confusion(predictions, labels, 2), boundary_tally(predictions, labels, 2))
    assert found.boundary_iou[1] < found.iou[1] - 0.1


def test_inner_pixels_are_those_that_stay_when_every_class_is_eroded():
    classes, _ = draw_regions((30, 41))
    for distance in (1, 2, 7, 15):
        expected = torch.zeros_like(classes, dtype=torch.bool)
        for k in range(3):
            outside = torch.nn.functional.pad((classes != k).float(), (distance,) * 4, value=1.0)
            expected |= torch.nn.functional.max_pool2d(outside, 2 * distance + 1, 1) == 0
        assert torch.equal(inner(classes, distance), expected)


@pytest.mark.gpu
def test_boundaries_on_a_gpu_are_those_of_the_cpu_and_wait_for_nobody():
    predictions, labels = draw_regions((200, 300), n=150)
    expected = boundary_tally(predictions, labels, 150)
    predictions, labels = predictions.cuda(), labels.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = boundary_tally(predictions, labels, 150)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(one.cpu(), two) for one, two in zip(found, expected, strict=True))


def test_what_is_refused():
    labels = torch.tensor([[0, 1], [2, 255]])
    with pytest.raises(ValueError, match=r"one shape; got \(2, 3\) and \(2, 2\)\. Resize"):
        confusion(torch.zeros(2, 3, dtype=torch.long), labels, 3)
    with pytest.raises(TypeError, match=r"predictions must be integers .* got torch\.float32"):
        confusion(torch.zeros(2, 2), labels, 3)
    with pytest.raises(ValueError, match=r"ignore index 254; got the values 255 in 1 of 4 places"):
        confusion(torch.zeros(2, 2, dtype=torch.long), labels, 3, ignore_index=254)
    with pytest.raises(ValueError, match=r"predictions must be in \[0, 3\); got values from 0 to 3"):
        confusion(torch.tensor([[0, 1], [3, 0]]), labels, 3)
    with pytest.raises(ValueError, match=r"a confusion matrix \[n, n\]; got shape \(2, 3\)"):
        scores(torch.zeros(2, 3, dtype=torch.long))


def test_the_most_likely_class_is_the_argmax():
    drawn = torch.randn(2, 5, 7, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(most_likely(drawn, 1), drawn.argmax(1))
    assert torch.equal(most_likely(torch.zeros(3, 4), 0), torch.zeros(4, dtype=torch.long))  # of equals the first
