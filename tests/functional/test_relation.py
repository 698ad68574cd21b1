import pytest
import torch

import naive
from cacseg import functional
from cacseg.functional.relation import correlations


def draw(spatial=(3, 4), n=5, seed=0):
    """Class n - 1 is in no image, and the first pixels of the first one are ignored."""
    generator = torch.Generator().manual_seed(seed)
    context, oracle = (torch.randn(2, n, *spatial, generator=generator).double() * 3 for _ in range(2))
    labels = torch.randint(0, n - 1, (2, *spatial), generator=generator)
    labels.view(2, -1)[0, :2] = 255
    return context, oracle, labels


@pytest.mark.parametrize("spatial", [(12,), (3, 4), (2, 3, 2)])
def test_it_equals_a_loop(spatial):
    context, oracle, labels = draw(spatial)
    ours = functional.relation_distillation(context, oracle, labels)
    assert ours.item() == pytest.approx(naive.relation_distillation(context, oracle, labels), abs=1e-12)
    fitted = torch.where(labels == 255, -1, labels)
    torch.testing.assert_close(functional.relation_distillation(context, oracle, fitted, ignore_index=-1), ours)


def test_correlations_are_torchs():
    context, _, labels = draw()
    kept = labels.flatten(1) != 255
    truth = torch.stack([one.flatten(1)[:, mask].corrcoef() for one, mask in zip(context, kept, strict=True)])
    torch.testing.assert_close(correlations(context, kept), truth)


def test_gradients_reach_the_context_alone():
    context, oracle, labels = draw((2, 3), n=4)
    context, oracle = context.requires_grad_(), oracle.requires_grad_()
    torch.autograd.gradcheck(lambda c: functional.relation_distillation(c, oracle, labels), context)
    functional.relation_distillation(context, oracle, labels).backward()
    assert context.grad.abs().sum() > 0
    assert (context.grad[:, 3] == 0).all()  # the class that is absent
    assert oracle.grad is None


def test_ignored_pixels_do_not_matter():
    context, oracle, labels = draw()
    truth = functional.relation_distillation(context, oracle, labels)
    for value in (100.0, float("nan")):
        context[0, :, 0, :2] = oracle[0, :, 0, :2] = value
        seen = context.clone().requires_grad_()
        found = functional.relation_distillation(seen, oracle, labels)
        torch.testing.assert_close(found, truth)
        found.backward()
        assert seen.grad.isfinite().all()
        assert (seen.grad[0, :, 0, :2] == 0).all()


def test_what_correlation_does_not_see_and_the_order_of_classes_change_nothing():
    context, oracle, labels = draw()
    truth = functional.relation_distillation(context, oracle, labels)
    moved = context * torch.tensor([0.5, 1, 2, 3, 4]).view(1, 5, 1, 1) + torch.arange(5).view(1, 5, 1, 1)
    torch.testing.assert_close(functional.relation_distillation(moved, oracle, labels), truth)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(1))
    renamed = torch.where(labels == 255, 255, order.argsort()[labels.clamp_max(4)])
    torch.testing.assert_close(
        functional.relation_distillation(context[:, order], oracle[:, order], renamed),
        truth,
    )
    assert functional.relation_distillation(2.0 * oracle + 1.0, oracle, labels).item() == pytest.approx(0.0, abs=1e-20)


def test_images_of_fewer_than_two_classes_are_left_out():
    context, oracle, labels = draw()
    context.requires_grad_()
    alone = functional.relation_distillation(context[:1], oracle[:1], labels[:1])
    for value in (2, 255):
        labels[1] = value
        torch.testing.assert_close(functional.relation_distillation(context, oracle, labels), alone)
        nothing = functional.relation_distillation(context, oracle, torch.full_like(labels, value))
        (gradient,) = torch.autograd.grad(nothing, context)
        assert nothing.item() == 0.0
        assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [0.0, 15.1, 1000.3])
def test_constant_scores_correlate_with_nothing(dtype, value):
    """Also where rounding makes their mean another number than theirs, whose tiny spread must not be blown up."""
    context, oracle, labels = (one.repeat(*[1] * (one.ndim - 1), 50) for one in draw())
    context[:, 1] = value
    context, oracle = context.to(dtype).requires_grad_(), oracle.to(dtype)
    kept = labels.flatten(1) != 255
    assert (correlations(context, kept)[:, 1] == 0).all()
    loss = functional.relation_distillation(context, oracle, labels)
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert 0.0 < loss < 4.0
    assert context.grad.isfinite().all()
    assert (context.grad[:, 1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    context, oracle, labels = draw((24, 32))
    context, oracle = context.to(dtype), oracle.to(dtype)
    truth = functional.relation_distillation(context.double(), oracle.double(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for one in (context, context.float()):
            found = functional.relation_distillation(one, oracle.to(one.dtype), labels)
            torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6, check_dtype=False)


def test_packed_batches_and_other_shapes_are_refused():
    context, oracle, labels = draw()
    with pytest.raises(ValueError, match=r"dense batches.*got shape \(12, 5\), as of a packed one. Leave the term out"):
        functional.relation_distillation(torch.randn(12, 5), torch.randn(12, 5), torch.zeros(12).long())
    with pytest.raises(ValueError, match="must have one shape"):
        functional.relation_distillation(context, oracle[:, :1], labels)
    with pytest.raises(ValueError, match="same batch size"):
        functional.relation_distillation(context, oracle, labels[:1])
