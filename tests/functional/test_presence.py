import pytest
import torch

from cacseg import functional


def test_codes_are_mean_and_largest_of_one_length():
    features = torch.tensor([[[[3.0, 1.0]], [[0.0, 4.0]]]])  # 1 image, 2 channels, 2 pixels
    half, five = 8**0.5, 5.0
    expected = torch.tensor([[2.0 / half, 2.0 / half, 3.0 / five, 4.0 / five]]) * 15.0
    torch.testing.assert_close(functional.scene_codes(features, 15.0), expected)
    torch.testing.assert_close(functional.scene_codes(7.0 * features, 15.0), expected)  # whatever their scale
    assert functional.scene_codes(features.bfloat16(), 15.0).dtype == torch.float32


def test_codes_of_packed_images_of_different_sizes():
    first, second = torch.rand(1, 3, 5), torch.rand(1, 3, 2)
    rows = torch.cat([one[0].T for one in (first, second)])
    expected = torch.cat([functional.scene_codes(one, 2.0) for one in (first, second)])
    torch.testing.assert_close(functional.scene_codes(rows, 2.0, torch.tensor([0, 5, 7])), expected)


def test_a_bias_is_a_logarithm_with_a_floor():
    logits = torch.tensor([[0.0, 100.0, -100.0]])
    expected = torch.tensor([[0.5, 1.0, 0.0]]).add(1e-4).log()
    torch.testing.assert_close(functional.presence_bias(logits), expected)


def test_beside_what_is_usual_a_class_only_loses():
    usual = torch.tensor([0.1, 0.8, 0.5, 0.0])
    now = torch.tensor([[0.02, 0.4, 0.9, 0.0], [0.1, 0.8, 0.5, 0.0]])
    odds = torch.logit(usual, 1e-30)
    expected = torch.tensor([[0.0201 / 0.1001, 0.4001 / 0.8001, 1.0, 1.0], [1.0] * 4]).log()
    found = functional.presence_bias(torch.logit(now, 1e-30) - odds, odds)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_the_loss_of_what_differs_from_the_usual():
    logits, odds, labels = torch.randn(3, 4), torch.randn(4), torch.randint(0, 4, (3, 5, 5))
    expected = functional.presence_loss(logits + odds, labels)
    torch.testing.assert_close(functional.presence_loss(logits, labels, usual_odds=odds), expected)


def test_the_loss_is_that_of_the_classes_that_are_there():
    logits = torch.randn(3, 4)
    labels = torch.tensor([[[0, 2], [2, 255]], [[3, 3], [3, 3]], [[255, 255], [255, 255]]])  # the last has no label
    there = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    expected = -(there * logits[:2].sigmoid().log() + (1.0 - there) * (-logits[:2]).sigmoid().log()).mean()
    torch.testing.assert_close(functional.presence_loss(logits, labels), expected)
    assert functional.presence_loss(logits[2:], labels[2:]) == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype):
    logits, labels = torch.randn(2, 4).to(dtype), torch.randint(0, 4, (2, 3, 3))
    found = functional.presence_loss(logits, labels)
    torch.testing.assert_close(found, functional.presence_loss(logits.float(), labels))


def test_a_wrong_label_counts_for_no_image():
    logits, labels = torch.randn(2, 4), torch.tensor([[0, 7, 9], [1, 1, 1]])
    ignored = torch.where(labels > 3, 255, labels)
    expected = functional.presence_loss(logits, ignored)
    torch.testing.assert_close(functional.presence_loss(logits, labels), expected)
    torch.testing.assert_close(functional.presence_loss(logits, ignored.to(torch.int16)), expected)
    broken = torch.cat([logits, torch.full((1, 4), torch.nan)])  # of an image without a label
    unlabelled = torch.cat([ignored, torch.full((1, 3), 255)])
    torch.testing.assert_close(functional.presence_loss(broken, unlabelled), expected)


def test_features_of_zeros_have_a_gradient():
    features = torch.zeros(1, 3, 4, requires_grad=True)
    functional.scene_codes(features, 15.0).sum().backward()
    assert features.grad.isfinite().all()
    assert features.grad.abs().max() < 1e3
