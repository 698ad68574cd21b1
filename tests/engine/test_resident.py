"""Data on the device: loaded whole, cropped as the transform on the host crops."""

import cv2
import numpy as np
import pytest
import torch

from cacseg.data import Sample, TrainTransform, normalise
from cacseg.data.transforms import IMAGENET_MEAN, IMAGENET_STD, nearest_indices, resized_window
from cacseg.engine.resident import load_resident
from cacseg.engine.resident_crops import TO_YIQ, Crops, cut_crops, draw_crops
from cacseg.engine.stream import index_at

CPU = torch.device("cpu")


class Photographs:
    """Smooth images of several sizes, with ignored pixels."""

    name, split, class_names, ignore_index = "photographs", "train", tuple("abcde"), 255
    palette = ((0, 0, 0),) * 5
    sizes = ((40, 60), (60, 40), (33, 47), (40, 60))

    def __len__(self):
        return len(self.sizes)

    def image_name(self, index):
        return f"{index}"

    def read(self, index):
        generator = np.random.default_rng(index)
        height, width = self.sizes[index]
        image = cv2.resize(generator.integers(0, 256, (7, 9, 3)).astype(np.uint8), (width, height))
        labels = generator.integers(0, 6, (height, width)).astype(np.uint8)
        labels[labels == 5] = 255
        return Sample(image, labels)


@pytest.fixture(scope="module")
def split():
    return load_resident(Photographs(), range(4), CPU)


def draw(split, transform, seed=3, count=24):
    return draw_crops(transform, split, seed, count, IMAGENET_MEAN, IMAGENET_STD)


def on_the_host(crops, place, transform):
    """The same crop by the functions that `TrainTransform` is made of."""
    sample = Photographs().read(int(crops.image[place]))
    size = tuple(np.round(crops.length[place].numpy() / crops.step[place].numpy()).astype(int).tolist())
    (top, left), (height, width) = crops.corner[place].tolist(), crops.window[place].tolist()
    rows, columns = (nearest_indices(old, new) for old, new in zip(sample.labels.shape, size, strict=True))
    labels = sample.labels[rows[top : top + height]][:, columns[left : left + width]]
    image = resized_window(sample.image, size, (top, left), (height, width))
    if crops.flip[place]:
        image, labels = image[:, ::-1], labels[:, ::-1]
    padded = np.zeros((3, *transform.crop), np.uint8)
    padded[:, :height, :width] = image.transpose(2, 0, 1)
    whole = np.full(transform.crop, 255)
    whole[:height, :width] = labels
    return normalise(torch.from_numpy(padded)[None], sizes=crops.window[place][None])[0], torch.from_numpy(whole)


@pytest.mark.parametrize("scale", [None, (90, 50)])
@pytest.mark.parametrize("crop", [(24, 32), (64, 70)])
def test_crops_are_those_of_the_host(split, crop, scale):
    transform = TrainTransform(crop, scale=scale, max_share=1.0, distort=False)
    crops = draw(split, transform)
    images, labels = cut_crops(split, crops, crop)
    assert images.shape == (24, 3, *crop)
    assert labels.dtype == torch.int64
    assert 0 < crops.flip.sum() < 24
    for place in range(24):
        image, expected = on_the_host(crops, place, transform)
        assert torch.equal(labels[place], expected)
        assert (images[place] - image).abs().max() < 1.01 / 255 / min(IMAGENET_STD)  # one byte


def test_sizes_are_rounded_as_the_transform_rounds_them(split):
    for scale in (None, (90, 50)):
        transform = TrainTransform((8, 8), scale=scale, max_share=1.0)
        crops = draw(split, transform, count=200)
        numbers = np.random.default_rng([3, 2]).random((200, 12))

        class Given:
            def __init__(self, value):
                self.random = lambda: value

        for place in range(200):
            sample = Photographs().read(int(crops.image[place]))
            size = np.array(transform._size(sample, Given(numbers[place, 0])))
            np.testing.assert_allclose(crops.step[place].numpy(), 1.0 / (size / np.array(sample.labels.shape)))


def test_crops_are_a_function_of_seed_and_position(split):
    transform = TrainTransform((16, 16), max_share=1.0)
    short, long, other = draw(split, transform), draw(split, transform, count=100), draw(split, transform, seed=4)
    for one, two in zip(short, long.at(torch.arange(24)), strict=True):
        assert torch.equal(one, two)
    assert short.image.tolist() == [index_at(3, position, 4) for position in range(24)]
    assert not torch.equal(short.corner, other.corner)


