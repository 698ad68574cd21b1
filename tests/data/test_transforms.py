"""The transforms against plain implementations of the recipe, step by step."""

import cv2
import numpy as np
import pytest
import torch

from cacseg.data import Sample, TestTransform, TrainTransform, normalise
from cacseg.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    distorted,
    keep_ratio,
    largest_share,
    nearest_indices,
    resized_window,
)


def _sample(seed=0, size=(96, 130), classes=5):
    generator = np.random.default_rng(seed)
    image = cv2.resize(generator.integers(0, 256, (7, 9, 3), dtype=np.uint8), size[::-1])
    image = np.clip(image.astype(int) + generator.integers(-20, 21, image.shape), 0, 255).astype(np.uint8)
    coarse = generator.choice(np.array([*range(classes), 255], np.uint8), (6, 8))
    return Sample(image, cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_NEAREST))


def numbers(seed):
    return np.random.default_rng(seed).random(32)


def _naive_distortion(image, numbers):
    """One step after the other on floats."""
    coins = numbers[22:26] < 0.5
    brightness, contrast, saturation = -32.0 + 64.0 * numbers[26], 0.5 + numbers[27], 0.5 + numbers[28]
    hue = np.floor(36 * numbers[29]) - 18
    contrast_first = numbers[30] < 0.5

    def cut(values):
        return np.clip(values, 0, 255).astype(np.uint8)

    if coins[0]:
        image = cut(image.astype(np.float64) + brightness)
    if coins[1] and contrast_first:
        image = cut(image.astype(np.float64) * contrast)
    if coins[2] or coins[3]:
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV).astype(np.float64)
        if coins[2]:
            hsv[..., 1] = cut(hsv[..., 1] * saturation)
        if coins[3]:
            hsv[..., 0] = (hsv[..., 0] + hue) % 180
        image = cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2RGB)
    if coins[1] and not contrast_first:
        image = cut(image.astype(np.float64) * contrast)
    return image


def _naive(sample, numbers, crop, scale, ratios, max_share, flip, distort, ignore=255):
    """Resize everything, then cut, flip, distort and pad."""
    ratio = ratios[0] + (ratios[1] - ratios[0]) * numbers[0]
    height, width = sample.labels.shape
    if scale is None:
        new = int(height * ratio + 0.5), int(width * ratio + 0.5)
    else:
        long, short = int(scale[0] * ratio), int(scale[1] * ratio)
        factor = min(long / max(height, width), short / min(height, width))
        new = int(height * factor + 0.5), int(width * factor + 0.5)
    image = cv2.resize(sample.image, new[::-1], interpolation=cv2.INTER_LINEAR)
    labels = cv2.resize(sample.labels, new[::-1], interpolation=cv2.INTER_NEAREST)
    for place in range(10):
        top = int(numbers[1 + 2 * place] * (max(new[0] - crop[0], 0) + 1))
        left = int(numbers[2 + 2 * place] * (max(new[1] - crop[1], 0) + 1))
        window = labels[top : top + crop[0], left : left + crop[1]]
        down, across = (int(np.ceil(length / 64)) for length in window.shape)
        looked_at = window[::down, ::across]
        found, counts = np.unique(looked_at[looked_at != ignore], return_counts=True)
        if len(found) and counts.max() / counts.sum() < max_share:
            break
    image = image[top : top + crop[0], left : left + crop[1]]
    if numbers[21] < flip:
        image, window = image[:, ::-1], window[:, ::-1]
    if distort:
        image = _naive_distortion(np.ascontiguousarray(image), numbers)
    size = window.shape
    padding = (0, crop[0] - size[0]), (0, crop[1] - size[1])
    return np.pad(image, (*padding, (0, 0))), np.pad(window, padding, constant_values=ignore), size


@pytest.mark.parametrize("scale", [None, (260, 96), (128, 128)])
@pytest.mark.parametrize("crop", [(64, 64), (48, 96), (200, 300)])
def test_training_crops_equal_a_plain_implementation(scale, crop):
    options = {"ratios": (0.5, 2.0), "max_share": 0.75, "flip": 0.5, "distort": True}
    transform = TrainTransform(crop, scale)
    for seed in range(30):
        sample = _sample(seed)
        ours = transform(sample, numbers((7, seed)))
        image, labels, size = _naive(sample, numbers((7, seed)), crop, scale, **options)
        np.testing.assert_array_equal(ours.image.numpy(), image.transpose(2, 0, 1))
        np.testing.assert_array_equal(ours.labels.numpy(), labels)
        assert ours.size == size
        assert ours.image.dtype == ours.labels.dtype == torch.uint8
        assert ours.image.is_contiguous()


def test_equal_seeds_give_equal_crops_and_others_do_not():
    sample, transform = _sample(), TrainTransform((64, 64))
    first, again, other = (transform(sample, numbers(seed)) for seed in (3, 3, 4))
    assert torch.equal(first.image, again.image)
    assert torch.equal(first.labels, again.labels)
    assert first.size == again.size
    assert not torch.equal(first.image, other.image)


def test_the_sample_is_left_as_it_was():
    sample = _sample()
    before = sample.image.copy(), sample.labels.copy()
    for seed in range(20):
        crop = TrainTransform((64, 64), ratios=(1.0, 1.0))(sample, numbers(seed))
        crop.image.fill_(0)
        crop.labels.fill_(0)
    TestTransform()(sample.image).fill_(0)
    np.testing.assert_array_equal(sample.image, before[0])
    np.testing.assert_array_equal(sample.labels, before[1])


