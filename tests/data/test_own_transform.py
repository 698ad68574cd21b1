"""Transforms of the user's own in place of ours."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from cacseg.data.own_transform import OwnTransform
from cacseg.data.sample import Sample

CROP = (24, 16)
NUMBERS = np.random.default_rng(0).random((20, 32))


def sample(size=(40, 48)):
    """Labels are what the image shows, so that one who moves only one of them is found."""
    labels = np.random.default_rng(1).integers(0, 3, size).astype(np.uint8)
    labels[0] = 255
    return Sample(np.where(labels == 255, 99, labels)[..., None].repeat(3, 2).astype(np.uint8), labels)


def check(transform, crop=CROP):
    """Image and labels stay together, all crops are reachable again, and no generator is touched."""
    own = OwnTransform(transform, crop, 3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    made = [own(sample(), numbers) for numbers in NUMBERS]
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])
    for crop_ in made:
        height, width = crop_.size
        assert crop_.image.shape == (3, *crop)
        assert crop_.image.dtype == crop_.labels.dtype == torch.uint8
        shown, labels = crop_.image[0, :height, :width], crop_.labels[:height, :width]
        assert torch.equal(shown == 99, labels == 255)
        assert torch.equal(shown[labels < 255], labels[labels < 255])
        assert bool((crop_.labels[height:] == 255).all())
        assert bool((crop_.labels[:, width:] == 255).all())
    again = [own(sample(), numbers) for numbers in reversed(NUMBERS)][::-1]
    assert all(torch.equal(one.image, two.image) for one, two in zip(made, again, strict=True))
    assert len({one.image.numpy().tobytes() for one in made}) > 10
    return own


def cut(image, mask, draw=np.random.randint):
    top, left = draw(0, 17), draw(0, 33)
    return image[top : top + 24, left : left + 16], mask[top : top + 24, left : left + 16]


@pytest.mark.parametrize(
    "draw",
    [np.random.randint, random.randrange, lambda low, high: int(torch.randint(low, high, ()))],
)
def test_a_function_of_arrays(draw):
    own = check(partial(cut, draw=draw))
    assert own.described == "functools.partial"
    assert OwnTransform(cut, CROP, 3).described.endswith("test_own_transform.cut")


@pytest.mark.parametrize(
    "give",
    [
        lambda image, mask: (torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(mask).long()),
        lambda image, mask: {"image": Image.fromarray(image), "mask": Image.fromarray(mask)},
        lambda image, mask: [image.transpose(2, 0, 1), mask[None]],
    ],
)
def test_results_of_every_kind(give):
    check(lambda image, mask: give(*(np.ascontiguousarray(one) for one in cut(image, mask))))


def test_what_is_smaller_is_padded_and_what_is_not_writable_stays():
    own = check(lambda image, mask: cut(image, mask), (32, 24))
    given = sample()
    assert own(given, NUMBERS[0]).size == (24, 16)
    assert np.array_equal(given.image, sample().image)


def test_torchvision_v2():
    v2, tv_tensors = pytest.importorskip("torchvision.transforms.v2"), pytest.importorskip("torchvision.tv_tensors")
    fill = {tv_tensors.Image: 0, tv_tensors.Mask: 255}
    own = check(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(CROP, pad_if_needed=True, fill=fill)]))
    assert own.described.startswith("torchvision.transforms.v2.")
    check(v2.RandomCrop(CROP))
    floats = v2.Compose([v2.RandomCrop(CROP), v2.ToDtype(torch.float32, scale=True)])
    with pytest.raises(TypeError, match=r"transform's result is a tensor of float32.*normalises"):
        OwnTransform(floats, CROP, 3)(sample(), NUMBERS[0])
    old = pytest.importorskip("torchvision.transforms")
    with pytest.raises(TypeError, match=r"Compose transforms an image without its mask.*v2"):
        OwnTransform(old.Compose([old.RandomCrop(CROP)]), CROP, 3)


def test_albumentations():
    library = pytest.importorskip("albumentations")
    own = check(library.Compose([library.HorizontalFlip(), library.RandomCrop(*CROP)]))
    assert own.described.startswith("albumentations.")
    check(library.RandomCrop(*CROP))
    floats = library.Compose([library.RandomCrop(*CROP), library.Normalize()])
    with pytest.raises(TypeError, match=r"array of float32.*normalises"):
        OwnTransform(floats, CROP, 3)(sample(), NUMBERS[0])
    drawn = library.Compose([library.RandomCrop(*CROP), library.RandomBrightnessContrast(p=1.0), library.Affine()])
    first, second = (OwnTransform(drawn, CROP, 3)(sample(), NUMBERS[0]).image for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("transform", "error", "words"),
    [
        (lambda image, mask: (image, mask), ValueError, r"data\.crop, 24x16 .* got 40x48.*RandomCrop"),
        (lambda image, mask: (image[:24, :16], mask), ValueError, r"one size; got 24x16 and 40x48"),
        (lambda image, mask: image, TypeError, "result is a ndarray"),
        (lambda image, mask: (image[:24, :16], mask[:24, :16] * 0 + 7), ValueError, "has 7 in 384 of 384"),
        (lambda image, mask: (image[:24, :16], mask[:24, :16] / 2), TypeError, "whole numbers"),
    ],
)
def test_what_a_transform_must_give(transform, error, words):
    with pytest.raises(error, match=words):
        OwnTransform(transform, CROP, 3)(sample(), NUMBERS[0])
    with pytest.raises(TypeError, match="is called with an image and its mask; got int"):
        OwnTransform(3, CROP, 3)
