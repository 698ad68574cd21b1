"""Prediction from Python: whatever holds an image in, a result out."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

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
    result = model.predict(pixels, precision="fp32")
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


def test_bfloat16_on_a_cpu(model, pixels, tmp_path):
    exact = model.predict(pixels, device="cpu", precision="fp32")
    model.save(tmp_path / "model.safetensors")
    for given in (model, tmp_path / "model.safetensors"):
        predictor = cacseg.Predictor(given, device="cpu", precision="bf16")
        found = predictor(pixels)
        assert not np.array_equal(found.confidence, exact.confidence)
        assert np.allclose(found.confidence, exact.confidence, atol=0.02)
    predictor.backend.model.save(tmp_path / "again.safetensors")
    again = cacseg.load(tmp_path / "again.safetensors").state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())
    assert all(one.is_contiguous() for one in model.parameters())  # what the caller holds is left as it is
    fast = torch.cpu._is_amx_tile_supported()
    assert cacseg.Predictor(model, device="cpu").backend.precision == ("bf16" if fast else "fp32")


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


def test_images_of_16_bits_and_of_one(model, pixels, tmp_path):
    """An array, a tensor and a picture of Pillow's are what a file of the same values is."""
    grey = pixels[..., 0].astype(np.uint16) * 251 + 7
    path = tmp_path / "grey.png"
    Image.fromarray(grey).save(path)
    forms = [
        grey,
        grey[..., None],
        grey.astype(">u2"),
        torch.from_numpy(grey)[None],
        Image.fromarray(grey),
        Image.open(path),
    ]
    older = Image.fromarray(grey.astype(np.int32))
    older.format = "PNG"  # as Pillow opened 16 bits before 10.3
    first, *others = model.predict([path, *forms, older])
    assert np.array_equal(first.image[..., 0], grey >> 8)
    assert all(np.array_equal(one.image, first.image) for one in others)
    black = grey > 2**15
    Image.fromarray(black).save(path)
    first, *others = model.predict([path, black, torch.from_numpy(black)[None], Image.fromarray(black)])
    assert np.array_equal(first.image[..., 0], black * np.uint8(255))
    assert all(np.array_equal(one.image, first.image) for one in others)


@pytest.mark.parametrize("kind", [np.int16, np.int32])
def test_a_picture_of_32_bits_is_refused(kind, model, pixels):
    with pytest.raises(ValueError, match=r"32 \(mode I, 0 to 255\).*uint8.*uint16"):
        model.predict(Image.fromarray(pixels[..., 0].astype(kind)))


def test_half_precision_tensors(model, pixels):
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))) / 255
    for dtype in (torch.bfloat16, torch.float16):
        rounded = planes.to(dtype)
        assert np.array_equal(model.predict(rounded).mask, model.predict(rounded.float()).mask)


def modes(model):
    return [module.training for module in model.modules()]


def test_a_model_that_is_trained_goes_on_training(pixels):
    model = small_model(NAMES).eval()
    expected = model.predict(pixels)
    model.train()
    model.backbone.eval()
    before = modes(model)
    for predict in (model.predict, cacseg.Predictor(model, device="cpu")):
        result = predict(pixels)
        assert modes(model) == before
        assert np.array_equal(result.mask, expected.mask)
        assert np.array_equal(result.plain, expected.plain)  # computed now
        assert modes(model) == before
    with pytest.raises(ValueError, match="image"):
        model.predict(np.zeros((0, 4, 3), np.uint8))
    assert modes(model) == before


