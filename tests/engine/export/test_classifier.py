"""What an ONNX file computes in the place of the classifier is what the classifier computes."""

import pytest
import torch

from cacseg import ContextAwareClassifier
from cacseg.engine.export.classifier import for_onnx, onnx_logits


def make(classes=5, **arguments):
    torch.manual_seed(0)
    classifier = ContextAwareClassifier(8, classes, zero_start=False, **arguments).eval().requires_grad_(False)
    return classifier, torch.randn(2, 8, 6, 9)


@pytest.mark.parametrize(
    ("classes", "arguments"),
    [
        (5, {}),
        (5, {"preset": "released"}),
        (5, {"bias": False, "context_design": "prototype"}),
        (5, {"context_design": "project_sum"}),
        (1, {}),
    ],
)
def test_it_gives_the_plain_and_the_context_logits(classes, arguments):
    classifier, features = make(classes, **arguments)
    features[0, :, 2, 3] = 0.0  # a zero vector has no direction: cosine 0
    expected = classifier._logits(features, None, None)
    found = onnx_logits(classifier, features)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-5)
    assert found[1][0, :, 2, 3].eq(0.0).all()
    assert found[2] is None


def test_no_probability_is_too_small_for_the_product_or_lost(monkeypatch):
    """Numbers below float32's normal range make the product slow; a class that underflows everywhere has a mean."""
    classifier, features = make()
    classifier.weight.mul_(100.0)
    classifier.bias[3] = -1e4
    seen, product = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *pair: seen.append(pair[0]) or product(*pair))
    found = onnx_logits(classifier, features)[1]
    shares = seen[0]
    assert shares.shape == (2, 5, 54)
    assert shares.min() >= torch.finfo(torch.float32).tiny
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 5))
    torch.testing.assert_close(found, classifier(features), atol=1e-4, rtol=1e-4)


def test_it_holds_within_the_block_and_for_its_design_alone():
    fits, features = make()
    kept = [make(context_design="none")[0], make(context_similarity="dot")[0], make(context_design="weight")[0]]
    model = torch.nn.ModuleList([fits, *kept])
    with for_onnx(model):
        assert torch.equal(fits(features), onnx_logits(fits, features)[1])
        assert fits(features[:, :, 0]).shape == (2, 5, 9)  # no map
        assert all("_fused_logits" not in vars(one) for one in kept)
    assert "_fused_logits" not in vars(fits)
