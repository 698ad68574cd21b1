import pytest
import torch

from cacseg import functional


@pytest.mark.parametrize("ratio", [0.25, 1.0, 1e6])
def test_a_gradient_is_made_no_longer_than_a_share_of_another(ratio):
    torch.manual_seed(0)
    values = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    first_slope, second_slope = torch.randn(2, 3, 4).double(), 100 * torch.randn(2, 3, 4).double()
    first, second = functional.balance_gradients(values, ratio)
    assert torch.equal(first, values)
    assert torch.equal(second, values)
    (found,) = torch.autograd.grad((first * first_slope).sum() + (second * second_slope).sum(), values)
    of_first, of_second = float(first_slope.norm()), float(second_slope.norm())
    expected = first_slope + min(1.0, ratio * of_first / of_second) * second_slope
    torch.testing.assert_close(found, expected)
    assert float((found - first_slope).norm()) <= ratio * of_first * (1 + 1e-12)


def test_gradients_of_nothing_are_nothing():
    values = torch.randn(4, requires_grad=True)
    first, second = functional.balance_gradients(values, 1.0)
    (found,) = torch.autograd.grad(0.0 * first.sum() + second.sum(), values)  # at most once nothing
    assert torch.equal(found, torch.zeros(4))
    first, second = functional.balance_gradients(values, 1.0)
    (found,) = torch.autograd.grad(first.sum() + 0.0 * second.sum(), values)
    assert torch.equal(found, torch.ones(4))
    first, second = functional.balance_gradients(values, 1.0)
    (found,) = torch.autograd.grad(first.sum(), values)  # the second was not used at all
    assert torch.equal(found, torch.ones(4))


def test_values_without_a_gradient_pass():
    values = torch.randn(4)
    assert all(one is values for one in functional.balance_gradients(values, 1.0))
