"""What TensorBoard shows of a run, read back from its event file."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cacseg.data import Sample
from cacseg.data.pictures import draw_strip
from cacseg.engine.features import image_rows
from cacseg.engine.inference import Inference
from cacseg.engine.strips import MOVES, STRIP, choose_pictures
from cacseg.models.files import read_tensors
from cacseg.models.saved import load
from engine_runs import Stripes, run, small_loaders, small_model, small_task

BOTH = ("csv", "tensorboard")


def events(folder):
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "histograms": 0})
    found.Reload()
    return found


def test_strips_and_histograms_of_every_validation(tmp_path):
    run(tmp_path / "run", 6, loggers=BOTH)
    found = events(tmp_path / "run")
    tags = found.Tags()["images"]
    assert tags == [f"{STRIP}/image_{k:03d}" for k in range(3)]
    tag = tags[0]
    shown = found.Images(tag)
    assert [one.step for one in shown] == [3, 6]
    with Image.open(io.BytesIO(shown[0].encoded_image_string)) as picture:
        assert picture.size == (shown[0].width, shown[0].height)
        assert picture.size[0] > 5 * 160
    histograms = found.Histograms(MOVES)
    assert [one.step for one in histograms] == [3, 6]

    # The last histogram is of the model that was saved with it.
    model = load(tmp_path / "run/last.safetensors").eval()
    found = image_rows(model, Stripes("val", 3), range(3), device=torch.device("cpu"))
    moves = np.concatenate([rows.moves[rows.counts > 0] for rows in found])
    last = histograms[-1].histogram_value
    assert last.num == len(moves)
    assert (last.min, last.max) == pytest.approx((moves.min(), moves.max()), rel=1e-4)
    assert last.sum == pytest.approx(float(moves.sum()), rel=1e-4)


def test_a_plain_model_has_strips_alone(tmp_path):
    run(tmp_path / "run", 3, task=small_task(small_model(classifier="plain"), steps=3), loggers=BOTH)
    found = events(tmp_path / "run")
    assert found.Tags()["images"] == [f"{STRIP}/image_{k:03d}" for k in range(3)]
    assert found.Tags()["histograms"] == []


def test_images_without_a_label_have_strips_alone(tmp_path):
    class Unlabelled(Stripes):
        def read(self, index):
            image, labels = super().read(index)
            return Sample(image, np.full_like(labels, self.ignore_index))

    run(tmp_path / "run", 3, loaders=small_loaders(validation=Unlabelled("val", 3)), loggers=BOTH)
    found = events(tmp_path / "run")
    assert len(found.Tags()["images"]) == 3
    assert found.Tags()["histograms"] == []


def test_windows_and_averaged_weights(tmp_path):
    task = small_task(steps=3, inference=Inference((32, 32), (24, 24)), ema_decay=0.9, loggers=BOTH)
    run(tmp_path / "run", task=task)
    (found,) = events(tmp_path / "run").Histograms(MOVES)
    assert found.histogram_value.num > 3  # a classifier for each window


def test_the_run_is_the_same_without(tmp_path):
    for name, loggers in (("with", BOTH), ("without", ("csv",))):
        run(tmp_path / name, 5, loggers=loggers)
    first, second = (read_tensors(tmp_path / name / "last.safetensors").tensors for name in ("with", "without"))
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def test_images_are_few():
    for length, expected in ((1, 1), (3, 3), (8, 4), (2000, 4)):
        loaders = small_loaders(validation=Stripes("val", length))
        assert len(choose_pictures(loaders)) == expected


def test_two_answers_have_one_picture_more():
    labels = np.array([[0, 1, 2, 0, 255]], np.uint8)
    before, after = np.array([[0, 0, 2, 1, 0]], np.uint8), np.array([[0, 1, 1, 2, 1]], np.uint8)
    image, palette = np.zeros((1, 5, 3), np.uint8), ((9, 9, 9), (50, 0, 0), (0, 50, 0))
    both = draw_strip(image, labels, {"plain": before, "context": after}, palette)
    alone = draw_strip(image, labels, {"plain": before}, palette)
    assert both.shape[1] > 1.5 * alone.shape[1]