def test_a_part_resized_is_the_part_of_the_whole_resized():
    generator = np.random.default_rng(0)
    for _ in range(150):
        height, width, new_height, new_width = (int(value) for value in generator.integers(2, 300, 4))
        image = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        window = int(generator.integers(1, new_height + 1)), int(generator.integers(1, new_width + 1))
        top = int(generator.integers(new_height - window[0] + 1))
        left = int(generator.integers(new_width - window[1] + 1))
        whole = cv2.resize(image, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
        part = resized_window(image, (new_height, new_width), (top, left), window)
        np.testing.assert_array_equal(part, whole[top : top + window[0], left : left + window[1]])


def test_labels_are_resized_as_opencv_does():
    generator = np.random.default_rng(1)
    for _ in range(150):
        height, width, new_height, new_width = (int(value) for value in generator.integers(1, 400, 4))
        labels = generator.integers(0, 256, (height, width), dtype=np.uint8)
        expected = cv2.resize(labels, (new_width, new_height), interpolation=cv2.INTER_NEAREST)
        ours = labels[nearest_indices(height, new_height)][:, nearest_indices(width, new_width)]
        np.testing.assert_array_equal(ours, expected)


def test_sizes_of_the_recipe():
    assert keep_ratio(512, 683, (2048, 512)) == (512, 683)
    assert keep_ratio(375, 500, (2048, 512)) == (512, 683)
    assert keep_ratio(100, 1000, (2048, 512)) == (205, 2048)
    assert keep_ratio(1024, 2048, (4096, 2048)) == (2048, 4096)
    assert keep_ratio(375, 500, (520, 520)) == (390, 520)
    assert keep_ratio(1, 1000, (100, 50)) == (1, 100)


def test_no_class_fills_a_crop_where_another_window_can_be_had():
    labels = np.zeros((200, 200), np.uint8)
    labels[:, 100:] = 1
    sample = Sample(np.zeros((200, 200, 3), np.uint8), labels)

    def filled(max_share):
        transform = TrainTransform((40, 40), ratios=(1.0, 1.0), max_share=max_share, distort=False)
        crops = [transform(sample, numbers(seed)) for seed in range(200)]
        return sum(largest_share(crop.labels.numpy(), 255) >= 0.75 for crop in crops)

    assert filled(1.0) > 150  # a window holds both classes to more than a quarter in one of eight
    assert filled(0.75) < 80
    assert largest_share(np.full((4, 4), 255, np.uint8), 255) == 1.0
    assert largest_share(np.array([[0, 0, 1, 255]], np.uint8), 255) == 2 / 3


def test_distortion_stays_within_its_limits():
    """Grey has no hue: only brightness and contrast can move it, by 32 and by half."""
    grey = np.full((4, 4, 3), 128, np.uint8)
    values = np.array([distorted(grey, numbers(seed))[0, 0, 0] for seed in range(1000)], int)
    assert values.min() >= (128 - 32) // 2
    assert values.max() <= (128 + 32) * 1.5
    assert values.std() > 10
    assert (values == 128).mean() == pytest.approx(0.25, abs=0.04)  # neither of the two


def test_test_images_keep_their_proportion():
    image = _sample().image
    planes = TestTransform((2048, 48))(image)
    np.testing.assert_array_equal(planes.numpy(), cv2.resize(image, (65, 48)).transpose(2, 0, 1))
    np.testing.assert_array_equal(TestTransform()(image).numpy(), image.transpose(2, 0, 1))


def test_normalised_images_are_zero_beyond_their_size():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 8, 10), dtype=np.uint8))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    expected = (images / 255 - mean) / std
    torch.testing.assert_close(normalise(images, IMAGENET_MEAN, IMAGENET_STD), expected, rtol=0, atol=2e-6)
    sizes = [(8, 10), (5, 10), (3, 1)]
    ours = normalise(images, IMAGENET_MEAN, IMAGENET_STD, torch.tensor(sizes))
    for one, reference, (height, width) in zip(ours, expected, sizes, strict=True):
        torch.testing.assert_close(one[:, :height, :width], reference[:, :height, :width], rtol=0, atol=2e-6)
        assert not one[:, height:].any()
        assert not one[:, :, width:].any()
    assert ours.dtype == torch.float32


@pytest.mark.gpu
def test_images_are_normalised_where_they_are():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 8, 10), dtype=np.uint8))
    sizes = torch.tensor([(8, 10), (5, 7)])
    ours = normalise(images.cuda(), sizes=sizes.cuda())
    assert ours.is_cuda
    torch.testing.assert_close(ours.cpu(), normalise(images, sizes=sizes), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": (0, 4)}, "crop must be a height and a width"),
        ({"crop": (4, 4), "scale": (0, 3)}, "scale must be two lengths"),
        ({"crop": (4, 4), "ratios": (2.0, 0.5)}, "ratios must be a smaller and a larger"),
        ({"crop": (4, 4), "max_share": 0.0}, r"max_share must be in \(0, 1\]"),
        ({"crop": (4, 4), "flip": 1.5}, r"flip must be in \[0, 1\]"),
        ({"crop": (4, 4), "ignore_index": -1}, r"ignore_index must be in \[0, 255\]"),
    ],
)
def test_refused_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        TrainTransform(**options)


def test_normalise_refuses_other_tensors():
    with pytest.raises(TypeError, match=r"must be uint8, .*\[b, 3, h, w\]; got torch.float64"):
        normalise(torch.zeros(1, 3, 4, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"sizes must be \[b, 2\]"):
        normalise(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), sizes=torch.zeros(1, 2, dtype=torch.long))
