"""Images that stay on the device, cropped as the transform on the host crops."""

import csv
from itertools import islice

import cv2
import numpy as np
import pytest
import torch

from cacseg.data import Sample, TrainTransform
from cacseg.engine import resident as resident_images
from cacseg.engine.resident import TO_YIQ, Draws, DrawStream, _colours, cut_crops, estimate_bytes, load_pictures
from cacseg.engine.resident import load_split as load
from cacseg.engine.stream import MicroBatches, Order, TrainStream, ValidationPictures, collate, numbers_at
from engine_runs import Stripes, run, small_loaders, small_model, small_task, whole

CPU = torch.device("cpu")
MEAN, STD = (300.0, 900.0, 0.5, -20.0), (90.0, 400.0, 0.2, 8.0)


class Photographs:
    """Smooth images of several sizes; coarse labels, some of them ignored."""

    name, split, class_names, ignore_index = "photographs", "train", tuple("abcde"), 255
    palette = ((0, 0, 0),) * 5
    sizes = ((40, 60), (60, 40), (33, 47), (40, 60), (150, 90))

    def __len__(self):
        return len(self.sizes)

    def image_name(self, index):
        return f"{index}"

    def read(self, index):
        generator = np.random.default_rng(index)
        height, width = self.sizes[index]
        image = cv2.resize(generator.integers(0, 256, (7, 9, 3)).astype(np.uint8), (width, height))
        coarse = generator.choice(np.array([0, 0, 0, 1, 2, 3, 4, 255], np.uint8), (4, 5))
        return Sample(image, cv2.resize(coarse, (width, height), interpolation=cv2.INTER_NEAREST))


class InBands:
    """Another data set with four float bands for its colours; a corner has no data."""

    def __init__(self, data):
        self.data = data

    def __getattr__(self, name):
        return getattr(self.data, name)

    def __len__(self):
        return len(self.data)

    def read(self, index):
        sample = self.data.read(index)
        values = sample.image[..., [0, 1, 2, 0]].astype(np.float32) / 64.0 - 2.0
        image = values * np.float32(STD) + np.float32(MEAN)
        image[:4, :7] = np.nan
        return Sample(image, sample.labels)


@pytest.fixture(scope="module")
def split():
    return load(Photographs(), CPU)


def draws(count=48, seed=3, first_step=0):
    return next(iter(DrawStream(Order(seed, 5), MicroBatches(count, start_step=first_step))))


def on_the_host(transform, count=48, seed=3):
    stream = TrainStream(Photographs(), transform, seed)
    return collate([stream[position] for position in range(count)])


@pytest.mark.parametrize("max_share", [1.0, 0.75, 0.4])
@pytest.mark.parametrize("scale", [None, (90, 50)])
@pytest.mark.parametrize("crop", [(24, 32), (64, 70), (130, 100)])
def test_crops_are_those_of_the_host(split, crop, scale, max_share):
    """The same labels pixel for pixel, and values that differ by no more than one byte."""
    transform = TrainTransform(crop, scale=scale, max_share=max_share, distort=False)
    ours, theirs = cut_crops(split, transform, draws()), on_the_host(transform)
    assert torch.equal(ours.labels, theirs.labels)
    assert torch.equal(ours.sizes, theirs.sizes)
    assert ours.images.dtype == theirs.images.dtype == torch.uint8
    assert (ours.images.int() - theirs.images.int()).abs().max() <= 1


def test_a_class_that_fills_a_crop_is_avoided_on_the_device_too(split):
    """And differently from any crop, so that the test above compares something."""
    labels = [cut_crops(split, TrainTransform((24, 32), max_share=share), draws()).labels for share in (1.0, 0.4)]
    assert not torch.equal(*labels)


def test_draws_are_a_function_of_seed_and_position():
    whole_batch, parts = draws(12), [draws(4, first_step=step) for step in range(3)]
    assert torch.equal(whole_batch.images, torch.cat([part.images for part in parts]))
    assert torch.equal(whole_batch.numbers, torch.cat([part.numbers for part in parts]))
    assert whole_batch.images.tolist() == list(map(Order(3, 5), range(12)))
    assert not torch.equal(whole_batch.numbers, draws(12, seed=4).numbers)
    assert np.array_equal(numbers_at(3, 7)[0], whole_batch.numbers[7].numpy())
    shares = [list(islice(DrawStream(Order(3, 5), MicroBatches(4, 1, rank, 2)), 3)) for rank in (0, 1)]
    pairs = [part.numbers for step in zip(*shares, strict=True) for part in step]
    assert torch.equal(torch.cat(pairs), whole_batch.numbers)


def colours(count):
    matrix, offset = _colours(torch.from_numpy(numbers_at(0, 0, count)))
    return lambda values: matrix.double() @ torch.tensor(values, dtype=torch.float64) + offset.double()


def test_colours_are_distorted_by_the_amounts_of_the_recipe():
    distorted = colours(4000)
    grey, red, black = distorted([100.0] * 3), distorted([200.0, 80.0, 60.0]), distorted([0.0] * 3)
    assert (grey - grey[:, :1]).abs().max() < 0.05  # hue and saturation leave grey alone
    assert grey.min() == pytest.approx((100 - 32) * 0.5, abs=6)
    assert grey.max() == pytest.approx((100 + 32) * 1.5, abs=6)
    assert ((grey[:, 0] - 100).abs() < 1e-3).double().mean() == pytest.approx(0.25, abs=0.03)
    contrast = (grey - black)[:, :1] / 100
    chroma = ((red - black) / contrast) @ torch.tensor(TO_YIQ, dtype=torch.float64).T
    before = np.array(TO_YIQ) @ [200.0, 80.0, 60.0]
    size = chroma[:, 1:].norm(dim=1) / np.hypot(*before[1:])
    turned = torch.atan2(chroma[:, 2], chroma[:, 1]) - np.arctan2(before[2], before[1])
    assert chroma[:, 0].sub(before[0]).abs().max() < 0.1
    assert (size.min().item(), size.max().item()) == pytest.approx((0.5, 1.5), abs=0.01)
    assert np.degrees([turned.min(), turned.max()]) == pytest.approx([-36, 36], abs=0.5)


