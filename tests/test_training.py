"""Training from Python, on whatever holds images and masks."""

import json
import os
import random
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cacseg
from cacseg.data import open_data
from cacseg.engine.callbacks import Stopped
from cacseg.engine.checkpoints import read_checkpoint
from cacseg.recipes import change
from cacseg.recipes.build import run
from cacseg.recipes.files import read_config
from cacseg.recipes.protocol import data_to_evaluate, open_split

CLASSES = ["grass", "road", "sky"]
SETTINGS = {
    "data.crop": [32, 32],
    "schedule.steps": 3,
    "schedule.warmup_steps": 0,
    "training.batch": 2,
    "training.workers": 0,
    "training.validate_every": 3,
    "training.save_every": 1,
    "training.scored_train_images": 0,
    "training.log_every": 1,
    "training.accelerator": "cpu",
    "training.devices": 1,
    "training.loggers": ["csv"],
}


def scene(index, size=(40, 48)):
    """Blocks of 8 pixels that are as bright as their class is high."""
    generator = np.random.default_rng(index)
    labels = generator.integers(0, 3, (size[0] // 8, size[1] // 8)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    return labels[..., None] * 60 + generator.integers(0, 50, (*size, 3)).astype(np.uint8), labels


class Scenes(torch.utils.data.Dataset):
    """As people write them: tensors, the labels int64."""

    def __init__(self, length=5, first=0):
        self.length, self.first = length, first

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image, labels = scene(index + self.first)
        return torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(labels).long()


def small_model(classes=3, **arguments):
    torch.manual_seed(0)
    return cacseg.create_model("fcn", classes, **{"backbone": "test_resnet", "head_channels": 16, **arguments})


def train(folder, data=None, validation=None, *, model=None, settings=None, **options):
    options = {"page": False, "progress": False, "report": lambda text: None, **options}
    data = Scenes() if data is None else data
    if validation is None and "val_share" not in options:
        validation = Scenes(2, first=50)
    model = small_model() if model is None else model
    return model, cacseg.train(
        model, data, validation, folder=folder, settings={**SETTINGS, **(settings or {})}, **options
    )


class Wild:
    """Draws from every generator that a transform may use; sends Ctrl-C from one of its calls."""

    def __init__(self, stop_at=None):
        self.stop_at, self.calls = stop_at, 0

    def __call__(self, image, mask):
        self.calls += 1
        if self.calls == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        if random.random() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        top, left = np.random.randint(0, 9), int(torch.randint(0, 17, ()))  # noqa: NPY002
        size = 32 - random.randrange(3)
        return image[top : top + size, left : left + 32], mask[top : top + size, left : left + 32]


def same_run(folder, other):
    first, second = (read_checkpoint(one / "last.ckpt") for one in (folder, other))
    parts = ("state_dict", "optimizer_states", "lr_schedulers", "random_states")
    return all(_same(first[part], second[part]) for part in parts)


def _same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return first == second


def test_a_torch_dataset_trains_and_leaves_a_run(tmp_path):
    model, result = train(tmp_path / "run", class_names=CLASSES, page=True)
    assert result.step == 3
    loaded = cacseg.load(tmp_path / "run" / "last.safetensors")
    assert loaded.class_names == CLASSES
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    assert not model.training
    saved = read_config(tmp_path / "run")
    assert (saved.recipe, saved.config.data.name, saved.config.data.root) == ("cacseg.train", "python", None)
    assert saved.config.model.head_channels == 16
    assert saved.model_arguments == json.loads(json.dumps(model.arguments))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "python val" in page
    assert "data:image" in page


def test_a_resumed_run_is_the_run_whatever_generators_a_transform_draws_from(tmp_path):
    train(tmp_path / "alone", transform=Wild())
    with pytest.raises(Stopped):
        train(tmp_path / "cut", transform=Wild(stop_at=8))  # of the dry run are two; a batch is read ahead
    assert read_checkpoint(tmp_path / "cut" / "last.ckpt")["global_step"] == 2
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    workers = {"training.workers": 2}
    with pytest.raises(ValueError, match=r"as it was started: head_channels was 16, now 8"):
        train(tmp_path / "cut", transform=Wild(), model=small_model(head_channels=8), resume=True)
    with pytest.raises(ValueError, match=r"transform was '.*Wild', now 'ours'"):
        train(tmp_path / "cut", resume=True)
    with pytest.raises(ValueError, match=r"there were 5 .* and there are 4"):
        train(tmp_path / "cut", Scenes(4), transform=Wild(), resume=True, settings=workers)
    model, _ = train(tmp_path / "cut", transform=Wild(), resume=True, settings=workers)
    assert same_run(tmp_path / "alone", tmp_path / "cut")
    finished, result = train(tmp_path / "cut", transform=Wild(), resume=True)
    assert result.step == 3
    assert _same(finished.state_dict(), model.state_dict())


def test_the_command_line_says_that_python_has_the_data(tmp_path):
    train(tmp_path / "run", settings={"schedule.steps": 1})
    config = read_config(tmp_path / "run").config
    for one in (config, change(config, {"data.root": "here"})):
        with pytest.raises(ValueError, match=r"Python program.*cacseg\.train\(.*resume=True"):
            run(one, tmp_path / "run", resume=True)
    weights = tmp_path / "run" / "last.safetensors"
    named = data_to_evaluate(weights, name="folder", root="elsewhere")
    assert (named.name, named.root, named.crop) == ("folder", "elsewhere", (32, 32))
    with pytest.raises(ValueError, match="Python program"):
        open_split(data_to_evaluate(weights), "val")
    for kind, place in (("images", 0), ("labels", 1)):
        (tmp_path / "data" / kind / "val").mkdir(parents=True)
        Image.fromarray(scene(0)[place]).save(tmp_path / "data" / kind / "val" / "0.png")
    (tmp_path / "data" / "classes.txt").write_text("\n".join(CLASSES))
    files = read_config(tmp_path / "run").config.data.model_copy(update={"root": str(tmp_path / "data")})
    assert np.array_equal(open_split(files, "val").read(0).labels, scene(0)[1])


def test_images_are_held_out_by_their_names(tmp_path):
    said = []
    names = [f"{video}_{frame}" for video in "abc" for frame in range(2)]
    options = {"val_share": 0.4, "val_group": "^(.*)_", "names": names, "report": said.append}
    train(tmp_path / "run", Scenes(6), settings={"schedule.steps": 1}, **options)
    data = read_config(tmp_path / "run").config.data
    assert (data.val_share, data.val_group) == (0.4, "^(.*)_")
    assert any("of 6 images are held out" in line for line in said)


def test_data_of_ours_are_taken_too(tmp_path):
    data = [open_data("synthetic", None, split, size=(40, 48), length=4) for split in ("train", "val")]
    model, result = train(tmp_path / "run", *data, model=small_model(8), settings={"schedule.steps": 1})
    assert result.step == 1
    assert model.class_names == list(data[0].class_names)
    with pytest.raises(ValueError, match=r"class_names goes with pairs .* synthetic has its own"):
        train(tmp_path / "other", *data, class_names=CLASSES)


def test_what_cannot_be_trained_is_refused_and_leaves_no_run(tmp_path):
    folder = tmp_path / "run"

    def refused(error, words, **options):
        with pytest.raises(error, match=words):
            train(folder, **options)
        assert not (folder / "config.json").exists()

    refused(TypeError, r"create_model or cacseg\.load; got Conv2d.*model\.loss", model=torch.nn.Conv2d(3, 3, 1))
    refused(ValueError, "3 channels; the model takes 4", model=small_model(in_channels=4))
    refused(ValueError, r"model\.preset is no setting .*create_model", settings={"model.preset": "paper"})
    refused(ValueError, r"data\.root is no setting", settings={"data.root": "here"})
    refused(ValueError, r"schedule\.stepz", settings={"schedule.stepz": 3})
    refused(ValueError, r"data\.flip is a setting of our transform", settings={"data.flip": 0.3}, transform=Wild())
    refused(ValueError, "model must have the classes of the data; got 3 for the 2", class_names=CLASSES[:2])
    refused(ValueError, "got both", val_share=0.2, validation=Scenes(2))
    refused(ValueError, "val_group belongs to val_share", val_group="^(.*)_")
    refused(ValueError, r"crop must fit .* got 512x512", settings={"data.crop": 512})
    refused(ValueError, r"fits into data\.crop, 32x32 .* got 40x48", transform=lambda image, mask: (image, mask))
    with pytest.raises(ValueError, match="got neither"):
        cacseg.train(small_model(), Scenes(), folder=folder)
    with pytest.raises(ValueError, match=r"train\[\d\].* has 2 in "):
        train(folder, [(scene(k)[0], scene(k)[1].clip(1)) for k in range(3)], model=small_model(2))


BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "docs" / "data.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("modules", [(), ("datasets",), ("albumentations",), ("torchvision.transforms.v2",)])
def test_the_snippets_of_the_docs_run(modules, tmp_path, monkeypatch):
    known = {name.rpartition(".")[2]: pytest.importorskip(name) for name in modules}
    (block,) = [one for one in BLOCKS if (f"{next(iter(known))}." in one if known else "class Photos" in one)]
    monkeypatch.chdir(tmp_path)
    names = [f"photo_{k}" for k in range(6)]
    for folder, place, suffix in (("photos", 0, "jpg"), ("masks", 1, "png")):
        Path(folder).mkdir()
        for k, name in enumerate(names):
            Image.fromarray(scene(k)[place]).save(f"{folder}/{name}.{suffix}")
    if "v2" in known:
        known["tv_tensors"] = pytest.importorskip("torchvision.tv_tensors")
    if "datasets" in known:
        known["datasets"].disable_progress_bars()
        pictures = [[Image.fromarray(one) for one in scene(k)] for k in range(3)]
        saved = known["datasets"].Dataset.from_list([{"image": image, "label": mask} for image, mask in pictures])
        known["datasets"].DatasetDict(train=saved, validation=saved.select(range(2))).save_to_disk("saved")
    settings = {**SETTINGS, "schedule.steps": 1, "training.validate_every": 1}
    photos = BLOCKS[0].partition("\n\n\n")[0]  # the class, which other snippets use
    space = {"torch": torch, "Image": Image, "cacseg": cacseg, "model": small_model(), "names": names, **known}
    exec(photos, space)
    exec(block, {**space, "settings": settings})
    (run_folder,) = Path("runs").iterdir()
    assert cacseg.load(run_folder).num_classes == 3
    assert (run_folder / "report.html").exists()