def test_several_threads_predict_with_a_model_that_is_trained(pixels):
    model = small_model(NAMES).train()
    images = [np.roll(pixels, k, axis=1) for k in range(12)]
    predictor, state = cacseg.Predictor(model, device="cpu"), copy.deepcopy(model.state_dict())
    expected = [predictor(image) for image in images]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(predictor, images))
    assert all(modes(model))
    for one, other in zip(results, expected, strict=True):
        assert np.array_equal(one.mask, other.mask)
        assert np.array_equal(one.confidence, other.confidence)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_result_does_not_change_with_the_array_that_was_given(model, pixels):
    expected = model.predict(pixels)
    planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)  # channels lie last
    for given in (pixels.copy(), planes):
        result = model.predict(given)
        given[:] = 0
        assert np.array_equal(result.image, pixels)
        assert np.array_equal(result.plain, expected.plain)


def test_bands_do_not_change_with_the_array_that_was_given():
    layer = nn.Conv2d(2, 3, 1)
    how = {"mean": [0.0] * 2, "std": [1.0] * 2, "bands": 2, "class_names": NAMES, "device": "cpu"}
    given = np.random.default_rng(0).normal(size=(8, 9, 2)).astype(np.float32)
    result = cacseg.Predictor(layer, **how)(given)
    given[:] = np.nan
    assert np.array_equal(result.plain, result.mask)


def test_plain_is_of_the_model_that_predicted(pixels):
    model = small_model(NAMES)
    asked, late, *_ = results = model.predict([pixels] * 3)
    assert asked.plain.shape == (40, 56)
    with torch.no_grad():
        next(model.backbone.parameters()).mul_(2.0)
    assert asked.plain.shape == (40, 56)
    with pytest.raises(ValueError, match=r"weights have changed.*predict the image again"):
        _ = late.plain
    model.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="weights have changed"):
        _ = results[2].plain


def test_results_are_compared_and_pickled(model, pixels):
    result, other = model.predict([pixels, pixels])
    assert result == result
    assert result != other
    assert len({result, other}) == 2
    assert np.array_equal(result.plain, other.plain)
    again = pickle.loads(pickle.dumps(result))
    for name in ("image", "mask", "confidence", "entropy", "plain"):
        assert np.array_equal(getattr(again, name), getattr(result, name))
    assert (again.classes, again.palette) == (result.classes, result.palette)
    late = pickle.loads(pickle.dumps(model.predict(pixels)))
    assert np.array_equal(late.mask, result.mask)
    with pytest.raises(ValueError, match=r"result\.plain before"):
        _ = late.plain


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
    how = {"mean": [0.0] * 3, "std": [1.0] * 3, "class_names": names, "device": "cpu", "precision": "fp32"}
    result = cacseg.Predictor(network, **how)(pixels)
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


