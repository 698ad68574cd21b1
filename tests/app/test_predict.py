import numpy as np
import pytest
import torch
from torch.nn import functional as F

import bad_files as bad
from app_server import bad_uploads, encode, noise, predictor
from cacseg.app import predict as module
from cacseg.app.predict import read_image, shrink
from cacseg.data.transforms import normalise
from cacseg.engine.inference import Inference, collate, networks_of, predict_each, segment, view_image
from cacseg.models import create_model
from cacseg.runtime.decode import decode_image

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("inference", "scale"),
    [(Inference(), None), (Inference(), (96, 64)), (Inference((24, 32), (16, 20)), None)],
    ids=["whole", "scaled", "windows"],
)
def test_masks_and_maps_are_those_of_predict(inference, scale):
    one = predictor(inference=inference, scale=scale)
    image = noise()
    found = one.predict(image)
    own = segment(one.model, image, inference=inference, scale=scale, device=CPU)
    assert np.array_equal(found.answers["context"].mask, own)
    shown = collate([view_image(image, scale, (1.0,))], one.model, CPU)
    plain = next(predict_each(networks_of(one.model, ["plain"]), shown, image.shape[:2], inference))[0]
    assert np.array_equal(found.answers["plain"].mask, plain.argmax(0).numpy())
    classes, confidence, entropy = found.answers["plain"].layers
    assert np.array_equal(classes, found.answers["plain"].mask)
    probabilities = plain.softmax(0).double().numpy()
    assert np.abs(confidence - 255 * probabilities.max(0)).max() <= 0.51
    spread = -(probabilities * np.log(probabilities)).sum(0) / np.log(3)
    assert np.abs(entropy - 255 * spread).max() <= 0.51
    assert found.shown is image


def test_how_far_the_rows_moved():
    one = predictor()
    image = noise()
    model = one.model
    pixels = normalise(torch.from_numpy(image).permute(2, 0, 1)[None], model.mean, model.std)
    with torch.no_grad():
        features = model.features(pixels)[0].flatten(1)  # [d, hw]
        weight = model.classifier.weight.flatten(1)
        shares = (weight @ features + model.classifier.bias[:, None]).softmax(0)
        prototypes = (shares @ features.T) / shares.sum(1, keepdim=True)
        rows = model.classifier.context_projector(torch.cat([prototypes, weight], 1))
        expected = [1 - float(a @ b / a.norm() / b.norm()) for a, b in zip(rows, weight, strict=True)]
    assert one.predict(image).moved == pytest.approx(expected, abs=1e-5)


def test_rows_that_start_where_the_plain_ones_are_have_not_moved():
    one = predictor(create_model("fcn", 3, backbone="test_resnet", head_channels=16, preset="tuned"))
    assert one.predict(noise()).moved == pytest.approx([0.0] * 3, abs=1e-6)


@pytest.mark.parametrize("arguments", [dict(classifier="plain"), dict(classifier_arguments={"context_design": "none"})])
def test_a_model_that_does_not_adapt_has_one_answer(arguments):
    one = predictor(create_model("fcn", 3, backbone="test_resnet", head_channels=16, **arguments))
    found = one.predict(noise())
    assert one.outputs == list(found.answers) == ["plain"]
    assert found.moved is None


def test_a_large_image_is_predicted_small_and_answered_at_its_own_size(monkeypatch):
    """The mask is the argmax of the interpolated scores, among the classes of the small mask."""
    monkeypatch.setattr(module, "SHOWN_PIXELS", 2000)
    one = predictor()
    image = noise(130, 170)
    found = one.predict(image)
    small = shrink(image, 2000)
    assert found.shown.shape == small.shape == (39, 51, 3)
    for name, answer in found.answers.items():
        shown = collate([view_image(small, None, (1.0,))], one.model, CPU)
        scores = next(predict_each(networks_of(one.model, [name]), shown, small.shape[:2]))
        assert np.array_equal(answer.layers[0], scores[0].argmax(0).numpy())
        large = F.interpolate(scores, size=(130, 170), mode="bilinear", align_corners=False)[0]
        absent = sorted(set(range(3)) - set(np.unique(answer.layers[0]).tolist()))
        large[absent] = -torch.inf
        assert np.array_equal(answer.mask, large.argmax(0).numpy())


def test_a_photograph_of_24_megapixels(monkeypatch):
    monkeypatch.setattr(module, "SHOWN_PIXELS", 2**18)
    found = predictor().predict(np.tile(noise(400, 600), (10, 10, 1)))
    assert found.answers["context"].mask.shape == found.answers["plain"].mask.shape == (4000, 6000)
    height, width = found.shown.shape[:2]
    assert 0.99 * module.SHOWN_PIXELS < height * width <= module.SHOWN_PIXELS


def test_what_does_not_fit_into_memory_is_said(monkeypatch):
    one = predictor()

    def full(images):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(one.model, "features", full)
    with pytest.raises(ValueError, match=r"48x40 did not fit into the memory of cpu.*--device"):
        one.predict(noise())


def test_good_images_are_read():
    image = noise()
    assert np.array_equal(read_image(encode(image), "a.png"), image)
    jpeg = encode(image, "JPEG")
    assert np.array_equal(read_image(jpeg, "a.jpg"), decode_image(jpeg, "a.jpg"))


@pytest.mark.parametrize(("name", "content", "word"), [*bad_uploads(), ("none.png", b"", "empty")])
def test_bad_images_are_refused(name, content, word):
    with pytest.raises(OSError, match=rf"{name}.*{word}"):
        read_image(content, name)


def test_more_pixels_than_are_read(monkeypatch):
    monkeypatch.setattr(module, "MAX_PIXELS", 1000)
    with pytest.raises(OSError, match=r"a.png has 48x40 pixels, more than 0.001 megapixels"):
        read_image(encode(noise()), "a.png")


@pytest.mark.parametrize("name", bad.CLAIMS)
@pytest.mark.parametrize("bands", [None, 4])
def test_uploads_that_claim_any_size_are_refused(name, bands):
    with pytest.raises((OSError, ValueError), match=name) as raised:
        read_image(bad.CLAIMS[name], name, bands)
    assert "--" not in str(raised.value)  # who uploads has no command line
