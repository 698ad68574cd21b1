"""From a configuration to a run, on folders of pictures."""

import cv2
import numpy as np
import pytest
import torch

import cacseg
from cacseg.engine.checkpoints import read_checkpoint
from cacseg.recipes import change, find_recipe
from cacseg.recipes.build import make_loaders, make_model, run
from cacseg.recipes.files import read_config
from cacseg.recipes.folders import read_metrics
from cacseg.recipes.protocol import open_split

SMALL = {
    "model.name": "fcn",
    "model.backbone": "test_resnet",
    "model.head_channels": 16,
    "data.crop": [32, 32],
    "schedule.steps": 2,
    "schedule.warmup_steps": 0,
    "training.batch": 2,
    "training.workers": 0,
    "training.validate_every": 1,
    "training.log_every": 1,
    "training.accelerator": "cpu",
    "training.devices": 1,
    "training.loggers": ["csv"],
}


def make_folder(root, classes=("grass", "road", "sky"), value=None):
    """Three training and two validation images of 40x48."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 2)):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            labels = generator.integers(0, len(classes), (5, 6)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
            if value is not None:
                labels[:4] = value
            image = labels[..., None] * 60 + generator.integers(0, 50, (40, 48, 3)).astype(np.uint8)
            cv2.imwrite(str(root / "images" / split / f"{index}.png"), image)
            cv2.imwrite(str(root / "labels" / split / f"{index}.png"), labels)
    (root / "classes.txt").write_text("\n".join(classes) + "\n")
    return root


def small(root, **changes):
    return change(find_recipe("folder"), {**SMALL, "data.root": str(root), **changes})


def quiet(config, folder, **options):
    return run(config, folder, recipe="folder", report=lambda text: None, progress=False, **options)


def test_a_folder_of_one_s_own_trains_and_its_model_loads(tmp_path):
    config = small(make_folder(tmp_path / "data"))
    result = quiet(config, tmp_path / "run")
    assert result.step == 2
    model = cacseg.load(tmp_path / "run" / "best.safetensors")
    assert model.class_names == ["grass", "road", "sky"]
    assert len(model.palette) == 3
    saved = read_config(tmp_path / "run")
    assert saved.config == change(config, {"data.resident": False, "training.graph": False})  # as it was decided
    assert saved.model_arguments == model.arguments


def test_losses_of_a_short_run_make_a_curve(tmp_path):
    config = small(make_folder(tmp_path / "data"), **{"training.log_every": 50})
    quiet(config, tmp_path / "run")
    assert (read_metrics(tmp_path / "run/metrics.csv")["loss/total"].notna()).sum() == 2
    assert read_config(tmp_path / "run").config.training.log_every == 1
    assert [config.training.logged_every(steps) for steps in (1, 20, 100, 999, 80_000)] == [1, 1, 5, 49, 50]


def test_resuming_asks_for_the_same_run(tmp_path):
    root = make_folder(tmp_path / "data")
    config = small(root)
    quiet(config, tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(
        ValueError, match=r"resumed as it was started: schedule.steps was 2, now 3; training.seed was 0"
    ):
        quiet(change(config, {"schedule.steps": 3, "training.seed": 5}), tmp_path / "run", resume=True)
    with pytest.raises(FileExistsError, match="never overwritten"):
        quiet(config, tmp_path / "run")
    assert quiet(change(config, {"training.workers": 3}), tmp_path / "run", resume=True).step == 2
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_classes_are_balanced_by_the_training_images(tmp_path):
    """The third class is in one of three images: class weights stand in config.json, resuming takes them from there."""
    root = make_folder(tmp_path / "data")
    for index in (0, 1):
        path = root / "labels" / "train" / f"{index}.png"
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        cv2.imwrite(str(path), np.where(labels == 2, 1, labels))
    config = small(root, **{"data.balance": 0.9, "model.class_weights": "frequency"})
    said = []
    run(config, tmp_path / "run", recipe="folder", report=said.append, progress=False)
    shown = "\n".join(said)
    often = 3 * 0.9**0.5 * 3**0.5 / (2 + 0.9**0.5 * 3**0.5)
    assert f"{often:.2f} times an epoch (data.balance=0.9); 1 classes" in shown
    assert "less than 90% of the images: sky" in shown
    kept = read_config(tmp_path / "run").config
    assert len(kept.model.class_weights) == 3
    assert cacseg.load(tmp_path / "run" / "last.safetensors").class_weights.tolist() == pytest.approx(
        kept.model.class_weights
    )
    (tmp_path / "run" / "last.ckpt").unlink()
    assert quiet(config, tmp_path / "run", resume=True).step == 2


def test_a_resumed_run_does_not_need_the_files_it_started_from(tmp_path):
    root = make_folder(tmp_path / "data")
    quiet(small(root), tmp_path / "first")
    weights = tmp_path / "first" / "best.safetensors"
    config = small(root, **{"model.weights": str(weights), "schedule.steps": 3})
    quiet(config, tmp_path / "second")
    weights.unlink()
    assert quiet(config, tmp_path / "second", resume=True).step == 3


def test_there_are_no_more_readers_than_cores(tmp_path, monkeypatch):
    config = small(make_folder(tmp_path / "data"), **{"training.workers": 3})
    data = open_split(config.data, "train")
    monkeypatch.setattr("cacseg.engine.loaders.available_cores", lambda: 2)
    assert make_loaders(config, data, data).workers == 2
    monkeypatch.setattr("cacseg.engine.loaders.available_cores", lambda: 8)
    assert make_loaders(config, data, data).workers == 3


def test_fine_tuning_starts_from_the_weights(tmp_path):
    root = make_folder(tmp_path / "data")
    data = open_split(small(root).data, "train")
    torch.manual_seed(3)
    start = cacseg.create_model(
        "fcn", 3, backbone="test_resnet", head_channels=16, mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5)
    )
    start.save(tmp_path / "start.safetensors")
    said = []
    model = make_model(small(root, **{"model.weights": str(tmp_path / "start.safetensors")}).model, data, said.append)
    assert all(torch.equal(value, start.state_dict()[name]) for name, value in model.state_dict().items())
    assert model.mean == (0.1, 0.2, 0.3)
    assert said == [f"weights of {tmp_path / 'start.safetensors'}"]


def test_weights_of_another_class_count_are_refused_before_training(tmp_path):
    root = make_folder(tmp_path / "data")
    torch.manual_seed(0)
    cacseg.create_model("fcn", 7, backbone="test_resnet", head_channels=16).save(tmp_path / "seven.safetensors")
    config = small(root, **{"model.weights": str(tmp_path / "seven.safetensors")})
    with pytest.raises(ValueError, match=r"seven.safetensors is a model of 7 classes, and the data have 3"):
        quiet(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert quiet(change(config, {"model.reset_classifier": True}), tmp_path / "run").step == 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("classes", r"classes\.txt"),
        ("split", "no split 'val'"),
        ("value", "holds the label 9 in"),
        ("ignore", "ignore_index must be no class number; 1 is"),
        ("crop", "the crop must fit into an image at its largest; got 512x512"),
        ("root", "no data set at"),
    ],
)
def test_bad_data_stop_before_anything_is_written(tmp_path, wrong, words):
    root = make_folder(tmp_path / "data", value=9 if wrong == "value" else None)
    changes = {"ignore": {"data.ignore_index": 1}, "crop": {"data.crop": [512, 512]}}.get(wrong, {})
    if wrong == "classes":
        (root / "classes.txt").unlink()
    elif wrong == "split":
        for kind in ("images", "labels"):
            for path in (root / kind / "val").iterdir():
                path.unlink()
            (root / kind / "val").rmdir()
    elif wrong == "root":
        root = tmp_path / "nowhere"
    with pytest.raises((ValueError, OSError), match=words) as error:
        quiet(small(root, **changes), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_refused_leaves_its_folder_to_the_corrected_one(tmp_path):
    """Labels of the validation split are first read in the dry run, which is as late as a refusal can be."""
    root = make_folder(tmp_path / "data")
    good = cv2.imread(str(root / "labels" / "val" / "0.png"), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(root / "labels" / "val" / "0.png"), np.full_like(good, 9))
    config = small(root, **{"training.loggers": ["csv", "tensorboard"]})
    with pytest.raises(ValueError, match="holds the label 9"):
        quiet(config, tmp_path / "run")
    with pytest.raises(ValueError, match=r"backbone.*'bckbone'"):
        quiet(change(config, {"optimiser.multipliers.bckbone": 0.1}), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "tensorboard"}
    cv2.imwrite(str(root / "labels" / "val" / "0.png"), good)
    assert quiet(change(config, {"optimiser.rate": 0.002}), tmp_path / "run").step == 2
    assert read_config(tmp_path / "run").config.optimiser.rate == 0.002


def test_a_warm_up_longer_than_the_run_is_said(tmp_path):
    said = []
    config = small(make_folder(tmp_path / "data"), **{"schedule.warmup_steps": 2})
    run(config, tmp_path / "run", report=said.append, progress=False)
    assert any("warm-up of 2 steps does not end within 2" in line for line in said)
    assert "from random weights (model.pretrained=true downloads" in said[0]


@pytest.mark.parametrize(("given", "multiple"), [({}, 32), ({"model.pad_to_stride": False}, 1)])
def test_padding_to_the_stride_is_the_recipe_s(tmp_path, given, multiple):
    root = make_folder(tmp_path / "data")
    settings = {"model.name": "fcn", "model.backbone": "mobilenetv2_035", "model.padding": "same", **given}
    config = small(root, **settings)
    assert make_model(config.model, open_split(config.data, "train"), print).backbone.multiple == multiple


def test_dilations_are_the_recipe_s_or_those_of_the_weights(tmp_path):
    root, said = make_folder(tmp_path / "data"), []
    data = open_split(small(root).data, "train")
    deeplab = {"model.name": "deeplabv3plus"}
    near = make_model(small(root, **deeplab, **{"model.dilations": (1, 2)}).model, data, said.append)
    assert near.arguments["dilations"] == [1, 2]
    near.save(tmp_path / "near.safetensors")
    deeplab["model.weights"] = str(tmp_path / "near.safetensors")
    assert make_model(small(root, **deeplab).model, data, said.append).arguments["dilations"] == [1, 2]
    assert not any(line.startswith("dilations") for line in said)
    other = make_model(small(root, **deeplab, **{"model.dilations": (2, 4)}).model, data, said.append)
    assert other.arguments["dilations"] == [2, 4]
    assert any(line.startswith("dilations of [2, 4], where the model of") for line in said)
    named = cacseg.create_model("deeplabv3plus_mobilenetv2", 3, dilations=(1, 2), head_channels=16)
    named.save(tmp_path / "named.safetensors")
    apart = {**deeplab, "model.backbone": "mobilenetv2_100", "model.output_stride": 8}
    apart["model.weights"] = str(tmp_path / "named.safetensors")
    assert make_model(small(root, **apart).model, data, said.append).arguments["dilations"] == [1, 2]


def test_dilated_blocks_are_the_recipe_s_or_those_of_the_weights(tmp_path):
    root, said = make_folder(tmp_path / "data"), []
    data = open_split(small(root).data, "train")
    names = {"model.name": "fcn", "model.backbone": "mobilenetv2_035", "model.output_stride": 16}
    all_of_them = make_model(small(root, **names, **{"model.dilated_blocks": "all"}).model, data, said.append)
    assert all_of_them.arguments["dilated_blocks"] == "all"
    all_of_them.save(tmp_path / "all.safetensors")
    assert cacseg.load(tmp_path / "all.safetensors").arguments["dilated_blocks"] == "all"
    names["model.weights"] = str(tmp_path / "all.safetensors")
    assert make_model(small(root, **names).model, data, said.append).arguments["dilated_blocks"] == "all"
    assert not any(line.startswith("dilated_blocks") for line in said)
    make_model(small(root, **names, **{"model.dilated_blocks": "first"}).model, data, said.append)
    assert any(line.startswith("dilated_blocks of 'first', where the model of") for line in said)


def test_dilated_blocks_are_known_by_the_backbone(tmp_path):
    """Whatever the model is called."""
    root, said = make_folder(tmp_path / "data"), []
    data = open_split(small(root).data, "train")
    named = cacseg.create_model("fcn_mobilenetv2", 3, "plain", dilated_blocks="all", auxiliary=False, head_channels=16)
    named.save(tmp_path / "named.safetensors")
    apart = {"model.name": "fcn", "model.backbone": "mobilenetv2_100", "model.output_stride": 8}
    apart |= {"model.classifier": "plain", "model.auxiliary": False}
    apart["model.weights"] = str(tmp_path / "named.safetensors")
    assert make_model(small(root, **apart).model, data, said.append).arguments["dilated_blocks"] == "all"


@pytest.mark.parametrize(
    ("stride", "theirs", "wish", "ours"),
    [
        (32, "first", "auto", "all"),
        (16, "all", "auto", "all"),
        (16, "first", "auto", "all"),
        (8, "first", "auto", "first"),
    ],
)
def test_dilated_blocks_of_weights_from_another_stride(tmp_path, stride, theirs, wish, ours):
    """Undilated weights, and those of a network all of whose blocks dilate, read the same where all of them do."""
    root, said = make_folder(tmp_path / "data"), []
    data = open_split(small(root).data, "train")
    names = {"backbone": "mobilenetv2_035", "dilated_blocks": theirs, "auxiliary": False, "head_channels": 16}
    cacseg.create_model("fcn", 3, output_stride=stride, **names).save(tmp_path / "model.safetensors")
    asked = {"model.name": "fcn", "model.backbone": "mobilenetv2_035", "model.auxiliary": False}
    asked |= {"model.output_stride": 8, "model.weights": str(tmp_path / "model.safetensors")}
    made = make_model(small(root, **asked, **{"model.dilated_blocks": wish}).model, data, said.append)
    assert made.arguments["dilated_blocks"] == ours


def test_a_recipe_s_dilation_is_nothing_to_other_backbones(tmp_path):
    root = make_folder(tmp_path / "data")
    asked = {"model.name": "fcn", "model.backbone": "resnet18", "model.dilated_blocks": "auto"}
    config = small(root, **asked)
    made = make_model(config.model, open_split(config.data, "train"), print)
    assert "dilated_blocks" not in made.arguments
    with pytest.raises(
        ValueError, match=r"of MobileNetV2 alone; got 'all' with resnet18\. Leave it out, or say auto\."
    ):
        make_model(change(config, {"model.dilated_blocks": "all"}).model, open_split(config.data, "train"), print)


def test_given_backbone_weights_bring_their_preprocessing(tmp_path):
    root = make_folder(tmp_path / "data")
    torch.manual_seed(0)
    net = cacseg.create_model("fcn", 3, backbone="test_resnet", head_channels=16).backbone.net
    torch.save(net.state_dict(), tmp_path / "backbone.pth")
    half = [0.5, 0.5, 0.5]
    changes = {"model.backbone_weights": str(tmp_path / "backbone.pth"), "model.mean": half, "model.std": half}
    quiet(small(root, **changes), tmp_path / "run")
    assert cacseg.load(tmp_path / "run" / "last.safetensors").mean == (0.5, 0.5, 0.5)
    assert read_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == 2