def test_an_error_says_which_image_of_a_list_it_is_of(model, pixels, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    for image, error, words in (
        (broken, OSError, rf"images\[1\].*{broken}"),
        (tmp_path / "nowhere.png", FileNotFoundError, r"images\[1\].*nowhere\.png"),
        (None, TypeError, r"images\[1\].*None.*cv2\.imread"),
        (pixels.astype(np.int64), TypeError, r"images\[1\].*int64"),
        (np.zeros((0, 4, 3), np.uint8), ValueError, r"images\[1\]"),
    ):
        with pytest.raises(error, match=words):
            model.predict([pixels, image, pixels])
        with pytest.raises(error) as raised:
            model.predict(image)
        assert "images[" not in str(raised.value)


def test_an_error_of_the_model_says_which_images_it_is_of(pixels, tmp_path):
    """Of a file also its path."""
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    flat = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    flat(torch.zeros(1, 3, 8, 8))
    predictor = cacseg.Predictor(flat, mean=[0.5] * 3, std=[0.5] * 3, class_names=NAMES, device="cpu")
    with pytest.raises(ValueError, match=rf"images\[0\], images\[1\] \({path}\)"):
        predictor([pixels, path], batch=2)


def test_what_is_no_image_says_what_to_pass(model, pixels, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for image, error, words in (
        ("photos", IsADirectoryError, r"photos is a folder.*list.*stream\('photos'\)"),
        ("film.mp4", ValueError, "film.mp4 is a video.*stream"),
        ("photos/*.gif", FileNotFoundError, r"photos/\*\.gif.*glob\.glob"),
        (pixels[None], ValueError, r"\(1, 40, 56, 3\).*list\(images\)"),
        (pixels.transpose(2, 0, 1), ValueError, r"\(3, 40, 56\).*transpose\(1, 2, 0\)"),
        (torch.from_numpy(pixels), ValueError, r"\(40, 56, 3\).*permute\(2, 0, 1\)"),
        (iter([pixels]), TypeError, "iterator.*list"),
    ):
        with pytest.raises(error, match=words):
            model.predict(image)


def test_options_that_are_refused(model):
    for options, error, words in (
        ({"scale": 512}, ValueError, r"scale.*\(2048, 512\).*512"),
        ({"scale": "512"}, ValueError, "scale.*'512'"),
        ({"scale": (1, 2, 3)}, ValueError, r"scale.*\(1, 2, 3\)"),
        ({"scale": (0.5, 0.5)}, ValueError, "scale.*0.5"),
        ({"tile": "1024"}, TypeError, "tile.*'1024'"),
        ({"overlap": 64}, ValueError, "overlap.*tile"),
        ({"tile_context": "tile"}, ValueError, "tile_context.*tile"),
    ):
        with pytest.raises(error, match=words):
            cacseg.Predictor(model, device="cpu", **options)
    assert cacseg.Predictor(model, device="cpu", scale=[np.int64(20), 28]).backend.scale == (28, 20)
    with pytest.raises(ValueError, match="at least 1 image"):
        cacseg.Predictor(model, device="cpu")([np.zeros((8, 8, 3), np.uint8)], batch=0)


def test_an_exported_file_is_known_by_its_suffix_however_it_is_written(pixels, tmp_path):
    from onnx_files import Small, write_small  # skips where there is no onnx

    network = Small(3)
    write_small(tmp_path / "small.onnx", network)
    (tmp_path / "LARGE.ONNX").write_bytes((tmp_path / "small.onnx").read_bytes())
    first, second = (cacseg.Predictor(tmp_path / name)(pixels) for name in ("small.onnx", "LARGE.ONNX"))
    assert np.array_equal(first.mask, second.mask)
    again = pickle.loads(pickle.dumps(first))  # of a file whose session could not be
    assert np.array_equal(again.mask, first.mask)


def test_models_that_are_refused(pixels):
    network = nn.Conv2d(3, 3, 1)
    with pytest.raises(ValueError, match="mean"):
        cacseg.Predictor(network)
    with pytest.raises(ValueError, match="names"):
        cacseg.Predictor(network, mean=[0.5] * 3, std=[0.5] * 3, class_names=["a", "b"])(pixels)
    with pytest.raises(TypeError, match="logits"):
        cacseg.Predictor(nn.Flatten(), mean=[0.5] * 3, std=[0.5] * 3, class_names=NAMES)(pixels)
    for wrong in (None, nn.Conv2d, network.state_dict()):
        with pytest.raises(TypeError, match=rf"path.*nn\.Module; got {type(wrong).__name__}"):
            cacseg.Predictor(wrong)


def test_exported_files_that_are_refused(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    with pytest.raises(FileNotFoundError):
        cacseg.Predictor(tmp_path / "missing.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match="damaged"):
        cacseg.Predictor(tmp_path / "broken.onnx")


@pytest.mark.parametrize(
    "form",
    [list, tuple, np.array, torch.tensor, lambda values: np.array(values, np.float32)],
    ids=["list", "tuple", "array", "tensor", "float32"],
)
def test_mean_and_std_of_any_form(form, pixels):
    network = nn.Conv2d(3, 3, 1)
    how = {"class_names": NAMES, "device": "cpu"}
    expected = cacseg.Predictor(network, mean=(0.5, 0.25, 0.75), std=(0.25, 0.5, 0.5), **how)(pixels)
    found = cacseg.Predictor(network, mean=form([0.5, 0.25, 0.75]), std=form([0.25, 0.5, 0.5]), **how)(pixels)
    assert np.array_equal(found.mask, expected.mask)
    assert np.array_equal(found.confidence, expected.confidence)


@pytest.mark.parametrize(
    ("mean", "std", "error", "words"),
    [
        ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375], ValueError, "123.675.*Divide.*by 255"),
        ([0.5] * 3, [58.395, 57.12, 57.375], ValueError, "58.395.*Divide.*by 255"),
        ([0.5] * 3, [0.5, 0.0, 0.5], ValueError, "std.*positive.*0.0"),
        ([0.5] * 3, [0.5, -0.5, 0.5], ValueError, "std.*positive.*-0.5"),
        ([0.5, float("nan"), 0.5], [0.5] * 3, ValueError, "finite.*nan"),
        ([0.5] * 3, [0.5, float("inf"), 0.5], ValueError, "finite.*inf"),
        ([0.5] * 4, [0.5] * 4, ValueError, "3 channels; got 4 and 4.*bands=4"),
        ([0.5] * 3, [0.5] * 2, ValueError, "3 channels; got 3 and 2"),
        (0.5, [0.5] * 3, TypeError, "mean.*list of numbers.*0.5"),
        ("0.5", [0.5] * 3, TypeError, "mean.*list of numbers"),
    ],
)
def test_means_and_stds_that_are_refused(mean, std, error, words, model):
    for one in (nn.Conv2d(3, 3, 1), model):
        with pytest.raises(error, match=words):
            cacseg.Predictor(one, mean=mean, std=std, class_names=NAMES, device="cpu")


def test_bands_may_have_any_mean_and_a_new_model_may_not():
    layer = nn.Conv2d(4, 3, 1)
    predictor = cacseg.Predictor(layer, mean=[3e4] * 4, std=[1e4] * 4, bands=4, class_names=NAMES, device="cpu")
    assert predictor(np.full((8, 9, 4), 3e4)).mask.shape == (8, 9)
    with pytest.raises(ValueError, match=r"Divide.*by 255"):
        cacseg.create_model("fcn", 3, backbone="test_resnet", head_channels=8, mean=[123.675] * 3)


def test_classes_of_one_name_count_together(model, pixels):
    names = ["car", "sky", "car"]
    result = cacseg.Predictor(model, class_names=names, device="cpu")(pixels)
    assert result.classes["car"] == ((result.mask == 0) | (result.mask == 2)).mean()
    assert sum(result.classes.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"palette": [(0, 0, 0)] * 2}, "palette.*3 colours"),
        ({"palette": [(0, 0, 0)] * 4}, "palette.*3 colours"),
        ({"palette": [(0, 0)] * 3}, "palette.*red, green and blue"),
        ({"palette": [(0, 0, 256)] * 3}, r"palette.*0\.\.255.*256"),
        ({"palette": [(0, 0, -1)] * 3}, r"palette.*0\.\.255.*-1"),
        ({"palette": np.full((3, 3), 0.5)}, r"palette.*whole numbers.*0\.5"),
        ({"palette": 7}, "palette.*7"),
        ({"class_names": "abc"}, "class_names.*3 strings.*abc"),
        ({"class_names": [0, 1, 2]}, "class_names.*3 strings"),
        ({"class_names": ["a", "b"]}, "class_names.*3 strings"),
        ({"class_names": []}, "class_names.*3 strings"),
    ],
)
def test_names_and_colours_that_are_refused(given, words, model):
    with pytest.raises(ValueError, match=words):
        cacseg.Predictor(model, device="cpu", **given)


def test_a_palette_may_be_an_array(model, pixels):
    palette = np.array([(1, 2, 3), (4, 5, 6), (255, 0, 0)], np.uint8)
    result = cacseg.Predictor(model, palette=palette, device="cpu")(pixels)
    assert result.palette == ((1, 2, 3), (4, 5, 6), (255, 0, 0))


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
