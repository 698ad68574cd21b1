"""Models of other libraries: their logits, and images of sizes that they do not take."""

import numpy as np
import pytest
import torch

import cacseg
from architectures import Refuses, build
from cacseg.engine.export.module import Description, InferenceModule, inference_copy
from cacseg.engine.foreign import find_logits, find_multiple

CPU = torch.device("cpu")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def test_logits_are_found_in_what_a_model_returns():
    logits = torch.zeros(1, 5, 4, 4)
    for output in (logits, {"out": logits, "aux": None}, {"logits": logits}, (logits, None)):
        assert find_logits(output) is logits
    for wrong in ({"masks": logits}, torch.zeros(1, 5), None):
        with pytest.raises(TypeError, match="logits"):
            find_logits(wrong)


def test_the_sizes_that_a_model_takes_are_found_by_trying():
    assert [find_multiple(Refuses(multiple), 3, CPU) for multiple in (1, 32, 64, 128)] == [
        (1, 4),
        (32, 4),
        (64, 4),
        (128, 4),
    ]
    with pytest.raises(ValueError, match="multiples of 32, 64 or 128"):
        find_multiple(Refuses(100), 3, CPU)


@pytest.mark.parametrize(("name", "multiple"), [("smp Unet", 1), ("smp FPN", 32), ("smp DeepLabV3Plus", 32)])
def test_the_predictor_shows_images_of_any_size_as_an_exported_file_does(name, multiple):
    """Padded where the model needs it: the mean colour below and to the right counts in the context."""
    model = cacseg.convert(build(name)).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (101, 150, 3), np.uint8)
    how = {"mean": MEAN, "std": STD, "class_names": list("abcde"), "device": "cpu", "precision": "fp32"}
    result = cacseg.Predictor(model, **how)(pixels)
    for classifier, mask in (("context", result.mask), ("plain", result.plain)):
        described = Description(
            5, None, None, MEAN, STD, None, True, "classes", "input", classifier, *[None] * 3, "fp32"
        )
        exported = InferenceModule(inference_copy(model), described, multiple)
        with torch.no_grad():
            classes = exported(torch.from_numpy(pixels.transpose(2, 0, 1)[None].copy()))[0]
        assert mask.shape == (101, 150)
        assert (mask == classes.numpy()).mean() > 0.999


def test_an_error_that_no_size_explains_stays_as_it_is():
    model, sizes = Refuses(1), []
    model.conv.register_forward_pre_hook(lambda _, given: sizes.append(tuple(given[0].shape)))
    model.forward = lambda images: model.conv(images) if images.shape[3] != 41 else images.view(-1, 7)
    predictor = cacseg.Predictor(model, mean=MEAN, std=STD, class_names=list("abcd"), device="cpu")
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        predictor(np.zeros((40, 41, 3), np.uint8))
    assert predictor(np.zeros((40, 43, 3), np.uint8)).mask.shape == (40, 43)
    assert sizes[-1] == (1, 3, 40, 43)  # not padded
