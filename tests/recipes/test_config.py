"""Settings by name, checked by type."""

import json
import re

import pytest
from pydantic import ValidationError

from cacseg.presets import PRESETS
from cacseg.recipes import change, find_recipe
from cacseg.recipes.config import flat, parse_setting, setting_names, validated
from cacseg.recipes.files import differences, read_config, read_recipe, write_config
from cacseg.recipes.settings import describe_settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("optimiser.rate=0.001", 0.001),
        ("optimiser.rate = 1e-3", 0.001),
        ("data.crop=256,512", (256, 512)),
        ("data.crop=[256, 512]", (256, 512)),
        ("data.crop=256x512", (256, 512)),
        ("data.crop=256 X 512", (256, 512)),
        ('data.crop="256,512"', (256, 512)),
        ("data.crop=256", (256, 256)),
        ("data.window=none", None),
        ("data.scale=2048x512", (2048, 512)),
        ("data.ratios=0.5x2", (0.5, 2.0)),
        ("optimiser.betas=9e-1,0.99", (0.9, 0.99)),
        ("model.weights=runs/a/best.safetensors", "runs/a/best.safetensors"),
        ("training.ema_decay=none", None),
        ("model.dilations=6,12,18", (6, 12, 18)),
        ("model.dilations=6", (6,)),
        ("training.compile=True", True),
        ("training.loggers=csv,tensorboard", ("csv", "tensorboard")),
        ("training.loggers=csv", ("csv",)),
        ("training.devices=auto", "auto"),
        ("training.devices=4", 4),
        ("optimiser.multipliers.backbone=0.1", {"backbone": 0.1}),
        ('model.loss_arguments={"kl_weight": 0.5}', {"kl_weight": 0.5}),
    ],
)
def test_a_setting_reads_as_its_type(text, value):
    key, given = parse_setting(text)
    config = change(find_recipe("synthetic"), {key: given})
    section, field = key.split(".")[:2]
    assert getattr(getattr(config, section), field) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optimizer.rate=1", "no setting 'optimizer.rate'. Did you mean 'optimiser.rate'"),
        ("rate=1", "no setting 'rate'. Did you mean"),
        ("optimiser.rate=fast", "optimiser.rate: input should be a valid number.*got 'fast'"),
        ("optimiser.rate=-1", "optimiser.rate: input should be greater than 0; got -1"),
        ("schedule.steps=1.5", "schedule.steps: input should be a valid integer"),
        ("training.precision=fp8", "training.precision: input should be 'fp32', 'tf32', 'bf16' or 'fp16'; got 'fp8'"),
        ("model.dilations=6,0", "model.dilations: input should be greater than or equal to 1; got 0"),
        ("model.dilations=6,1.5", "model.dilations: input should be a valid integer; got 1.5"),
        ("model.dilations=true,true", "model.dilations: input should be a valid integer; got True"),
        ("model.dilations=[]", "model.dilations: tuple should have at least 1 item"),
        ("data.crop=big", "data.crop: must be HEIGHT,WIDTH, e.g. 512,640; got 'big'"),
        ("data.crop=512x", "data.crop: must be HEIGHT,WIDTH, e.g. 512,640; got '512x'"),
        ("data.crop=512,big", r"data.crop: must be HEIGHT,WIDTH, e.g. 512,640; got \['512', 'big'\]"),
        ("data.crop=1,2,3", r"data.crop: must be HEIGHT,WIDTH, e.g. 512,640; got \[1, 2, 3\]"),
        ("data.crop=none", "data.crop: must be HEIGHT,WIDTH, e.g. 512,640; got None"),
        ("data.crop=true", "data.crop: must be HEIGHT,WIDTH, e.g. 512,640; got True"),
        ("data.crop=0", "data.crop: input should be greater than or equal to 1; got 0"),
        ("data.crop=512,1.5", "data.crop: input should be a valid integer, .*; got 1.5"),
        ("data.scale=512", "data.scale: must be LONG,SHORT, e.g. 2048,512; got 512"),
        ("data.ratios=2", "data.ratios: must be LEAST,MOST, e.g. 0.5,2; got 2"),
        ("optimiser.betas=0.9", "optimiser.betas: must be two shares, e.g. 0.9,0.999; got 0.9"),
        ("nothing=1", "no setting 'nothing'. `cacseg train --settings` lists them all"),
        ("data.window=256", r"window and stride go together; got window=\(256, 256\), stride=None"),
        ("schedule.minimum=0.01", "schedule.minimum must not exceed optimiser.rate, .*; got 0.01 and 0.001"),
        ("optimiser.rate.x=1", "no setting 'optimiser.rate.x'"),
        ("model=fcn", "no setting 'model'"),
        ("optimiser.rate", "must be key=value; got 'optimiser.rate'"),
    ],
)
def test_a_wrong_setting_is_one_line(text, words):
    with pytest.raises(ValueError, match=words) as error:
        change(find_recipe("synthetic"), dict([parse_setting(text)]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("section", "key", "remedy"),
    [
        ("optimiser", "rte", "'optimiser.rate'?"),
        ("training", "steps", "'schedule.steps'?"),
        ("model", "qqq", "`cacseg train --settings`"),
        ("", "modle", "'model'?"),
        ("", "qqq", "model, data, optimiser, schedule, training"),
    ],
)
def test_a_wrong_key_in_a_file_gets_the_nearest(tmp_path, section, key, remedy):
    content = find_recipe("synthetic").model_dump(mode="json")
    (content[section] if section else content)[key] = 1
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(str(file))) as error:
        read_recipe(file)
    message = str(error.value)
    assert repr(f"{section}.{key}" if section else key) in message
    assert remedy in message
    assert message.count(str(file)) == 1
    assert "\n" not in message


