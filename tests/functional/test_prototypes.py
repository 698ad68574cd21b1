import pytest
import torch

import naive
from cacseg import functional

SPATIAL = [(6,), (3, 4), (2, 3, 2)]


def draw(spatial, b=2, d=4, n=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(b, d, *spatial, generator=generator, dtype=dtype)
    logits = torch.randn(b, n, *spatial, generator=generator, dtype=dtype) * 2
    labels = torch.randint(0, n - 1, (b, *spatial), generator=generator)  # the last class is absent
    labels.view(b, -1)[0, 0] = 255
    weight = torch.randn(n, d, generator=generator, dtype=dtype)
    return features, logits, labels, weight


@pytest.mark.parametrize("spatial", SPATIAL)
@pytest.mark.parametrize("scope", ["image", "batch"])
def test_oracle_prototypes_equal_a_loop(spatial, scope):
    features, _, labels, weight = draw(spatial)
    ours = functional.oracle_prototypes(features, labels, weight, scope=scope)
    truth = naive.oracle_prototypes(features, labels, weight, pool_batch=scope == "batch")
    torch.testing.assert_close(ours, truth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spatial", SPATIAL)
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 0.5])
def test_context_prototypes_equal_a_loop(spatial, epsilon):
    features, logits, _, _ = draw(spatial)
    ours = functional.context_prototypes(features, logits, epsilon=epsilon)
    torch.testing.assert_close(ours, naive.context_prototypes(features, logits, epsilon), rtol=0, atol=1e-12)


def test_gradients():
    features, logits, labels, weight = (x.requires_grad_(x.is_floating_point()) for x in draw((2, 3)))
    for scope in ("image", "batch"):
        oracle = lambda f, scope=scope: functional.oracle_prototypes(f, labels, weight, scope=scope)  # noqa: E731
        torch.autograd.gradcheck(oracle, features)
    torch.autograd.gradcheck(functional.context_prototypes, (features, logits))


def test_one_hot_probabilities_turn_eq_4_into_eq_1():
    features, _, labels, weight = draw((3, 4))
    labels[labels == 255] = 0
    logits = 1e4 * functional.class_masks(labels, 5, dtype=torch.float64)
    context = functional.context_prototypes(features, logits)
    oracle = functional.oracle_prototypes(features, labels, weight)
    present = torch.stack([torch.tensor([bool((image == k).any()) for k in range(5)]) for image in labels])
    assert 2 < present.sum() < present.numel()
    torch.testing.assert_close(context[present], oracle[present], rtol=0, atol=1e-12)


def test_permuting_classes_permutes_prototypes():
    features, logits, labels, weight = draw((3, 4))
    order = torch.randperm(5, generator=torch.Generator().manual_seed(1))
    renamed = torch.where(labels == 255, 255, order.argsort()[labels.clamp_max(4)])
    torch.testing.assert_close(
        functional.oracle_prototypes(features, renamed, weight[order]),
        functional.oracle_prototypes(features, labels, weight)[:, order],
    )
    torch.testing.assert_close(
        functional.context_prototypes(features, logits[:, order]),
        functional.context_prototypes(features, logits)[:, order],
    )


def test_an_absent_class_takes_the_weight_without_gradient():
    features, _, labels, weight = draw((3, 4))
    weight.requires_grad_()
    prototypes = functional.oracle_prototypes(features.requires_grad_(), labels, weight)
    assert torch.equal(prototypes[:, 4], weight[None, 4].expand(2, -1))
    prototypes.sum().backward()
    assert weight.grad is None


def test_the_ignore_index_may_be_a_class_or_negative():
    features, _, labels, weight = draw((3, 4))
    labels[labels == 255] = 1
    ours = functional.oracle_prototypes(features, labels, weight, ignore_index=1)
    torch.testing.assert_close(ours, naive.oracle_prototypes(features, labels, weight, ignore_index=1))
    assert torch.equal(ours[:, 1], weight[None, 1].expand(2, -1))
    labels[0, 0, 0] = -1
    ours = functional.oracle_prototypes(features, labels, weight, ignore_index=-1)
    torch.testing.assert_close(ours, naive.oracle_prototypes(features, labels, weight, ignore_index=-1))


