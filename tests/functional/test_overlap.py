import pytest
import torch

import naive
from cacseg import functional


def draw(spatial=(3, 4), n=5, seed=0):
    """Class n - 1 is in no image, and the first pixels of the first one are ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, n, *spatial, generator=generator).double() * 3
    labels = torch.randint(0, n - 1, (2, *spatial), generator=generator)
    labels.view(2, -1)[0, :2] = 255
    return logits, labels


@pytest.mark.parametrize("spatial", [(12,), (3, 4), (2, 3, 2)])
def test_it_equals_a_loop(spatial):
    logits, labels = draw(spatial)
    ours = functional.overlap_loss(logits, labels)
    assert ours.item() == pytest.approx(naive.overlap_loss(logits, labels), abs=1e-12)
    fitted = torch.where(labels == 255, -1, labels)
    torch.testing.assert_close(functional.overlap_loss(logits, fitted, ignore_index=-1), ours)


def test_packed_rows_are_the_pixels_of_a_dense_batch():
    logits, labels = draw()
    rows = logits.flatten(2).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(
        functional.overlap_loss(rows, labels.flatten()), functional.overlap_loss(logits, labels), rtol=1e-12, atol=1e-12
    )


def test_of_sure_answers_it_is_what_miou_lacks():
    from torchmetrics.functional.classification import multiclass_jaccard_index

    _, labels = draw((8, 9))
    answers = torch.randint(0, 5, labels.shape, generator=torch.Generator().manual_seed(1))
    sure = 200.0 * functional.class_masks(answers, 5, dtype=torch.float64)
    kept = labels != 255
    scores = multiclass_jaccard_index(answers[kept], labels[kept], 5, average="none")
    assert functional.overlap_loss(sure, labels).item() == pytest.approx(1.0 - scores[:4].mean().item(), abs=1e-6)
    right = 200.0 * functional.class_masks(labels, 5, dtype=torch.float64)
    assert functional.overlap_loss(right, labels).item() == pytest.approx(0.0, abs=1e-12)


def test_gradients_are_right_and_none_come_from_ignored_pixels():
    logits, labels = draw((2, 3), n=4)
    torch.autograd.gradcheck(lambda one: functional.overlap_loss(one, labels), logits.requires_grad_())
    truth = functional.overlap_loss(logits, labels)
    for value in (100.0, float("nan")):
        seen = logits.detach().clone()
        seen[0, :, 0, :2] = value
        found = functional.overlap_loss(seen.requires_grad_(), labels)
        torch.testing.assert_close(found, truth)
        found.backward()
        assert seen.grad.isfinite().all()
        assert seen.grad.abs().sum() > 0
        assert (seen.grad[0, :, 0, :2] == 0).all()


def test_without_labels_it_is_zero_with_zero_gradients():
    logits, labels = draw()
    loss = functional.overlap_loss(logits.requires_grad_(), torch.full_like(labels, 255))
    loss.backward()
    assert loss.item() == 0.0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    logits, labels = draw((24, 32))
    logits = logits.to(dtype)
    truth = functional.overlap_loss(logits.double(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for one in (logits, logits.float()):
            found = functional.overlap_loss(one, labels)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_labels_of_another_batch_are_refused():
    logits, labels = draw()
    with pytest.raises(ValueError, match="same batch size"):
        functional.overlap_loss(logits, labels[:1])
    with pytest.raises(ValueError, match=r"packed labels must be \[N\] with N = 12"):
        functional.overlap_loss(torch.randn(12, 5), labels)