def test_corners_reach_every_place(split):
    crops = draw(split, TrainTransform((30, 38), ratios=(1.0, 1.0), max_share=1.0), count=2000)
    smallest = crops.length[:, 0] == 33
    assert set(crops.corner[smallest, 0].tolist()) == {0, 1, 2, 3}
    assert set(crops.corner[smallest, 1].tolist()) == set(range(10))


def colour_of(crops: Crops, place, byte):
    normal = crops.colour[place, :, :3] @ torch.tensor(byte) + crops.colour[place, :, 3]
    return (normal * torch.tensor(IMAGENET_STD) + torch.tensor(IMAGENET_MEAN)) * 255


def test_colours_are_distorted_by_the_amounts_of_the_recipe(split):
    crops = draw(split, TrainTransform((8, 8), max_share=1.0), count=4000)
    grey = torch.stack([colour_of(crops, place, [100.0, 100.0, 100.0]) for place in range(4000)])
    assert (grey - grey[:, :1]).abs().max() < 0.05  # hue and saturation leave grey alone
    assert grey.min() == pytest.approx((100 - 32) * 0.5, abs=6)
    assert grey.max() == pytest.approx((100 + 32) * 1.5, abs=6)
    untouched = ((grey[:, 0] - 100).abs() < 1e-3).float().mean()
    assert untouched == pytest.approx(0.25, abs=0.03)
    red = torch.stack([colour_of(crops, place, [200.0, 80.0, 60.0]) for place in range(4000)]).double()
    black = torch.stack([colour_of(crops, place, [0.0, 0.0, 0.0]) for place in range(4000)]).double()
    contrast = (grey.double() - black)[:, :1] / 100
    chroma = ((red - black) / contrast) @ torch.from_numpy(TO_YIQ).T
    before = TO_YIQ @ [200.0, 80.0, 60.0]
    size = chroma[:, 1:].norm(dim=1) / np.hypot(*before[1:])
    turned = torch.atan2(chroma[:, 2], chroma[:, 1]) - np.arctan2(before[2], before[1])
    assert chroma[:, 0].sub(before[0]).abs().max() < 0.1
    assert (size.min().item(), size.max().item()) == pytest.approx((0.5, 1.5), abs=0.01)
    assert np.degrees([turned.min(), turned.max()]) == pytest.approx([-36, 36], abs=0.5)


def test_colours_stay_within_bytes(split):
    transform = TrainTransform((24, 32), max_share=1.0)
    crops = draw(split, transform, count=64)
    images, _ = cut_crops(split, crops, transform.crop)
    mean, std = (torch.tensor(one)[:, None, None] for one in (IMAGENET_MEAN, IMAGENET_STD))
    bytes_ = (images * std + mean) * 255
    assert bytes_.min() > -0.01
    assert bytes_.max() < 255.01


def test_crops_that_look_at_labels_are_refused(split):
    with pytest.raises(ValueError, match=r"max_share must be 1; got 0\.75"):
        draw(split, TrainTransform((8, 8)))


def test_images_of_one_size_come_together(split):
    batches = list(split.batches_by_size(1))
    assert [tuple(labels.shape) for _, labels in batches] == [(1, 33, 47), (1, 40, 60), (1, 40, 60), (1, 60, 40)]
    (_, (images, labels), _) = split.batches_by_size(16)
    for place, index in enumerate((0, 3)):
        sample = Photographs().read(index)
        assert np.array_equal(images[place].permute(1, 2, 0), sample.image)
        assert np.array_equal(labels[place], sample.labels)


def test_wrong_labels_are_found_when_data_are_loaded():
    data = Photographs()
    data.class_names = tuple("abc")
    with pytest.raises(ValueError, match=r"labels must be in \[0, 3\)"):
        load_resident(data, range(4), CPU)
    with pytest.raises(ValueError, match="none of 'train' of photographs was chosen"):
        load_resident(data, [], CPU)


@pytest.mark.gpu
def test_crops_on_a_gpu_are_those_on_the_host_and_wait_for_nothing(split):
    transform = TrainTransform((24, 32), max_share=1.0)
    images, labels = cut_crops(split, draw(split, transform), transform.crop)
    there = load_resident(Photographs(), range(4), torch.device("cuda"))
    crops = draw(there, transform)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, found_labels = cut_crops(there, crops.at(torch.arange(24, device=there.images.device)), transform.crop)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found_labels.cpu(), labels)
    assert (found.cpu() - images).abs().max() < 2e-3
