"""Prediction from Python: whatever holds an image in, a result out."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import bad_files as bad
import cacseg
from cacseg.data import normalise
from cacseg.engine.inference import Inference
from command_line import run
from distributed_evaluation import small_model

NAMES = ["sky", "road", "tree"]


@pytest.fixture(scope="module")
def model():
    made = small_model()
    made.class_names, made.palette = NAMES, [(10, 20, 30), (200, 0, 0), (0, 200, 0)]
    return made.eval()


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)


def logits_of(model, pixels, plain=False):
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
    with torch.no_grad():
        images = normalise(planes, model.mean, model.std)
        return (model.plain(images) if plain else model(images))[0]


def test_a_result_is_what_the_model_says(model, pixels):
    result = model.predict(pixels)
    logits = logits_of(model, pixels)
    probabilities = logits.softmax(0)
    assert np.array_equal(result.mask, logits.argmax(0))
    assert np.allclose(result.confidence, probabilities.amax(0), atol=1e-6)
    entropy = -(probabilities * probabilities.log()).sum(0) / np.log(3)
    assert np.allclose(result.entropy, entropy, atol=1e-5)
    assert np.array_equal(result.plain, logits_of(model, pixels, plain=True).argmax(0))
    assert not np.array_equal(result.plain, result.mask)
    shares = result.classes
    assert sum(shares.values()) == pytest.approx(1.0)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert all(shares[name] == (result.mask == NAMES.index(name)).mean() for name in shares)


def test_everything_that_holds_an_image(model, pixels, tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    alpha = np.concatenate([pixels, np.full((40, 56, 1), 7, np.uint8)], axis=2)
    forms = [path, str(path), Image.open(path), pixels, alpha, pixels / 255.0, planes, planes / 255]
    first, *others = model.predict(forms)
    assert all(np.array_equal(first.mask, one.mask) for one in others)
    grey = model.predict([pixels[..., 0], Image.fromarray(pixels[..., 0]), planes[:1]])
    assert all(np.array_equal(grey[0].mask, one.mask) for one in grey)


def test_half_precision_tensors(model, pixels):
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))) / 255
    for dtype in (torch.bfloat16, torch.float16):
        rounded = planes.to(dtype)
        assert np.array_equal(model.predict(rounded).mask, model.predict(rounded.float()).mask)


def test_a_model_that_is_trained_goes_on_training(pixels):
    model = small_model(NAMES)
    expected = model.predict(pixels)
    model.train()
    model.backbone.eval()
    result = model.predict(pixels)
    assert (model.training, model.head.training, model.backbone.training) == (True, True, False)
    assert np.array_equal(result.mask, expected.mask)
    assert np.array_equal(result.plain, expected.plain)  # computed now
    assert (model.training, model.head.training, model.backbone.training) == (True, True, False)


def test_a_list_of_several_sizes_keeps_its_order(model):
    numbers = np.random.default_rng(1)
    sizes = [(32, 40), (48, 33), (32, 40), (20, 20), (32, 40)]
    images = [numbers.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    results = model.predict(images, device="cpu")
    assert [one.mask.shape for one in results] == sizes
    for image, one in zip(images, results, strict=True):
        assert np.array_equal(one.image, image)
        assert (one.mask == model.predict(image).mask).mean() > 0.999  # other batches round otherwise
    assert model.predict([]) == []


@pytest.mark.parametrize(("batch", "expected"), [(None, [1, 1, 1]), (2, [2, 1])])
def test_on_a_cpu_images_run_one_after_the_other_unless_told(batch, expected, model, monkeypatch):
    predictor, groups = cacseg.Predictor(model, device="cpu"), []
    predict = predictor.backend.predict
    monkeypatch.setattr(
        predictor.backend, "predict", lambda views, *a, **k: groups.append(len(views)) or predict(views, *a, **k)
    )
    predictor([np.zeros((32, 32, 3), np.uint8)] * 3, batch=batch)
    assert groups == expected


def test_files_that_a_result_writes(model, pixels, tmp_path):
    result = model.predict(pixels)
    result.save(tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as picture:
        assert picture.mode == "P"
        assert np.array_equal(np.asarray(picture), result.mask)
        assert picture.getpalette()[:3] == [10, 20, 30]
    result.save(tmp_path / "sure.png", "confidence")
    with Image.open(tmp_path / "sure.png") as picture:
        assert np.abs(np.asarray(picture) / 255 - result.confidence).max() < 0.002 + 1e-6
    result.save(tmp_path / "over.jpg")
    with Image.open(tmp_path / "over.jpg") as picture:
        assert picture.size == (56, 40)
    result.save(tmp_path / "over.png", "overlay")
    with Image.open(tmp_path / "over.png") as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(result.overlay()))
    result.save(tmp_path / "plain.png", "plain")
    with Image.open(tmp_path / "plain.png") as picture:
        assert np.array_equal(np.asarray(picture), result.plain)
    for path, what in (("mask.png", None), ("mask.tif", None), ("mask.jpg", "mask"), ("x.png", "nonsense")):
        with pytest.raises((ValueError, FileExistsError)):
            result.save(tmp_path / path, what)
    assert not (tmp_path / "x.png").exists()


def test_the_command_writes_the_same(model, pixels, tmp_path, capsys, monkeypatch):
    model.save(tmp_path / "model.safetensors")
    (tmp_path / "photos").mkdir()
    Image.fromarray(pixels).save(tmp_path / "photos/a.png")
    paths = (tmp_path / "model.safetensors", tmp_path / "photos", "-o", tmp_path / "out")
    done = run("predict", *paths, "--device", "cpu", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    result = cacseg.Predictor(tmp_path / "model.safetensors", device="cpu")(tmp_path / "photos/a.png")
    with Image.open(tmp_path / "out/masks/a.png") as picture:
        assert np.array_equal(np.asarray(picture), result.mask)
    assert next(iter(result.classes)) in NAMES


def test_scale_windows_and_flip(model, pixels):
    fitted = cacseg.Predictor(model, scale=(28, 20), device="cpu")(pixels)
    small = model.predict(np.asarray(Image.fromarray(pixels)))
    assert fitted.mask.shape == small.mask.shape
    assert not np.array_equal(fitted.mask, small.mask)
    slid = cacseg.Predictor(model, inference=Inference((32, 32), (16, 16), flip=True), device="cpu")(pixels)
    assert slid.confidence.max() <= 1.0
    assert np.abs(slid.confidence - small.confidence).max() > 0.0


class Foreign(nn.Module):
    """A network of somebody else, with a head that `cacseg.convert` knows."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU())
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, images):
        scores = self.head(self.body(images))
        return {"tensor": scores, "out": {"out": scores, "aux": scores}, "logits": {"logits": scores}}[self.form]


