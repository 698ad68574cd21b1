"""The presets are the table of departures, and only fill in what the caller leaves out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cacseg
from cacseg.presets import CLASSIFIER_FIELDS, DEFAULT, MODEL_FIELDS, PRESETS, Preset, fill_preset
from cacseg.recipes.named import RECIPES, find_recipe
from projectors import wake

LOSS_FIELDS = tuple(name for name in Preset._fields if name not in (*CLASSIFIER_FIELDS, *MODEL_FIELDS))
RELEASED = {
    "oracle_scope": "batch",
    "prototype_epsilon": 1e-12,
    "distillation_scope": "batch",
    "soft_target_weight": 0.5,
    "align_corners": True,
    "context_average": "all",
    "auxiliary_average": "all",
}
OURS = {
    "label_sampling": "centred",
    "context_design": "project_concat_residual",
    "oracle_design": "project_concat_residual",
    "zero_start": True,
    "overlap_weight": 3.0,
}


def departures(preset, beside):
    return {name: value for name, value in preset._asdict().items() if value != getattr(beside, name)}


def test_the_presets_are_the_documented_ones():
    paper, released, tuned = (PRESETS[name] for name in ("paper", "released", "tuned"))
    assert paper == Preset(
        oracle_scope="image",
        label_sampling="nearest",
        context_design="project_concat",
        oracle_design="project_concat",
        zero_start=False,
        prototype_epsilon=0.0,
        distillation_scope="image",
        soft_target_weight=1.0,
        align_corners=False,
        context_align_corners=False,
        context_average="labelled",
        overlap_weight=0.0,
        auxiliary_average="labelled",
    )
    assert departures(released, paper) == RELEASED
    back = {name: getattr(paper, name) for name in ("prototype_epsilon", "align_corners", "auxiliary_average")}
    assert departures(tuned, released) == {**OURS, **back}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_in_and_never_overrides(preset):
    values, other = PRESETS[preset], PRESETS["paper" if preset != "paper" else "tuned"]
    classifier = cacseg.ContextAwareClassifier(4, 3, preset=preset)
    assert (classifier.context_projector[2].weight.abs().sum() == 0) == values.zero_start
    read = [name for name in CLASSIFIER_FIELDS if name != "zero_start"]
    assert {name: getattr(classifier, name) for name in read} == {name: getattr(values, name) for name in read}
    assert cacseg.ContextLoss(preset).options == {preset: values}

    changed = cacseg.ContextAwareClassifier(4, 3, preset=preset, **{name: getattr(other, name) for name in read})
    assert {name: getattr(changed, name) for name in read} == {name: getattr(other, name) for name in read}
    given = {name: getattr(other, name) for name in LOSS_FIELDS}
    assert cacseg.ContextLoss(preset, **given).options == {preset: values._replace(**given)}


def test_none_is_left_out_and_zero_and_false_are_not():
    filled = fill_preset("tuned", overlap_weight=0.0, zero_start=False, align_corners=None)
    assert departures(filled, PRESETS["tuned"]) == {"overlap_weight": 0.0, "zero_start": False}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_loss_without_a_preset_has_that_of_the_classifier(preset):
    torch.manual_seed(0)
    classifier, labels = cacseg.ContextAwareClassifier(4, 3, preset=preset), torch.randint(0, 3, (2, 20, 24))
    outputs = wake(classifier)(torch.randn(2, 4, 5, 6), labels)
    assert outputs.preset == preset
    torch.testing.assert_close(
        cacseg.ContextLoss()(outputs, labels), cacseg.ContextLoss(preset)(outputs, labels), rtol=0, atol=0
    )
    other = "paper" if preset != "paper" else "released"
    with pytest.raises(ValueError, match=f"classifier has '{preset}', the loss '{other}'.*ContextLoss\\(\\)"):
        cacseg.ContextLoss(other)(outputs, labels)


def test_the_default_is_tuned_and_the_recipes_of_the_paper_are_not():
    assert DEFAULT == "tuned"
    assert cacseg.ContextAwareClassifier(4, 3).context_design == "project_concat_residual"
    assert cacseg.create_model("fcn", 3, backbone="test_resnet", head_channels=16).arguments["preset"] == "tuned"
    for name in RECIPES:
        assert find_recipe(name).model.preset == ("released" if "/" in name else "tuned")


def test_a_converted_layer_begins_with_what_it_has_learnt():
    """The directions of the plain weight: a trained model predicts as it did, but for lengths and bias."""
    torch.manual_seed(0)
    conv, features = nn.Conv2d(4, 3, 1), torch.randn(2, 4, 5, 6)
    found = cacseg.ContextAwareClassifier.from_conv(conv)(features)
    expected = 15 * torch.einsum("nd,bdhw->bnhw", F.normalize(conv.weight[..., 0, 0]), F.normalize(features))
    torch.testing.assert_close(found, expected)
