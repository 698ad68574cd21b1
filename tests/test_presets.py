"""The presets are the table of departures, and only fill in what the caller leaves out."""

import pytest

import cacseg
from cacseg.presets import PRESETS

FAITHFUL = ("project_concat", False)
OF_THE_CLASSIFIER = ("oracle_scope",)


def test_the_presets_are_the_documented_ones():
    assert PRESETS["paper"] == ("image", "image", "present", 1.0, False, False, "labelled", *FAITHFUL)
    assert PRESETS["released"] == ("batch", "batch", "present", 0.5, True, False, "all", *FAITHFUL)
    assert PRESETS["tuned"][:7] == PRESETS["released"][:7]
    assert PRESETS["tuned"][7:] == ("project_concat_residual", True)


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

    arguments = {name: getattr(other, name) for name in OF_THE_CLASSIFIER}
    changed = cacseg.ContextAwareClassifier(4, 3, preset=preset, context_design="prototype", **arguments)
    assert changed.context_design == "prototype"
    for name, value in arguments.items():
        assert getattr(changed, name) == value
    arguments = {name: getattr(other, name) for name in values._fields[1:7]}
    changed = cacseg.ContextLoss(preset, **arguments)
    for name, value in arguments.items():
        assert getattr(changed, name) == value


def test_released_is_the_default():
    assert cacseg.ContextAwareClassifier(4, 3).oracle_scope == "batch"
    assert cacseg.ContextLoss().soft_target_weight == 0.5
