"""Images and masks as Python programs hold them."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from cacseg.data.arrays import image_array, labels_of, mask_array
from cacseg.data.hold_out import hold_out
from cacseg.data.python import PythonData, split_in_two
from cacseg.data.sample import FaultyDataError, SegmentationData, read_sample

NAMES = ("grass", "road", "sky")
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
MASK = np.array([[0, 1, 2, 1, 0], [2, 2, 1, 255, 255], [0, 0, 0, 1, 2], [1, 1, 1, 1, 1]], np.uint8)


def palette_picture():
    picture = Image.fromarray(MASK)
    picture.putpalette([7, 8, 9] * 256)
    return picture


IMAGES = {
    "picture": Image.fromarray(PIXELS),
    "array": PIXELS,
    "planes": PIXELS.transpose(2, 0, 1),
    "tensor": torch.from_numpy(PIXELS).permute(2, 0, 1),
    "int64": PIXELS.astype(np.int64),
}
MASKS = {
    "picture": Image.fromarray(MASK),
    "palette": palette_picture(),
    "array": MASK.astype(np.int64),
    "tensor": torch.from_numpy(MASK)[None],
    "last": MASK[..., None],
    "uint16": MASK.astype(np.uint16),
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("mask", MASKS)
def test_every_kind_of_image_and_mask_reads_alike(image, mask):
    for sample in ((IMAGES[image], MASKS[mask]), {"img": IMAGES[image], "mask": MASKS[mask], "label": 3}):
        data = PythonData([sample], "train", NAMES)
        read = read_sample(data, 0)
        assert read.image.dtype == read.labels.dtype == np.uint8
        assert np.array_equal(read.image, PIXELS)
        assert np.array_equal(read.labels, MASK)


def test_three_rows_of_three_pixels_are_told_apart_by_their_kind():
    square = PIXELS[:3, :3]
    assert np.array_equal(image_array(square, "it"), square)
    assert np.array_equal(image_array(torch.from_numpy(square).permute(2, 0, 1), "it"), square)


@pytest.mark.parametrize("ignored", [-1, -100, 254, 65535])
def test_any_number_may_mark_ignored_pixels(ignored):
    mask = np.where(MASK == 255, ignored, MASK.astype(np.int64))
    assert np.array_equal(labels_of(mask, 3, ignored, "it"), MASK)
    with pytest.raises(ValueError, match=rf"classes 0 to 2, and {ignored} .* has 255 in 2 of 20"):
        labels_of(MASK, 3, ignored, "it")


def test_grey_and_transparent_pictures_are_images():
    grey = image_array(Image.fromarray(MASK), "it")
    assert np.array_equal(grey, MASK[..., None].repeat(3, 2))
    assert image_array(Image.new("RGBA", (4, 2)), "it").shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (PIXELS / 255.0, TypeError, r"train\[7\] is an array of float64.*normalises"),
        (torch.rand(3, 4, 4), TypeError, r"a tensor of float32"),
        (PIXELS.astype(np.int64) + 300, ValueError, "0 to 255; .* an array of 3"),
        (PIXELS[:2, :, :2], ValueError, r"shape \(2, 5, 2\)"),
        (MASK, ValueError, r"shape \(4, 5\)"),
        (PIXELS.tolist(), TypeError, r"is a list.*with_format"),
        ("a.jpg", TypeError, "is a str"),
    ],
)
def test_what_is_no_image(value, error, words):
    with pytest.raises(error, match=words):
        image_array(value, "train[7]")


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (MASK / 1.0, TypeError, r"train\[7\] is an array of float64"),
        (Image.fromarray(PIXELS), TypeError, "mode RGB.*colours"),
        (PIXELS, ValueError, r"shape \(4, 5, 3\)"),
        (None, TypeError, "is a NoneType"),
    ],
)
def test_what_is_no_mask(value, error, words):
    with pytest.raises(error, match=words):
        mask_array(value, "train[7]")


def test_what_is_wrong_with_a_sample_is_said_with_its_place():
    def read(*samples, **options):
        return read_sample(PythonData(samples, "val", NAMES, **options), len(samples) - 1)

    with pytest.raises(FaultyDataError, match=r"val\[1\].* has 9, 10 in 2 of 20"):
        read((PIXELS, MASK), (PIXELS, np.where(MASK == 255, [8, 8, 8, 9, 10], MASK)))
    with pytest.raises(FaultyDataError, match=r"val\[0\] is 5x4 and its mask 4x5.*rotation"):
        read((PIXELS, MASK.T))
    with pytest.raises(TypeError, match=r"val\[0\] is a tuple of 3"):
        read((PIXELS, MASK, 1))
    with pytest.raises(ValueError, match=r"val\[0\] has image, map.*rename_column"):
        read({"image": PIXELS, "map": MASK})


def test_what_is_no_data():
    def refused(error, words, samples=((PIXELS, MASK),), classes=NAMES, **options):
        with pytest.raises(error, match=words):
            PythonData(samples, "train", classes, **options)

    refused(TypeError, "a length and an index; got generator", samples=(one for one in ()))
    refused(ValueError, "ignore_index must be no class; 1 is 'road'", ignored=1)
    refused(ValueError, "got 3 names and 2 colours", palette=[(1, 2, 3)] * 2)
    refused(ValueError, "got 1 names", classes=["one"])
    refused(ValueError, "got 2, 1 of them different, for 1 images", names=["a", "a"])


def test_splits_of_a_dict_and_parts_by_names():
    assert split_in_two({"train": [1], "validation": [2], "test": [3]}) == ([1], [2])
    assert split_in_two({"train": [1]}) == ([1], None)
    assert split_in_two([1]) == ([1], None)
    with pytest.raises(ValueError, match="needs 'train'; got test"):
        split_in_two({"test": [1]})
    with pytest.raises(ValueError, match=r"save_to_disk wrote.*open_data"):
        split_in_two("nowhere")
    names = [f"video{k // 4}_{k}" for k in range(40)]
    data = PythonData([(PIXELS, MASK)] * 40, "train", NAMES, names=names)
    assert isinstance(data, SegmentationData)
    train, val = hold_out(data, 0.3, "^(.*)_")
    kept, held = ({part.image_name(k) for k in range(len(part))} for part in (train, val))
    assert kept | held == set(names)
    assert not {name[:6] for name in kept} & {name[:6] for name in held}
    assert (val.split, val.class_names) == ("val", NAMES)
    assert np.array_equal(pickle.loads(pickle.dumps(val)).read(0).labels, MASK)


@pytest.fixture(scope="module")
def hugging_face():
    return pytest.importorskip("datasets")


def test_columns_of_hugging_face_are_found_and_others_left_alone(hugging_face, tmp_path):
    pictures = {"image": [Image.fromarray(PIXELS)] * 2, "annotation": [Image.fromarray(MASK)] * 2, "scene": ["a", "b"]}
    dataset = hugging_face.Dataset.from_dict(pictures)
    hugging_face.disable_progress_bars()
    hugging_face.DatasetDict(train=dataset, validation=dataset.select([0])).save_to_disk(tmp_path / "both")
    dataset.save_to_disk(tmp_path / "one")
    assert split_in_two(tmp_path / "one")[1] is None
    for one in (dataset, dataset.with_format("numpy"), *split_in_two(tmp_path / "both")):
        data = pickle.loads(pickle.dumps(PythonData(one, "train", NAMES)))
        assert data.samples.column_names == ["image", "annotation"]
        assert np.array_equal(read_sample(data, 0).image, PIXELS)
        assert np.array_equal(read_sample(data, 0).labels, MASK)
    assert len(data) == 1
    arrays = hugging_face.Dataset.from_dict({"image": [PIXELS.tolist()], "mask": [MASK.tolist()]})
    assert np.array_equal(PythonData(arrays.with_format("torch"), "train", NAMES).read(0).image, PIXELS)
    with pytest.raises(TypeError, match="with_format"):
        PythonData(arrays, "train", NAMES).read(0)
    with pytest.raises(TypeError, match="a length and an index; got IterableDataset"):
        PythonData(dataset.to_iterable_dataset(), "train", NAMES)
    with pytest.raises(ValueError, match="the data has image, scene"):
        PythonData(dataset.remove_columns("annotation"), "train", NAMES)