@pytest.mark.parametrize("form", ["tensor", "out", "logits"])
def test_a_converted_model_of_another_library(form, pixels):
    torch.manual_seed(0)
    converted = cacseg.convert(Foreign(form), seam="head").eval()
    predictor = cacseg.Predictor(converted, mean=[0.5] * 3, std=[0.25] * 3, class_names=NAMES, device="cpu")
    result = predictor(pixels)
    images = (torch.from_numpy(pixels.transpose(2, 0, 1)[None] / 255.0).float() - 0.5) / 0.25
    with torch.no_grad():
        own, plain = converted(images), converted.plain(images)
    for logits, mask in ((own, result.mask), (plain, result.plain)):
        logits = logits if form == "tensor" else logits[form]
        upsampled = nn.functional.interpolate(logits, size=(40, 56), mode="bilinear", align_corners=False)
        assert (upsampled[0].argmax(0).numpy() == mask).mean() > 0.999
    assert set(result.classes) <= set(NAMES)


def test_a_binary_model(pixels):
    """One logit for each pixel is two classes."""
    torch.manual_seed(0)
    network = nn.Conv2d(3, 1, 1)
    names = ["background", "foreground"]
    result = cacseg.Predictor(network, mean=[0.0] * 3, std=[1.0] * 3, class_names=names, device="cpu")(pixels)
    with torch.no_grad():
        logit = network(torch.from_numpy(pixels.transpose(2, 0, 1)[None] / 255.0).float())[0, 0]
    assert np.array_equal(result.mask, logit.numpy() > 0)
    assert np.allclose(result.confidence, torch.sigmoid(logit.abs()), atol=1e-6)


@pytest.mark.parametrize(
    ("image", "error"),
    [
        (np.zeros((4, 4, 3), np.int64), TypeError),
        (np.zeros((4, 4, 7), np.uint8), ValueError),
        (np.zeros((0, 4, 3), np.uint8), ValueError),
        (np.full((4, 4, 3), 7.0), ValueError),
        (np.full((4, 4, 3), np.nan), ValueError),
        (torch.zeros(5, 4, 4), ValueError),
        (3, TypeError),
        ("nowhere.png", FileNotFoundError),
    ],
)
def test_images_that_are_refused(model, image, error):
    with pytest.raises(error):
        model.predict(image)


def test_models_that_are_refused(pixels):
    network = nn.Conv2d(3, 3, 1)
    with pytest.raises(ValueError, match="mean"):
        cacseg.Predictor(network)
    with pytest.raises(ValueError, match="names"):
        cacseg.Predictor(network, mean=[0.5] * 3, std=[0.5] * 3, class_names=["a", "b"])(pixels)
    with pytest.raises(TypeError, match="logits"):
        cacseg.Predictor(nn.Flatten(), mean=[0.5] * 3, std=[0.5] * 3, class_names=NAMES)(pixels)


def test_exported_files_that_are_refused(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    with pytest.raises(FileNotFoundError):
        cacseg.Predictor(tmp_path / "missing.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match="damaged"):
        cacseg.Predictor(tmp_path / "broken.onnx")


def test_files_that_claim_too_much_and_a_limit_that_is_given(model, pixels, tmp_path):
    path = tmp_path / "claims.jpg"
    path.write_bytes(bad.CLAIMS["claims.jpg"])
    with pytest.raises(OSError, match=r"claims\.jpg has 32767x32767 pixels.*max_pixels=.*--tile"):
        model.predict(path)
    Image.fromarray(pixels).save(path)
    assert model.predict(path, max_pixels=40 * 56).mask.shape == (40, 56)
    with pytest.raises(OSError, match="56x40 pixels"):
        model.predict(path, max_pixels=40 * 56 - 1)
    with pytest.raises(ValueError, match="floating point"):
        model.predict(Image.fromarray(pixels[..., 0].astype(np.float32)))
