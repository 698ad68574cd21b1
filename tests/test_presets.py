"""The presets are the table of departures, and only fill in what the caller leaves out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cacseg
from cacseg.presets import DEFAULT, PRESETS
from cacseg.recipes.named import RECIPES, find_recipe
from projectors import wake

FAITHFUL = ("project_concat", False, "nearest")
OF_THE_CLASSIFIER = ("oracle_scope", "label_sampling")


def test_the_presets_are_the_documented_ones():
    assert PRESETS["paper"] == ("image", "image", "present", 1.0, False, False, "labelled", *FAITHFUL, 0.0)
    assert PRESETS["released"] == ("batch", "batch", "present", 0.5, True, False, "all", *FAITHFUL, 0.0)
    ours = (
        *("batch", "batch", "present", 0.5, False, False, "all"),
        *("project_concat_residual", True, "centred"),
    )
    assert PRESETS["centred"] == (*ours, 0.0)
    assert PRESETS["tuned"] == (*ours, 3.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_in_and_never_overrides(preset):
    values, other = PRESETS[preset], PRESETS["paper" if preset != "paper" else "tuned"]
    classifier, loss = cacseg.ContextAwareClassifier(4, 3, preset=preset), cacseg.ContextLoss(preset)
    assert classifier.context_design == classifier.oracle_design == values.design
    assert (classifier.context_projector[2].weight.abs().sum() == 0) == values.zero_start
    for name in OF_THE_CLASSIFIER:
        assert getattr(classifier, name) == getattr(values, name)
    for name in values._fields[1:7]:
        assert getattr(loss, name) == getattr(values, name)
    assert loss.weights.get("overlap", 0.0) == values.overlap_weight

    arguments = {name: getattr(other, name) for name in OF_THE_CLASSIFIER}
    changed = cacseg.ContextAwareClassifier(4, 3, preset=preset, context_design="prototype", **arguments)
    assert changed.context_design == "prototype"
    for name, value in arguments.items():
        assert getattr(changed, name) == value
    arguments = {name: getattr(other, name) for name in values._fields[1:7]}
    changed = cacseg.ContextLoss(preset, overlap_weight=other.overlap_weight, **arguments)
    for name, value in arguments.items():
        assert getattr(changed, name) == value
    assert changed.weights.get("overlap", 0.0) == other.overlap_weight


def losses_and_gradients(criterion):
    torch.manual_seed(0)
    classifier, features = cacseg.ContextAwareClassifier(4, 3), torch.randn(2, 4, 5, 6, requires_grad=True)
    labels = torch.randint(0, 3, (2, 20, 24))
    losses = criterion(wake(classifier)(features, labels), labels)
    losses["total"].backward()
    return losses, [features.grad, *(one.grad for one in classifier.parameters())]


def test_tuned_is_centred_with_a_loss_for_overlap():
    tuned, centred = cacseg.ContextLoss("tuned"), cacseg.ContextLoss("centred")
    assert tuned.weights == {**centred.weights, "overlap": 3.0}
    assert tuned.overlap_at == "features"
    (ours, _), (theirs, _) = losses_and_gradients(tuned), losses_and_gradients(centred)
    assert list(ours) == [*list(theirs)[:-1], "overlap", "total"]
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if name != "total")
    torch.testing.assert_close(ours["total"], theirs["total"] + 3.0 * ours["overlap"])


def test_tuned_without_that_loss_is_centred_to_the_digit():
    ours, theirs = cacseg.ContextLoss("tuned", overlap_weight=0.0), cacseg.ContextLoss("centred")
    assert repr(ours) == repr(theirs)
    torch.testing.assert_close(losses_and_gradients(ours), losses_and_gradients(theirs), rtol=0, atol=0)
    ours, theirs = cacseg.ContextLoss("centred", overlap_weight=3.0), cacseg.ContextLoss("tuned")
    torch.testing.assert_close(losses_and_gradients(ours), losses_and_gradients(theirs), rtol=0, atol=0)


def test_the_default_is_tuned_and_the_recipes_of_the_paper_are_not():
    assert DEFAULT == "tuned"
    assert cacseg.ContextAwareClassifier(4, 3).context_design == "project_concat_residual"
    assert cacseg.create_model("fcn", 3, backbone="test_resnet").arguments["preset"] == "tuned"
    for name in RECIPES:
        assert find_recipe(name).model.preset == ("released" if "/" in name else "tuned")


def test_a_converted_layer_begins_with_what_it_has_learnt():
    """The directions of the plain weight: a trained model predicts as it did, but for lengths and bias."""
    torch.manual_seed(0)
    conv, features = nn.Conv2d(4, 3, 1), torch.randn(2, 4, 5, 6)
    found = cacseg.ContextAwareClassifier.from_conv(conv)(features)
    expected = 15 * torch.einsum("nd,bdhw->bnhw", F.normalize(conv.weight[..., 0, 0]), F.normalize(features))
    torch.testing.assert_close(found, expected)