def test_distorted_crops_have_the_same_labels_and_padding(split):
    transform = TrainTransform((64, 70))
    ours, theirs = cut_crops(split, transform, draws()), on_the_host(transform)
    assert torch.equal(ours.labels, theirs.labels)
    for image, (height, width) in zip(ours.images, ours.sizes.tolist(), strict=True):
        assert not image[:, height:].any()
        assert not image[:, :, width:].any()
    assert (ours.images.double() - theirs.images.double()).abs().mean() < 12  # hue and saturation on other axes


def test_images_of_one_size_are_validated_together():
    data = Photographs()
    found = load_pictures(ValidationPictures(data, whole, range(5)), 5, CPU)
    assert sorted(tuple(one.labels.shape) for one in found) == [(1, 33, 47), (1, 60, 40), (1, 150, 90), (2, 40, 60)]
    (pair,) = (one for one in found if len(one.labels) == 2)
    for place, index in enumerate((0, 3)):
        assert np.array_equal(pair.images[place].permute(1, 2, 0), data.read(index).image)
        assert np.array_equal(pair.labels[place], data.read(index).labels)


def test_the_size_of_a_split_is_known_before_it_is_read(split):
    assert estimate_bytes(Photographs()) == split.nbytes == sum(4 * h * w for h, w in Photographs.sizes)


def test_wrong_labels_are_found_when_data_are_loaded():
    data = Photographs()
    data.class_names = tuple("abc")
    with pytest.raises(ValueError, match=r"labels must be in \[0, 3\)"):
        load(data, CPU)


def losses(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_resident_run_is_that_of_the_workers(tmp_path, monkeypatch):
    """Images at their own size and colours, where device crops equal host crops to the last bit; resumed as well.

    Validated one by one, as workers' images are: convolutions of several images round differently.
    """
    monkeypatch.setattr(resident_images, "PICTURES", 1)
    transform = TrainTransform((32, 32), ratios=(1.0, 1.0), distort=False)

    def train(name, resident, steps=6, resume=False):
        loaders = small_loaders(transform=transform, resident=resident, accumulate=2, scored_train_images=4)
        task = small_task(steps=steps, schedule={"power": 0.0}, accumulate=2)
        run(tmp_path / name, task=task, loaders=loaders, resume=resume)

    train("workers", False)
    train("resident", True)
    train("resumed", True, steps=3)
    train("resumed", True, resume=True)
    expected = losses(tmp_path / "workers")
    assert {"val/oracle_mean_iou", "train/context_mean_iou", "loss/total"} <= expected[0].keys()
    for name in ("resident", "resumed"):
        found = losses(tmp_path / name)
        assert [row["loss/total"] for row in found] == [row["loss/total"] for row in expected]
        assert [row["val/mean_iou"] for row in found] == [row["val/mean_iou"] for row in expected]


@pytest.mark.gpu
def test_crops_on_a_gpu_are_those_on_the_host_and_wait_for_nothing(split):
    transform, drawn = TrainTransform((64, 70)), draws()
    here = cut_crops(split, transform, drawn)
    there, moved = load(Photographs(), torch.device("cuda")), Draws(*(one.cuda() for one in drawn))
    cut_crops(there, transform, moved)  # constants are sent once
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = cut_crops(there, transform, moved)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.labels.cpu(), here.labels)
    assert (found.images.cpu().int() - here.images.int()).abs().max() <= 1


@pytest.mark.gpu
def test_crops_of_bands_on_a_gpu_are_those_on_the_host():
    data, transform, drawn = InBands(Photographs()), TrainTransform((64, 70)), draws()
    here = cut_crops(load(data, CPU), transform, drawn)
    there = cut_crops(load(data, torch.device("cuda")), transform, Draws(*(one.cuda() for one in drawn)))
    assert torch.isnan(here.images).any()
    assert torch.equal(there.labels.cpu(), here.labels)
    torch.testing.assert_close(there.images.cpu(), here.images, rtol=1e-5, atol=1e-3, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("bands", [None, 4])
def test_recorded_steps_are_the_steps(bands, tmp_path, monkeypatch):
    """Without dropout, whose random numbers a recording draws alike; rounding grows from step to step."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = []
    for graph in (False, True):
        transform = TrainTransform((32, 32), ratios=(1.0, 1.0), distort=False)
        options = {"accelerator": "gpu", "graph": graph, "validate_every": 100, "save_every": 100}
        optimiser = {"name": "adamw", "rate": 1e-3, "clip": 1.0}
        data, chosen = [Stripes(), Stripes("val", 3)], {}
        if bands:
            data, chosen = [InBands(one) for one in data], {"mean": MEAN, "std": STD, "bands": bands}
        loaders = small_loaders(*data, transform=transform, resident=True)
        run(tmp_path / f"{graph}", 10, model=small_model(**chosen), loaders=loaders, optimiser=optimiser, **options)
        found.append([float(row["loss/total"]) for row in losses(tmp_path / f"{graph}") if row["loss/total"]])
    assert len(found[0]) == 10
    assert found[1] == pytest.approx(found[0], rel=1e-2)
