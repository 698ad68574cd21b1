"""A plain classifier with the soft-Jaccard loss beside its cross-entropy."""

import pytest
import torch

import cacseg
from cacseg import create_model, functional
from recorded import striped_labels, wave


def set_values(model):
    with torch.no_grad():
        for name, one in model.named_parameters():
            scale = 0.3 / one[0].numel() ** 0.5 if one.ndim > 1 else 0.5
            is_norm = one.ndim == 1 and "weight" in name
            one.copy_(wave(one.shape, len(name), scale) + is_norm)
    return model


def test_it_equals_the_context_aware_arm_that_computed_the_same():
    """Figures of the arm `plain_overlap`, which had a context branch of the fixed weight, dots and the plain bias."""
    model = set_values(
        create_model("fcn_mobilenetv2", 5, "plain", overlap_weight=3.0, dropout=0.0, output_stride=32).double()
    )
    losses = model.loss(wave((2, 3, 64, 96), 5), striped_labels((2, 64, 96), 5, 517))
    losses["total"].backward()
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(
        {
            "plain": 1.723879958428851,
            "overlap": 0.8133250298650959,
            "auxiliary": 1.6930370362407174,
            "total": 4.841069862520426,
        },
        rel=1e-9,
    )
    lengths = {name: one.grad.norm().item() for name, one in model.named_parameters()}
    assert lengths["classifier.weight"] == pytest.approx(3.541774076050621, rel=1e-9)
    assert lengths["classifier.bias"] == pytest.approx(0.25388870978960915, rel=1e-9)
    assert lengths["head.fuse.conv.weight"] == pytest.approx(11.180303304463452, rel=1e-7)


def test_the_overlap_is_that_of_the_logits_before_dropout():
    torch.manual_seed(0)
    model = create_model("fcn_mobilenetv2", 5, "plain", overlap_weight=2.0, dropout=0.5, auxiliary=False)
    model.head.eval(), model.backbone.eval()
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(0, 5, (2, 64, 64))
    losses = model.loss(images, labels)
    logits = model.classifier.without_dropout(model.features(images))
    torch.testing.assert_close(losses["overlap"], functional.overlap_loss(logits, labels))
    torch.testing.assert_close(losses["total"], losses["plain"] + 2.0 * losses["overlap"])


def test_the_weight_reaches_the_loss_of_a_context_aware_model_too():
    for given, weight in ({"overlap_weight": 0.5}, 0.5), ({"overlap_weight": 0.0}, 0.0), ({}, 3.0):
        with torch.device("meta"):
            model = create_model("fcn_mobilenetv2", 5, **given)
        assert model.criterion.options["tuned"].overlap_weight == weight


def test_a_saved_model_keeps_its_weight(tmp_path):
    create_model("fcn_mobilenetv2", 5, "plain", overlap_weight=1.5).save(tmp_path / "model.safetensors")
    assert cacseg.load(tmp_path / "model.safetensors").overlap_weight == 1.5


def test_weights_that_are_none_are_refused():
    with pytest.raises(ValueError, match=r"overlap_weight.*-1"):
        create_model("fcn_mobilenetv2", 5, "plain", overlap_weight=-1.0)


def test_logits_of_any_model_have_the_loss():
    """At their own size, or at that of the labels: each feature then has the label in the middle of its cell."""
    logits, labels = torch.randn(2, 4, 8, 8), torch.randint(0, 4, (2, 32, 32))
    expected = functional.overlap_loss(logits, functional.resize_labels(labels, (8, 8), "centred"))
    torch.testing.assert_close(cacseg.overlap_loss(logits, labels), expected)
    first = functional.resize_labels(labels, (8, 8), "nearest")
    torch.testing.assert_close(
        cacseg.overlap_loss(logits, labels, label_sampling="nearest"), functional.overlap_loss(logits, first)
    )