def test_all_that_is_wrong_in_a_file_is_named():
    content = find_recipe("synthetic").model_dump(mode="json")
    content["modle"] = content.pop("model")
    content["optimiser"] |= {"rte": 1, "clip": -1}
    with pytest.raises(ValueError, match=r"no setting 'optimiser\.rte'.*no section 'modle'.*model is missing") as error:
        validated(content)
    assert re.search(r"optimiser\.clip: [^;]*\b0; got -1\b", str(error.value))


def test_every_setting_is_described_in_a_line():
    listed = list(describe_settings())
    assert [setting.key for setting in listed] == [key for key, _ in flat(find_recipe("folder"))] == setting_names()
    for setting in listed:
        assert setting.description.endswith("."), setting.key
        assert "\n" not in setting.description, setting.key
        assert "none" not in setting.kind or "none" in setting.description, setting.key


@pytest.mark.parametrize("name", ["synthetic", "pascal_context59/upernet_swin_tiny"])
def test_a_listed_value_is_spelt_as_it_is_read(name):
    config = change(find_recipe(name), {"optimiser.multipliers.backbone": 0.1, "model.mean": (1.0, 2.0, 3.0)})
    spelt = dict(parse_setting(f"{setting.key}={setting.value}") for setting in describe_settings(config))
    assert change(find_recipe("folder"), spelt) == config


def test_a_listed_type_is_spelt_as_values_are():
    kinds = {setting.key: setting.kind for setting in describe_settings()}
    assert kinds["model.padding"] == "(empty) | same | none"
    assert kinds["model.dilations"] == "int,... | none"
    assert kinds["training.devices"] == "int | auto"
    assert kinds["optimiser.multipliers"] == "dict"


def test_a_configuration_cannot_be_changed_in_place():
    config = find_recipe("folder")
    with pytest.raises(ValidationError, match="frozen"):
        config.optimiser.rate = 1.0


def test_a_recipe_derives_from_another():
    derived = change(find_recipe("camvid"), {"data.root": "streets", "schedule.steps": 20_000})
    before, after = dict(flat(find_recipe("camvid"))), dict(flat(derived))
    assert {key for key in before if before[key] != after[key]} == {"data.root", "schedule.steps"}


def test_the_saved_configuration_reads_again(tmp_path):
    config = change(find_recipe("ade20k/upernet_swin_tiny"), {"optimiser.multipliers.backbone": 0.1})
    write_config(tmp_path, "ade20k/upernet_swin_tiny", config, {"name": "upernet_swin_tiny"})
    for place in (tmp_path, tmp_path / "config.json"):
        saved = read_config(place)
        assert saved.config == config
        assert saved.recipe == "ade20k/upernet_swin_tiny"
    for text, words in (('{"format": "something"}', "something"), ("[" * 100_000, "nested too deeply"), ("", "")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=rf"config\.json is no configuration of a run .*{words}"):
            read_config(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"other does not exist.*cacseg train -o.*config\.json"):
        read_config(tmp_path / "other")


def test_a_resumed_run_keeps_the_preset_that_it_began_with(tmp_path, monkeypatch):
    arguments = {"name": "fcn", "classifier": "context", "preset": "tuned", "loss_arguments": {"kl_weight": 0.5}}
    write_config(tmp_path, "synthetic", find_recipe("synthetic"), arguments)
    assert read_config(tmp_path).model_arguments["loss_arguments"] == {"kl_weight": 0.5}
    monkeypatch.setitem(PRESETS, "tuned", PRESETS["tuned"]._replace(overlap_weight=1.0))
    assert read_config(tmp_path).model_arguments["loss_arguments"] == {"kl_weight": 0.5, "overlap_weight": 3.0}


def test_what_a_resumed_run_may_change():
    config = find_recipe("synthetic")
    allowed = {"training.workers": 7, "training.devices": 2, "data.root": "elsewhere", "training.log_every": 1}
    assert differences(config, change(config, allowed)) == []
    changed = change(config, {"optimiser.rate": 0.5, "schedule.steps": 7, "training.batch": 2})
    assert differences(config, changed) == [
        "optimiser.rate was 0.001, now 0.5",
        "schedule.steps was 400, now 7",
        "training.batch was 8, now 2",
    ]
