"""Studies as they are written down."""

import pytest

from cacseg.study.file import parse_study, read_study

WHOLE = {
    "name": "small",
    "baseline": "plain",
    "seeds": [0, 1],
    "steps": [10],
    "data": {"scenes": {"recipe": "synthetic"}},
    "models": {"fcn": {"settings": {"model.name": "fcn"}}},
    "optimisers": {"adamw": {}},
    "arms": {"plain": {"settings": {"model": {"classifier": "plain"}}}, "paper": {}},
}


def test_dotted_and_nested_settings_are_one():
    nested = {"model": {"classifier_arguments": {"scale": 20}, "preset": "paper"}, "optimiser.rate": 0.1}
    study = parse_study(WHOLE | {"settings": nested})
    assert study.settings == {
        "model.classifier_arguments.scale": 20,
        "model.preset": "paper",
        "optimiser.rate": 0.1,
    }
    assert study.arms == {"plain": {"model.classifier": "plain"}, "paper": {}}
    emptied = parse_study(WHOLE | {"settings": {"model.classifier_arguments": {}}})
    assert emptied.settings == {"model.classifier_arguments": {}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": [1]}, "there is no key 'seed'. Did you mean 'seeds'?"),
        ({"seeds": []}, r"seeds must be a list of different whole numbers of at least 0; got \[\]"),
        ({"seeds": [1, 1]}, "seeds must be a list of different"),
        ({"steps": [0]}, r"of at least 1; got \[0\]"),
        ({"steps": 10}, "steps must be a list"),
        ({"name": "a b"}, "name must be of letters"),
        ({"baseline": "plan"}, "there is no baseline 'plan'. Did you mean 'plain'?"),
        ({"arms": {}}, r"arms must be tables, \[arms.NAME\], one at least"),
        ({"models": {"a.b": {}}}, r"models.a.b: a name must be of letters"),
        ({"models": {"fcn": {"setting": {}}}}, r"no key in \[models.fcn\] 'setting'. Did you mean 'settings'?"),
        ({"data": {"scenes": {}}}, "data.scenes needs recipe = NAME"),
        ({"data": {"scenes": {"recipe": "synthetic", "held_out": 20}}}, "held_out must be a share between 0 and 1"),
        ({"settings": {"training": {"seed": 3}}}, "training.seed is decided by the list `seeds`"),
        ({"arms": {"plain": {"settings": {"schedule.steps": 3}}}}, "arms.plain: schedule.steps is decided by"),
    ],
)
def test_what_is_wrong_is_said(changes, words):
    with pytest.raises(ValueError, match=words):
        parse_study(WHOLE | changes)


def test_what_is_missing_is_said():
    with pytest.raises(ValueError, match="arms is missing"):
        parse_study({key: value for key, value in WHOLE.items() if key != "arms"})


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "study.toml"
    with pytest.raises(FileNotFoundError, match="there is no study"):
        read_study(path)
    path.write_text("name = ")
    with pytest.raises(ValueError, match=r"study\.toml is no TOML"):
        read_study(path)
    path.write_text("nam = 1")
    with pytest.raises(ValueError, match=r"study\.toml: there is no key 'nam'"):
        read_study(path)