def test_labels_are_resized_by_nearest_neighbour():
    features, _, labels, weight = draw((3, 4))
    enlarged = labels.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)
    enlarged[0, 1, 1] = 4  # a single pixel that the grid of the features misses
    ours = functional.oracle_prototypes(features, enlarged, weight)
    torch.testing.assert_close(ours, functional.oracle_prototypes(features, labels, weight))
    odd = torch.randint(0, 5, (2, 7, 9))
    resized = torch.nn.functional.interpolate(odd[:, None].float(), size=(3, 4), mode="nearest")[:, 0].long()
    assert torch.equal(functional.resize_labels(odd, (3, 4)), resized)
    assert torch.equal(functional.resize_labels(resized, (3, 4)), resized)
    large = torch.arange(2 * 16 * 24).view(2, 16, 24)
    assert torch.equal(functional.resize_labels(large, (2, 3)), large[:, ::8, ::8])  # the first of each cell
    assert torch.equal(functional.resize_labels(large, (2, 3), "centred"), large[:, 4::8, 4::8])  # the middle
    assert torch.equal(functional.resize_labels(large, (2, 3), "aligned"), large[:, [0, 15]][:, :, [0, 12, 23]])
    assert torch.equal(functional.resize_labels(large, (1, 24), "aligned"), large[:, :1])


def test_resized_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"labels must be \[b, \*full\], one dimension more than \(2, 3\); got"):
        functional.resize_labels(torch.zeros(1, 1, 16, 24, dtype=torch.long), (2, 3))


def test_one_pixel():
    features, logits, labels, weight = draw((1, 1))
    labels[:] = 2
    torch.testing.assert_close(functional.oracle_prototypes(features, labels, weight)[:, 2], features.flatten(1))
    context = functional.context_prototypes(features, logits)
    torch.testing.assert_close(context, features.flatten(1)[:, None].expand(2, 5, 4))


def test_a_class_whose_probability_underflows_still_has_a_mean():
    features, logits, _, _ = draw((3, 4), dtype=torch.float32)
    logits[:, 0] -= 1e4
    logits.requires_grad_()
    prototypes = functional.context_prototypes(features, logits)
    prototypes.square().sum().backward()
    assert prototypes[:, 0].norm() > 0.1
    assert prototypes.isfinite().all()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_accumulates_in_float32(dtype):
    features, logits, labels, weight = draw((64, 64), dtype=torch.float32)
    features = (features * 1e3).to(dtype)
    truth = naive_sum = functional.context_prototypes(features.double(), logits.to(dtype).double())
    ours = functional.context_prototypes(features, logits.to(dtype))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=1e-4 * naive_sum.abs().max().item())
    oracle = functional.oracle_prototypes(features, labels, weight)
    truth = functional.oracle_prototypes(features.double(), labels, weight.double())
    torch.testing.assert_close(oracle.double(), truth, rtol=1e-4, atol=1e-4 * truth.abs().max().item())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(functional.context_prototypes(features, logits.to(dtype)), ours)


def test_wrong_input_is_refused():
    features, logits, labels, weight = draw((3, 4))
    with pytest.raises(ValueError, match=r"4 channels in dimension 1; got shape \(2, 5, 3, 4\) with 5"):
        functional.oracle_prototypes(logits, labels, weight)
    with pytest.raises(ValueError, match="scope must be one of 'image', 'batch'; got 'pixel'"):
        functional.oracle_prototypes(features, labels, weight, scope="pixel")
    with pytest.raises(ValueError, match=r"batch and spatial sizes of the features; got logits \(2, 5, 3, 3\)"):
        functional.context_prototypes(features, logits[..., :3])
