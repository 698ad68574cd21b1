"""Labels of a converted model: their size is that of the images, whatever the model makes of these."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cacseg
from architectures import N, build, tiny


def draw(size, label_size=None, b=2):
    return torch.randn(b, 3, *size), torch.randint(0, N, (b, *(label_size or size)))


class Coarse(nn.Module):
    """Features so coarse that 128x160 and 160x128 look alike in them."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 32, stride=32), nn.Conv2d(8, N, 1)

    def forward(self, images):
        return self.head(self.stem(images))


@pytest.mark.parametrize("make", [tiny, lambda: cacseg.convert(Coarse())])
def test_transposed_labels_are_refused(make):
    model = make()
    words = r"labels must have the proportions of (images|features).*labels 160x128 and .* (128x160|64x80).*labels\.mT"
    with pytest.raises(ValueError, match=words):
        model.loss(*draw((128, 160), (160, 128)))
    assert model.loss(*draw((128, 160)))["total"].isfinite()


def test_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"proportions of images.*labels 120x96 and images 128x96.*Resize labels"):
        cacseg.convert(Coarse()).loss(*draw((128, 96), (120, 96)))


@pytest.mark.parametrize("size", [(64, 80), (32, 40), (33, 41), (256, 320), (8, 10)])
def test_labels_of_another_resolution(size):
    assert tiny().loss(*draw((128, 160), size))["total"].isfinite()


@pytest.mark.parametrize("compiler", [None, "eager"])
def test_a_model_that_cuts_its_borders_off(compiler):
    """A U-Net without padding: labels have the size of what it returns."""

    class Valid(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, 8, 41), nn.Conv2d(8, N, 1)

        def forward(self, images):
            return self.head(self.stem(images))

    model = cacseg.convert(Valid())
    run = torch.compile(model, backend=compiler) if compiler else model
    assert run(*draw((60, 100), (20, 60)))["total"].isfinite()
    with pytest.raises(ValueError, match="must have the proportions of"):
        model.loss(*draw((60, 100), (60, 20)))


def test_a_model_that_pads():
    class Padded(Coarse):
        def forward(self, images):
            rows, columns = images.shape[2:]
            return super().forward(F.pad(images, (0, -columns % 32, 0, -rows % 32)))

    assert cacseg.convert(Padded()).loss(*draw((100, 70)))["total"].isfinite()


def test_images_with_channels_last():
    class Last(Coarse):
        def forward(self, images):
            return super().forward(images.movedim(-1, 1))

    images, labels = draw((64, 96))
    model = cacseg.convert(Last(), seam="head")
    assert model.loss(images.movedim(1, -1), labels)["total"].isfinite()


def test_one_hot_labels():
    images, labels = draw((64, 64))
    with pytest.raises(ValueError, match=r"got shape \(2, 5, 64, 64\)\. Of one-hot labels: labels\.argmax\(1\)"):
        tiny().loss(images, F.one_hot(labels, N).movedim(-1, 1))
    with pytest.raises(ValueError, match=r"got shape \(2, 1, 64, 64\)\. Drop the channel: labels\[:, 0\]"):
        tiny().loss(images, labels[:, None])


def test_inputs_by_their_names():
    model = cacseg.convert(build("transformers Segformer"))
    with pytest.raises(ValueError, match="They fit transposed"):
        model.loss(pixel_values=torch.randn(2, 3, 64, 96), labels=torch.zeros(2, 96, 64, dtype=torch.long))
