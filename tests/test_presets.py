"""The presets are the table of departures, and only fill in what the caller leaves out."""

import pytest

import cacseg
from cacseg.presets import PRESETS


def test_the_two_presets_are_the_documented_ones():
    paper, released = PRESETS["paper"], PRESETS["released"]
    assert paper == ("image", "image", "present", 1.0, False, False, "labelled")
    assert released == ("batch", "batch", "present", 0.5, True, False, "all")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_in_and_never_overrides(preset):
    values = PRESETS[preset]._asdict()
    assert cacseg.ContextAwareClassifier(4, 3, preset=preset).oracle_scope == values["oracle_scope"]
    loss = cacseg.ContextLoss(preset)
    for name, value in values.items():
        if name != "oracle_scope":
            assert getattr(loss, name) == value
    other = PRESETS["paper" if preset == "released" else "released"]._asdict()
    assert (
        cacseg.ContextAwareClassifier(4, 3, preset=preset, oracle_scope=other["oracle_scope"]).oracle_scope
        == (other["oracle_scope"])
    )
    arguments = {name: value for name, value in other.items() if name != "oracle_scope"}
    changed = cacseg.ContextLoss(preset, **arguments)
    for name, value in arguments.items():
        assert getattr(changed, name) == value


def test_released_is_the_default():
    assert cacseg.ContextAwareClassifier(4, 3).oracle_scope == "batch"
    assert cacseg.ContextLoss().soft_target_weight == 0.5
