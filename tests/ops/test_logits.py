import pytest
import torch

from cacseg import functional, ops


def draw(dtype, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    features = (scale * torch.randn(2, 64, 5, 6, generator=generator).clamp(-3, 3)).to(dtype)
    return features, torch.randn(2, 7, 64, generator=generator), torch.randn(7, 64, generator=generator)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_float64_equals_the_readable_form(memory_format):
    features, classifier, weight = draw(torch.float64)
    features = features.contiguous(memory_format=memory_format)
    classifier, weight, bias = classifier.double(), weight.double(), torch.arange(7.0).double()
    close = dict(rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        ops.plain_logits(features, weight, bias), functional.plain_logits(features, weight, bias), **close
    )
    for rows in (classifier, classifier[:1]):
        ours = ops.cosine_logits(features, rows, 9.0)
        torch.testing.assert_close(ours, functional.cosine_logits(features, rows, 9.0), **close)
        torch.testing.assert_close(ops.dot_logits(features, rows), functional.dot_logits(features, rows), **close)


def test_gradcheck():
    features = torch.randn(2, 4, 3).double().requires_grad_()
    classifier = torch.randn(2, 5, 4).double().requires_grad_()
    torch.autograd.gradcheck(ops.cosine_logits, (features, classifier))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e3, 2e4])
def test_half_precision_cosines_stay_near_the_truth(dtype, scale):
    """At 2e4 the length of a feature is beyond float16, and so is an unscaled dot product."""
    features, classifier, _ = draw(dtype, scale)
    truth = functional.cosine_logits(features.double(), classifier.double())
    ours = ops.cosine_logits(features, classifier)
    assert ours.dtype == dtype
    tolerance = 15 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours.double(), truth, rtol=0, atol=2 * tolerance)


def test_float16_scores_saturate_instead_of_overflowing():
    features = torch.full((1, 64, 2), 1e3, dtype=torch.float16)
    weight = torch.full((3, 64), 10.0)
    weight[1] *= -1
    logits = ops.plain_logits(features, weight.half())
    assert logits.isfinite().all()
    assert logits[0, 0, 0] == torch.finfo(torch.float16).max
    assert ops.dot_logits(features, weight[None]).isfinite().all()


def test_autocast_decides_the_precision():
    features, classifier, weight = draw(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.plain_logits(features, weight).dtype == torch.bfloat16
        assert ops.cosine_logits(features, classifier).dtype == torch.bfloat16
        assert ops.plain_logits(features.double(), weight.double()).dtype == torch.float64
    assert ops.cosine_logits(features, classifier).dtype == torch.float32
