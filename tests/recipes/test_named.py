"""The recipes are the published ones."""

import pytest

from cacseg.data import DATA_SETS
from cacseg.models import MODELS
from cacseg.recipes import RECIPES, Config, change, find_recipe


def test_every_model_on_every_data_set_of_the_paper():
    for data in ("ade20k", "cocostuff164k", "cityscapes", "pascal_context59", "pascal_context60"):
        for model in MODELS:
            config = find_recipe(f"{data}/{model}")
            assert (config.data.name, config.model.name) == (data, model)
    assert len(RECIPES) == 5 * 11 + 5


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_whole_and_survives_json(name):
    config = RECIPES[name].make()
    assert Config.model_validate_json(config.model_dump_json()) == config
    assert config.data.name in DATA_SETS
    assert config.data.crop[0] % 16 == config.data.crop[1] % 16 == 0


@pytest.mark.parametrize(
    ("name", "optimiser", "rate", "decay", "power", "minimum", "warmup", "batch", "steps"),
    [
        ("ade20k/fcn_mobilenetv2", "sgd", 0.01, 5e-4, 0.9, 1e-4, 0, 16, 160_000),
        ("cityscapes/deeplabv3plus_resnet101", "sgd", 0.01, 5e-4, 0.9, 1e-4, 0, 8, 80_000),
        ("cocostuff164k/ocrnet_hrnet_w48", "sgd", 0.01, 5e-4, 0.9, 1e-4, 0, 16, 160_000),
        ("pascal_context59/deeplabv3plus_resnet50", "sgd", 4e-3, 1e-4, 0.9, 1e-4, 0, 16, 80_000),
        ("pascal_context60/ocrnet_hrnet_w18", "sgd", 1e-3, 1e-4, 0.9, 1e-4, 0, 16, 80_000),
        ("ade20k/upernet_swin_large", "adamw", 6e-5, 0.01, 1.0, 0.0, 1500, 16, 160_000),
        ("cityscapes/upernet_swin_tiny", "adamw", 6e-5, 0.01, 1.0, 0.0, 1500, 16, 80_000),
    ],
)
def test_schedules(name, optimiser, rate, decay, power, minimum, warmup, batch, steps):
    config = find_recipe(name)
    assert (config.optimiser.name, config.optimiser.rate, config.optimiser.weight_decay) == (optimiser, rate, decay)
    assert (config.optimiser.momentum, config.optimiser.betas) == (0.9, (0.9, 0.999))
    assert config.optimiser.decay_normalisation is (optimiser == "sgd")
    found = config.schedule
    assert (found.power, found.minimum, found.warmup_steps, found.steps) == (power, minimum, warmup, steps)
    assert config.training.batch == batch
    assert config.model.pretrained


@pytest.mark.parametrize(
    ("data", "crop", "scale", "window", "stride"),
    [
        ("ade20k", (512, 512), (2048, 512), None, None),
        ("cocostuff164k", (512, 512), (2048, 512), None, None),
        ("cityscapes", (512, 1024), (2048, 1024), None, None),
        ("pascal_context59", (480, 480), (520, 520), (480, 480), (320, 320)),
        ("pascal_context60", (480, 480), (520, 520), (480, 480), (320, 320)),
    ],
)
def test_sizes(data, crop, scale, window, stride):
    found = find_recipe(f"{data}/upernet_resnet50").data
    assert (found.crop, found.scale, found.val_scale, found.window, found.stride) == (
        crop,
        scale,
        scale,
        window,
        stride,
    )
    assert (found.ratios, found.max_share, found.flip, found.distort) == ((0.5, 2.0), 0.75, 0.5, True)


def test_a_model_of_the_paper_brings_its_own_backbone():
    recipe = find_recipe("folder")
    assert recipe.model.backbone is not None
    for name in ("fcn_mobilenetv2", "upernet_swin_tiny"):
        assert change(recipe, {"model.name": name}).model.backbone is None
    assert change(recipe, {"model.name": "fcn"}).model.backbone == recipe.model.backbone
    assert change(recipe, {"model.name": "fcn", "model.backbone": "resnet18"}).model.backbone == "resnet18"


def test_how_mobilenetv2_dilates():
    """As its ImageNet weights need it where models are one's own, as the reference has it in those of the paper."""
    for name in ("folder", "camvid", "msrc21"):
        assert find_recipe(name).model.dilated_blocks == "auto"
    assert find_recipe("ade20k/fcn_mobilenetv2").model.dilated_blocks == "first"
    assert find_recipe("ade20k/upernet_resnet50").model.dilated_blocks == "auto"


def test_what_the_paper_does_not_state_is_said():
    assert "not stated" in RECIPES["cocostuff164k/fcn_mobilenetv2"].note
    assert "not stated" in RECIPES["pascal_context59/upernet_resnet50"].note
    assert RECIPES["pascal_context59/ocrnet_hrnet_w18"].note == ""
    assert RECIPES["ade20k/upernet_swin_tiny"].note == ""


def test_a_mistyped_name_gets_the_nearest():
    with pytest.raises(
        ValueError, match=r"no recipe 'ade20k/upernet_swin_tinny'. Did you mean 'ade20k/upernet_swin_tiny'"
    ):
        find_recipe("ade20k/upernet_swin_tinny")
    with pytest.raises(ValueError, match="cacseg train --list"):
        find_recipe("imagenet")
