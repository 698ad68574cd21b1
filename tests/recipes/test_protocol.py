import json
from pathlib import Path

import pytest

import data_trees
from cacseg.recipes.config import change
from cacseg.recipes.files import write_config
from cacseg.recipes.named import folder, synthetic
from cacseg.recipes.protocol import data_of_run, data_to_evaluate


def test_a_named_data_set_has_its_published_protocol():
    data = data_to_evaluate(Path("model.safetensors"), name="pascal_context59", root="voc")
    assert (data.root, data.val_split) == ("voc", "val")
    assert (data.val_scale, data.window, data.stride) == ((520, 520), (480, 480), (320, 320))
    data = data_to_evaluate(Path("model.safetensors"), name="ade20k", root="ade", split="train")
    assert (data.val_scale, data.window, data.val_split) == ((2048, 512), None, "train")


def test_others_are_shown_as_they_are():
    for name in ("folder", "camvid"):
        data = data_to_evaluate(Path("model.safetensors"), name=name, root="here")
        assert (data.name, data.val_scale, data.window) == (name, None, None)


def test_without_a_name_the_layout_says_what_it_is(tmp_path):
    data_trees.ade20k(tmp_path / "one")
    data_trees.folder(tmp_path / "two")
    data = data_to_evaluate(Path("model.safetensors"), root=str(tmp_path / "one"))
    assert (data.name, data.val_scale, data.root) == ("ade20k", (2048, 512), str(tmp_path / "one"))
    data = data_to_evaluate(Path("model.safetensors"), root=str(tmp_path / "two"))
    assert (data.name, data.val_scale) == ("folder", None)


def test_a_run_knows_its_data(tmp_path):
    config = change(
        folder(), {"data.root": "mine", "data.val_split": "dev", "data.window": (64, 64), "data.stride": (32, 32)}
    )
    write_config(tmp_path, "folder", config, {})
    weights = tmp_path / "best.safetensors"
    assert data_of_run(weights) == config.data == data_to_evaluate(weights)
    assert data_to_evaluate(weights, root="moved").root == "moved"
    assert data_to_evaluate(weights, root="moved").window == (64, 64)
    assert data_to_evaluate(weights, split="test").val_split == "test"
    other = data_to_evaluate(weights, name="ade20k", root="ade")
    assert (other.window, other.val_scale, other.val_split) == (None, (2048, 512), "val")


def test_a_run_on_generated_scenes_asks_for_the_name_of_other_data(tmp_path):
    write_config(tmp_path, "synthetic", synthetic(), {})
    weights = tmp_path / "best.safetensors"
    with pytest.raises(
        ValueError, match=r"trained on 'synthetic', which has no folder; got --data here\. Give the --name"
    ):
        data_to_evaluate(weights, root="here")
    assert data_to_evaluate(weights).name == data_to_evaluate(weights, name="synthetic").name == "synthetic"
    assert data_to_evaluate(weights, name="camvid", root="here").root == "here"


def test_what_nothing_is_known_of(tmp_path):
    with pytest.raises(ValueError, match=r"nothing says what .* was trained on: give the data set with --data"):
        data_to_evaluate(tmp_path / "model.safetensors")


def test_a_model_of_the_hub_knows_its_protocol_and_names_no_files(tmp_path):
    weights = tmp_path / "model.safetensors"
    content = {"format": "cacseg model 1"}

    def written(**more):
        (tmp_path / "config.json").write_text(json.dumps({**content, **more}))
        return data_of_run(weights)

    assert written() is None
    data = {"name": "folder", "crop": [64, 64], "val_scale": [520, 260], "window": [64, 64], "stride": [32, 32]}
    found = written(data={**data, "root": "/etc"})
    assert (found.root, found.val_scale, found.window, found.stride) == (None, (520, 260), (64, 64), (32, 32))
    for wrong in ({**data, "unheard_of": 1}, {**data, "window": "large"}, [1], 5):
        with pytest.raises(ValueError, match=r"config.json .* does not know"):
            written(data=wrong)


@pytest.mark.parametrize("content", ["[]", "[" * 100_000, "{", '{"format": "cacseg model 1", "data": 5}'])
def test_a_damaged_description_beside_a_model(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json (is damaged|is no configuration|describes its data)"):
        data_of_run(tmp_path / "model.safetensors")
