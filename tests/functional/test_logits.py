import pytest
import torch
from torch.nn import functional as F

import naive
from cacseg import functional


@pytest.mark.parametrize("spatial", [(6,), (3, 4), (2, 3, 2)])
def test_cosine_logits_equal_a_loop(spatial):
    features, classifier = torch.randn(2, 4, *spatial).double(), torch.randn(2, 5, 4).double()
    ours = functional.cosine_logits(features, classifier, scale=7.0)
    torch.testing.assert_close(ours, naive.cosine_logits(features, classifier, 7.0), rtol=0, atol=1e-12)
    shared = functional.cosine_logits(features, classifier[:1], scale=7.0)
    torch.testing.assert_close(shared, functional.cosine_logits(features, classifier[:1].expand(2, -1, -1), 7.0))


def test_plain_and_dot_logits_equal_a_convolution():
    features, weight, bias = torch.randn(2, 4, 3, 5), torch.randn(6, 4), torch.randn(6)
    truth = F.conv2d(features, weight[:, :, None, None], bias)
    torch.testing.assert_close(functional.plain_logits(features, weight, bias), truth)
    torch.testing.assert_close(functional.dot_logits(features, weight[None]), truth - bias.view(-1, 1, 1))
    packed = functional.plain_logits(features.flatten(2).transpose(1, 2).flatten(0, 1), weight, bias)
    torch.testing.assert_close(packed, truth.flatten(2).transpose(1, 2).flatten(0, 1))


def test_a_classifier_for_other_images_is_refused():
    with pytest.raises(ValueError, match=r"must be \[2, n, d\], one for each image, or .* got shape \(3, 5, 4\)"):
        functional.cosine_logits(torch.randn(2, 4, 3), torch.randn(3, 5, 4))
    with pytest.raises(ValueError, match=r"must be \[2, n, d\]"):
        functional.dot_logits(torch.randn(9, 4), torch.randn(3, 5, 4), offsets=torch.tensor([0, 4, 9]))


def test_gradients():
    features = torch.randn(2, 3, 2, 2).double().requires_grad_()
    classifier = torch.randn(2, 4, 3).double().requires_grad_()
    torch.autograd.gradcheck(functional.cosine_logits, (features, classifier))
    torch.autograd.gradcheck(functional.dot_logits, (features, classifier))


def test_a_zero_vector_has_cosine_zero_and_gradient_zero():
    features = torch.randn(1, 4, 3)
    features[..., 1] = 0.0
    features.requires_grad_()
    classifier = torch.randn(1, 5, 4)
    classifier[:, 2] = 0.0
    classifier.requires_grad_()
    logits = functional.cosine_logits(features, classifier)
    assert (logits[..., 1] == 0).all()
    assert (logits[:, 2] == 0).all()
    logits.square().sum().add(logits.sum()).backward()
    assert (features.grad[..., 1] == 0).all()
    assert (classifier.grad[:, 2] == 0).all()
    assert features.grad.isfinite().all()


def test_the_length_of_features_and_classifier_does_not_matter():
    features, classifier = torch.randn(2, 4, 3, 3).double(), torch.randn(2, 5, 4).double()
    torch.testing.assert_close(
        functional.cosine_logits(features * 1e6, classifier * 1e-6), functional.cosine_logits(features, classifier)
    )
    assert functional.cosine_logits(features, classifier, 15.0).abs().max() <= 15.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_float32(dtype):
    features, classifier = (torch.randn(2, 8, 3, 3) * 1e3).to(dtype), torch.randn(2, 5, 8).to(dtype)
    logits = functional.cosine_logits(features, classifier)
    assert logits.dtype == torch.float32
    truth = functional.cosine_logits(features.double(), classifier.double())
    torch.testing.assert_close(logits.double(), truth, rtol=1e-5, atol=1e-5)
