"""Images of bands: 16 bits, floats, any number of channels, from their files to masks."""

import io
import json
import shutil
import urllib.request
from typing import NamedTuple

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import cacseg
from app_server import make_server, serving
from cacseg.app.predict import Predictor as PagePredictor
from cacseg.app.predict import read_image as read_upload
from cacseg.app.results import Results
from cacseg.app.server import Example
from cacseg.data import open_data
from cacseg.data.bands import count_bands
from cacseg.data.own_transform import OwnTransform
from cacseg.data.python import PythonData
from cacseg.data.transforms import NUMBERS, TestTransform, TrainTransform, normalise
from cacseg.engine.export.quantise import prepare
from cacseg.engine.inference import Inference
from cacseg.engine.resident import Draws, cut_crops, load_split
from cacseg.engine.weights import load_weights
from cacseg.models.backbones import load_backbone_weights
from cacseg.models.files import TensorFile
from cacseg.recipes.build import make_model, with_bands
from cacseg.recipes.config import change
from cacseg.recipes.named import folder as folder_recipe
from cacseg.runtime.bands import as_picture, decode_bands, no_data
from cacseg.runtime.inputs import find_images
from command_line import Silent, run

rasterio = pytest.importorskip("rasterio")
from affine import Affine  # noqa: E402

EMPTY = -9999.0
SIZE = 64
PLACE = {"crs": "EPSG:32632", "transform": Affine(10.0, 0.0, 500_000.0, 0.0, -10.0, 5_200_000.0)}
SETTINGS = {
    "data.crop": 32,
    "training.batch": 2,
    "schedule.steps": 2,
    "schedule.warmup_steps": 1,
    "training.validate_every": 2,
    "training.workers": 0,
}
SMALL = {"model.name": "fcn", "model.backbone": "test_resnet", "model.head_channels": 8}


def save_tiff(path, bands, **options):
    count, height, width = bands.shape
    kind = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": bands.dtype, **options}
    with rasterio.open(path, "w", **kind) as file:
        file.write(bands)


def float_image(rng, labels):
    """Four bands around each class's own values; a corner without data, and one NaN."""
    values = np.array([[300.0, 600.0, 450.0, 1800.0], [360.0, 540.0, 480.0, 300.0]])[labels]
    bands = (values + rng.normal(0.0, 50.0, values.shape)).astype(np.float32).transpose(2, 0, 1)
    bands[:, :5, :7] = EMPTY
    bands[2, 40, 41] = np.nan
    return bands


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same labels under GeoTIFFs of four float bands, and under grey PNGs of 16 bits."""
    top = tmp_path_factory.mktemp("bands")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for kind in ("geo", "grey"):
            for name in ("images", "labels"):
                (top / kind / name / split).mkdir(parents=True)
        for index in range(count):
            labels = np.zeros((SIZE, SIZE), np.uint8)
            labels[20:50, 10 + 8 * index : 40 + 4 * index] = 1
            for kind in ("geo", "grey"):
                Image.fromarray(labels).save(top / kind / "labels" / split / f"{index}.png")
            image = float_image(rng, labels)
            tiles = {"tiled": True, "blockxsize": 16, "blockysize": 16}
            save_tiff(top / "geo/images" / split / f"{index}.tif", image, nodata=EMPTY, **PLACE, **tiles)
            grey = np.clip(20_000.0 + 25_000.0 * labels + rng.normal(0, 900, labels.shape), 0, 65535)
            cv2.imwrite(str(top / "grey/images" / split / f"{index}.png"), grey.astype(np.uint16))
    for kind in ("geo", "grey"):
        (top / kind / "classes.txt").write_text("field\nroof\n")
    return top


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory):
    """A run of each kind, by the command, and the ONNX file of it."""
    top = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for kind, bands in (("geo", 4), ("grey", 1)):
            values = {**SETTINGS, **SMALL, "data.bands": bands}
            settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
            options = ["--root", folders / kind, *settings, "-o", top / kind, "--no-progress"]
            assert run("train", "folder", *options, capsys=Silent(), monkeypatch=patch).code == 0
    return top


def as_npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def as_tiff(bands, tmp_path, **options):
    save_tiff(tmp_path / "one.tif", bands, **PLACE, **options)
    return (tmp_path / "one.tif").read_bytes()


def test_each_kind_of_file_keeps_its_values(tmp_path):
    rng = np.random.default_rng(1)
    bands = rng.normal(0.0, 1e4, (5, 20, 30)).astype(np.float32)
    for content in (as_npy(bands), as_npy(bands.transpose(1, 2, 0)), as_tiff(bands, tmp_path)):
        np.testing.assert_array_equal(decode_bands(content, "x", 5), bands.transpose(1, 2, 0))
    for channels in (1, 3, 4):
        values = rng.integers(0, 65536, (20, 30, channels), np.uint16)
        order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]  # as OpenCV writes them
        content = cv2.imencode(".png", values[..., order])[1].tobytes()
        found = decode_bands(content, "x", channels)
        np.testing.assert_array_equal(found, values)
        assert found.dtype == np.float32
    grey = rng.integers(0, 256, (20, 30), np.uint8)
    np.testing.assert_array_equal(decode_bands(as_npy(grey), "x", 1)[..., 0], grey)


def test_a_file_says_where_it_has_no_data(tmp_path):
    bands = np.arange(2 * 6 * 8, dtype=np.int16).reshape(2, 6, 8)
    found = decode_bands(as_tiff(bands, tmp_path, nodata=9), "x", 2)
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 1, 0]]
    with_gaps = np.ones((6, 8, 3), np.float32)
    with_gaps[0, 1, 2], with_gaps[3, 4, 0] = np.nan, np.inf
    found = decode_bands(as_npy(with_gaps), "x", 3)
    assert np.argwhere(np.isnan(found)).tolist() == [[0, 1, 2], [3, 4, 0]]
    assert np.argwhere(no_data(found)).tolist() == [[0, 1], [3, 4]]
    assert no_data(np.ones((2, 2, 4), np.float32)) is None
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        kind = {"driver": "GTiff", "count": 1, "height": 6, "width": 8, "dtype": "uint8", **PLACE}
        with rasterio.open(tmp_path / "i.tif", "w", **kind) as file:
            file.write(np.full((1, 6, 8), 7, np.uint8))
            file.write_mask(np.arange(48).reshape(6, 8) != 10)
    found = decode_bands((tmp_path / "i.tif").read_bytes(), "x", 1)
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 2, 0]]


def test_a_damaged_array_says_so_once_and_passes_no_advice_of_numpys_on():
    whole, objects = as_npy(np.ones((9, 9))), as_npy(np.array([[{}]], dtype=object))
    long = b"\x93NUMPY\x01\x00" + (20_000).to_bytes(2, "little") + b"{" + b" " * 19_998 + b"\n"
    for content in (b"garbage!", whole[:9], whole[:60], whole[:90], objects, long, whole.replace(b"<f8", b"<q9")):
        with pytest.raises(OSError, match=rf"a\.npy is damaged.*\({len(content)} bytes.*Copy it again") as raised:
            decode_bands(content, "a.npy", 1)
        said = str(raised.value)
        assert said.count("a.npy") == said.count("Copy it again") == said.count("bytes") == 1
        assert all(word not in said for word in ("pickle", "max_header_size"))


def test_a_file_of_other_bands_or_none_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"a\.npy has 4 band\(s\), and 3 are expected"):
        decode_bands(as_npy(np.ones((5, 6, 4))), "a.npy", 3)
    with pytest.raises(ValueError, match="must hold numbers"):
        decode_bands(as_npy(np.ones((5, 6, 4, 2))), "a.npy", 4)
    with pytest.raises(OSError, match="is damaged"):
        decode_bands(as_npy(np.array([{}], dtype=object)), "a.npy", 1)  # would be unpickled
    whole = as_tiff(np.ones((2, 40, 40), np.float32), tmp_path)
    for content in (b"", b"II*\0", whole[:300], b"no image", as_npy(np.ones((9, 9)))[:90]):
        with pytest.raises(OSError, match="x is"):
            decode_bands(content, "x", 2)
    with pytest.raises(OSError, match=r"40x40 pixels, more than 0\.001"):
        decode_bands(whole, "x", 2, max_pixels=1000)


def test_the_values_of_all_bands_are_limited(tmp_path):
    save_tiff(tmp_path / "a.tif", np.zeros((4, 32, 32), np.float32), **PLACE)
    content = (tmp_path / "a.tif").read_bytes()
    assert decode_bands(content, "a.tif", 4, max_pixels=4096).shape == (32, 32, 4)
    with pytest.raises(OSError, match=r"a\.tif has 32x32 pixels of 4 bands, more than 0\.004095 million.*--max-pixels"):
        decode_bands(content, "a.tif", 4, max_pixels=4095)


def test_a_split_reads_bands_and_ignores_what_has_no_data(folders):
    sample = open_data("folder", folders / "geo", "val", bands=4).read(0)
    assert sample.image.shape == (SIZE, SIZE, 4)
    empty = np.zeros((SIZE, SIZE), bool)
    empty[:5, :7] = empty[40, 41] = True
    np.testing.assert_array_equal(sample.labels == 255, empty)
    assert sample.picture.shape == (SIZE, SIZE, 3)
    assert sample.picture.dtype == np.uint8
    with pytest.raises(ValueError, match="4 band"):
        open_data("folder", folders / "geo", "val", bands=3).read(0)
    with pytest.raises(OSError, match=r"4 band\(s\) of floats of 32 bits.*data\.bands=4") as raised:
        open_data("folder", folders / "geo", "val").read(0)
    assert "damaged" not in str(raised.value)


def test_mean_and_deviation_leave_out_what_has_no_data(folders, capsys, monkeypatch):
    data = open_data("folder", folders / "geo", "train", bands=4)
    values = np.concatenate([data.read(k).image.reshape(-1, 4) for k in range(len(data))]).astype(np.float64)
    mean, std = count_bands(data, lambda words: None)
    np.testing.assert_allclose(mean, np.nanmean(values, 0), rtol=1e-5)
    np.testing.assert_allclose(std, np.nanstd(values, 0), rtol=1e-5)
    done = run("data", "check", folders / "geo", "--bands", 4, "--json", capsys=capsys, monkeypatch=monkeypatch)
    (train,) = [one for one in json.loads(done.out)["splits"] if one["split"] == "train"]
    np.testing.assert_allclose([one["mean"] for one in train["bands"]], mean, rtol=1e-5)
    np.testing.assert_allclose([one["std"] for one in train["bands"]], std, rtol=1e-5)
    assert [one["no_data"] for one in train["bands"]] == [140.0, 140.0, 144.0, 140.0]
    done = run("data", "check", folders / "geo", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 1
    assert "data.bands" in done.out


def test_a_check_tells_of_bits_that_would_be_cut(folders, capsys, monkeypatch):
    done = run("data", "check", folders / "grey", "--json", capsys=capsys, monkeypatch=monkeypatch)
    assert any("data.bands=1" in note for note in json.loads(done.out)["notes"])


def test_normalised_bands_are_in_their_own_units_and_zero_without_data():
    images = torch.tensor([1000.0, 3000.0, torch.nan]).view(1, 1, 1, 3).expand(1, 2, 1, 3).contiguous()
    found = normalise(images, (1000.0, 2000.0), (500.0, 1000.0))
    assert found[0, :, 0].tolist() == [[0.0, 4.0, 0.0], [-1.0, 1.0, 0.0]]
    with pytest.raises(TypeError, match="bands in float32"):
        normalise(images.double(), (0.0, 0.0), (1.0, 1.0))


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_a_crop_of_bands_is_that_of_each_band(channels):
    rng = np.random.default_rng(channels)
    image = rng.normal(500.0, 200.0, (40, 50, channels)).astype(np.float32)
    labels = rng.integers(0, 3, (40, 50), np.uint8)
    transform = TrainTransform((32, 32))
    for seed in range(4):
        numbers = np.random.default_rng(seed).random(NUMBERS)
        whole = transform(cacseg.data.Sample(image, labels), numbers)
        assert whole.image.dtype == torch.float32
        for band in range(channels):
            one = transform(cacseg.data.Sample(image[..., band : band + 1].copy(), labels), numbers)
            torch.testing.assert_close(whole.image[band], one.image[0], rtol=1e-5, atol=1e-3)
            assert torch.equal(whole.labels, one.labels)
    assert TestTransform((25, 20))(image).shape == (channels, 20, 25)


def test_crops_on_the_device_are_those_of_the_host(folders):
    data = open_data("folder", folders / "geo", "train", bands=4)
    transform = TrainTransform((32, 32))
    split = load_split(data, torch.device("cpu"))
    numbers = np.random.default_rng(0).random((6, NUMBERS))
    index = torch.arange(6) % len(data)
    there = cut_crops(split, transform, Draws(index, torch.from_numpy(numbers)))
    for place in range(6):
        here = transform(data.read(int(index[place])), numbers[place])
        assert torch.equal(there.labels[place], here.labels)
        both = torch.isfinite(there.images[place]) & torch.isfinite(here.image)
        assert both.float().mean() > 0.95
        torch.testing.assert_close(there.images[place][both], here.image[both], rtol=0, atol=0.02)


def test_weights_of_colours_fit_other_bands():
    torch.manual_seed(0)
    colours, five, grey = (
        cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, bands=bands).backbone
        for bands in (None, 5, 1)
    )
    file = TensorFile(dict(colours.net.state_dict()), {})
    load_backbone_weights(five, file)
    load_backbone_weights(grey, file)
    kernel = colours.net.state_dict()["conv1.0.weight"]
    torch.testing.assert_close(grey.net.state_dict()["conv1.0.weight"], kernel.sum(1, keepdim=True))
    torch.testing.assert_close(five.net.state_dict()["conv1.0.weight"], kernel[:, [0, 1, 2, 0, 1]] * 3 / 5)


def test_a_model_of_bands_says_what_it_takes():
    model = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, bands=4)
    assert (model.bands, model.mean, model.std) == (4, (0.0,) * 4, (1.0,) * 4)
    with pytest.raises(ValueError, match="in_channels=5"):
        cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, bands=4, in_channels=5)
    predictor = cacseg.Predictor(model, device="cpu")
    with pytest.raises(ValueError, match="3 band"):
        predictor(np.zeros((40, 40, 3), np.float32))


@pytest.mark.parametrize(("kind", "bands"), [("geo", 4), ("grey", 1)])
def test_a_run_keeps_its_bands_and_predicts_with_them(folders, trained, kind, bands, tmp_path, capsys, monkeypatch):
    def command(*arguments):
        return run(*arguments, capsys=capsys, monkeypatch=monkeypatch)

    train = open_data("folder", folders / kind, "train", bands=bands)
    model = cacseg.load(trained / kind)
    mean, std = count_bands(train, lambda words: None)
    assert (model.bands, list(model.mean), list(model.std)) == (bands, mean, std)
    assert json.loads((trained / kind / "config.json").read_text())["config"]["model"]["mean"] == mean
    assert (trained / kind / "report.html").stat().st_size > 10_000

    val = open_data("folder", folders / kind, "val", bands=bands)
    sample = val.read(0)
    images = torch.from_numpy(np.nan_to_num((sample.image - np.float32(mean)) / np.float32(std), nan=0.0))
    with torch.no_grad():
        expected = model(images.permute(2, 0, 1)[None])[0].argmax(0).numpy().astype(np.uint8)
    empty = np.isnan(sample.image).any(2)
    expected[empty] = 255
    images_folder = folders / kind / "images/val"
    assert (
        command(
            "predict",
            trained / kind,
            images_folder,
            "-o",
            tmp_path / "out",
            "--format",
            "geojson",
            "--precision",
            "fp32",
        ).code
        == 0
    )
    written = json.loads((tmp_path / "out/geojson/0.geojson").read_text())
    assert ("longitude" in written["coordinates"]) == (kind == "geo")
    mask = np.array(Image.open(tmp_path / "out/masks/0.png"))
    assert (mask == expected).mean() > 0.999
    np.testing.assert_array_equal(mask == 255, empty)
    result = cacseg.Predictor(trained / kind, device="cpu", precision="fp32")(sample.image)
    np.testing.assert_array_equal(result.mask, mask)
    assert sum(result.classes.values()) == pytest.approx(1.0 - empty.mean())
    assert result.overlay().size == (SIZE, SIZE)

    done = command("eval", trained / kind, "--json")
    labelled = sum(one["labelled_pixels"] for one in json.loads(done.out)["outputs"]["context"]["classes"])
    assert labelled == sum(int((val.read(k).labels != 255).sum()) for k in range(len(val)))

    other = "grey" if kind == "geo" else "geo"
    alone = shutil.copy(trained / kind / "best.safetensors", tmp_path / "alone.safetensors")
    again = command("eval", alone, "--data", folders / kind, "--json")
    assert json.loads(again.out)["outputs"] == json.loads(done.out)["outputs"]
    for weights in (trained / kind, alone):
        done = command("eval", weights, "--data", folders / other)
        assert done.code == 1
        assert f"and {bands} are expected" in done.err

    content = next(images_folder.iterdir()).read_bytes()
    page = PagePredictor(model, Inference(), None, torch.device("cpu"))
    found = page.predict(read_upload(content, "x", bands))
    assert found.shown.shape == (SIZE, SIZE, 3)
    gaps = np.isnan(decode_bands(content, "x", bands)).any(2)
    for answer in found.answers.values():
        np.testing.assert_array_equal(answer.mask == 255, gaps)
        np.testing.assert_array_equal(answer.layers[0] == 255, gaps)
    shares = Results(tmp_path / "page", model.palette).add("x", found)["shares"]["context"]
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(1.0 - gaps.mean())

    model.save_pretrained(tmp_path / "hub")
    kept = cacseg.load(tmp_path / "hub")
    assert (kept.bands, kept.mean, kept.std) == (model.bands, model.mean, model.std)


def test_a_tile_that_covers_the_image_gives_its_mask_and_keeps_its_place(
    folders, trained, tmp_path, capsys, monkeypatch
):
    images = folders / "geo/images/val"
    for name, more in (("whole", []), ("tiled", ["--tile", 64, "--overlap", 32]), ("parts", ["--tile", 32])):
        more = [*more, "--overlap", 0] if name == "parts" else more
        arguments = ["predict", trained / "geo", images, "-o", tmp_path / name, *more]
        assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch).code == 0
    whole = np.array(Image.open(tmp_path / "whole/masks/0.png"))
    for name in ("tiled", "parts"):
        with rasterio.open(tmp_path / name / "masks/0.tif") as file:
            mask = file.read(1)
            assert (file.transform, file.crs.to_epsg()) == (PLACE["transform"], 32632)
        np.testing.assert_array_equal(mask == 255, whole == 255)
        if name == "tiled":
            assert (mask == whole).mean() > 0.999


def test_images_with_other_bands_fail_one_by_one(folders, trained, tmp_path, capsys, monkeypatch):
    for more in ([], ["--tile", 64, "--overlap", 32]):
        arguments = ["predict", trained / "grey", folders / "geo/images/val", "-o", tmp_path / f"out{len(more)}", *more]
        done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
        assert done.code == 1
        assert done.err.count("4 band(s)") == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["geo", "grey"])
def test_an_exported_file_takes_the_same_bands(folders, trained, kind, tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    done = run("export", trained / kind, "-o", file, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0
    images = folders / kind / "images/val"
    for model, name in ((file, "onnx"), (trained / kind, "torch")):
        arguments = ["predict", model, images, "-o", tmp_path / name]
        assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch).code == 0
    ours, theirs = (np.array(Image.open(tmp_path / name / "masks/1.png")) for name in ("onnx", "torch"))
    assert (ours == theirs).mean() > 0.999
    other = folders / ("grey" if kind == "geo" else "geo") / "images/val"
    done = run("predict", file, other, "-o", tmp_path / "other", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 1
    assert done.err.count("are expected") == 2


def test_a_picture_of_bands_spreads_what_is_there():
    ramp = np.linspace(0.0, 5000.0, 400, dtype=np.float32).reshape(20, 20, 1)
    ramp[0, 0] = np.nan
    picture = as_picture(ramp)
    assert picture[0, 0].tolist() == [0, 0, 0]
    assert picture[-1, -1].tolist() == [255, 255, 255]
    assert (np.diff(picture[10, :, 0].astype(int)) >= 0).all()


def colours(path):
    """A saved model of red, green and blue."""
    model = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, mean=[0.5] * 3, std=[0.25] * 3)
    model.save(path)
    return model


def counted(folders, kind, bands, **settings):
    """The model that a run with these settings starts from, and what it is told."""
    data, told = open_data("folder", folders / kind, "train", bands=bands), []
    config = change(folder_recipe(), {**SMALL, "data.bands": bands, **settings})
    config = with_bands(config, data, told.append)
    return make_model(config.model, data, told.append, bands), count_bands(data, told.append)


@pytest.mark.parametrize(("kind", "bands"), [("geo", 4), ("grey", 1)])
def test_weights_of_colours_start_a_model_of_bands_with_its_own_mean(folders, kind, bands, tmp_path):
    before = colours(tmp_path / "colours.safetensors")
    model, (mean, std) = counted(folders, kind, bands, **{"model.weights": str(tmp_path / "colours.safetensors")})
    assert (list(model.mean), list(model.std)) == (mean, std)
    name = "backbone.net.conv1.0.weight"
    old, new = before.state_dict()[name], model.state_dict()[name]
    torch.testing.assert_close(new, old.sum(1, keepdim=True) if bands == 1 else old[:, [0, 1, 2, 0]] * 3 / 4)
    model.save(tmp_path / "bands.safetensors")
    again, _ = counted(
        folders, kind, bands, **{"model.weights": str(tmp_path / "bands.safetensors"), "model.mean": mean}
    )
    assert (again.mean, again.std) == (model.mean, model.std)
    with pytest.raises(ValueError, match=r"conv1\.0\.weight"):
        load_weights(before, tmp_path / "bands.safetensors")


def test_three_bands_do_not_take_the_mean_of_colours(tmp_path):
    colours(tmp_path / "colours.safetensors")
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(0, 4000, (40, 40, 3), np.uint16), rng.integers(0, 2, (40, 40))) for _ in range(2)]
    data = PythonData(pairs, "train", ("a", "b"), bands=3)
    settings = {**SMALL, "data.bands": 3, "model.weights": str(tmp_path / "colours.safetensors")}
    config = with_bands(change(folder_recipe(), settings), data, lambda words: None)
    assert min(make_model(config.model, data, lambda words: None, 3).mean) > 1000


def test_what_is_given_of_mean_and_deviation_stays(folders):
    model, (_, std) = counted(folders, "geo", 4, **{"model.mean": (1.0, 2.0, 3.0, 4.0)})
    assert (model.mean, list(model.std)) == ((1.0, 2.0, 3.0, 4.0), std)


def test_arrays_beside_pictures_of_colours_are_no_images(tmp_path):
    for place in ("images", "labels"):
        (tmp_path / place / "train").mkdir(parents=True)
        Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / place / "train/a.png")
    (tmp_path / "classes.txt").write_text("field\nroof\n")
    np.save(tmp_path / "images/train/a.npy", np.zeros((9, 9)))
    np.save(tmp_path / "images/train/b.npy", np.zeros((9, 9)))
    assert len(open_data("folder", tmp_path, "train")) == 1
    assert [one.name for one in find_images([tmp_path / "images"], colours=True)] == ["train/a"]
    assert len(find_images([tmp_path / "images"])) == 3
    (tmp_path / "images/train/a.png").unlink()
    (tmp_path / "images/train/b.npy").unlink()
    with pytest.raises(OSError, match=r"data\.bands"):
        open_data("folder", tmp_path, "train").read(0)


def test_calibration_sees_the_mean_where_there_is_no_data():
    described = Described(bands=2, mean=(3.0, 5.0), std=(1.0, 1.0), normalises=True, scale=None)
    image = np.full((4, 4, 2), 7.0, np.float32)
    image[1, 2, 0] = image[3, 3, 1] = np.nan
    found = prepare(image, described)[0]
    assert (found[0, 1, 2], found[1, 3, 3]) == (3.0, 5.0)
    assert (found == 7.0).sum() == 30


class Described(NamedTuple):
    bands: int
    mean: tuple
    std: tuple
    normalises: bool
    scale: None
    fixed_size: None = None


def arrays(folders, split):
    data = open_data("folder", folders / "geo", split, bands=4)
    samples = [data.read(index) for index in range(len(data))]
    return [
        (one.image.transpose(2, 0, 1).astype(np.float64), np.where(one.labels == 255, 0, one.labels)) for one in samples
    ]


def test_python_trains_on_arrays_of_bands(folders, tmp_path):
    model = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, bands=4)
    told = []
    settings = {**SETTINGS, "data.flip": 0.0}
    how = {"folder": tmp_path / "run", "settings": settings, "report": told.append, "progress": False, "page": False}
    cacseg.train(model, arrays(folders, "train"), arrays(folders, "val"), **how)
    mean, std = count_bands(open_data("folder", folders / "geo", "train", bands=4), told.append)
    assert (list(model.mean), list(model.std)) == (mean, std)
    assert any("data.distort" in one for one in told)
    kept = cacseg.load(tmp_path / "run")
    assert (kept.bands, list(kept.mean)) == (4, mean)
    data = PythonData(arrays(folders, "val"), "val", ("field", "roof"), bands=4)
    np.testing.assert_array_equal(data.read(0).labels == 255, np.isnan(data.read(0).image).any(2))
    fresh = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, bands=4)
    cacseg.train(fresh, arrays(folders, "train"), arrays(folders, "val"), resume=True, **how)
    assert fresh.mean == model.mean
    other = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, bands=3)
    with pytest.raises(ValueError, match=r"4 band\(s\), and 3 are expected"):
        cacseg.train(other, arrays(folders, "train"), arrays(folders, "val"), **{**how, "folder": tmp_path / "other"})
    plain = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8)
    data = [open_data("folder", folders / "geo", split, bands=4) for split in ("train", "val")]
    with pytest.raises(ValueError, match="bands=4"):
        cacseg.train(plain, *data, **{**how, "folder": tmp_path / "other"})
    unnamed = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, in_channels=4)
    with pytest.raises(ValueError, match="bands=4"):
        cacseg.train(unnamed, arrays(folders, "train"), **{**how, "folder": tmp_path / "other"})


def test_a_users_own_transform_of_bands():
    image, labels = np.full((20, 20, 5), 700.0, np.float32), np.ones((20, 20), np.uint8)
    transform = OwnTransform(lambda image, mask: (image[:8] / 2, mask[:8]), (16, 32), 2, bands=5)
    crop = transform(cacseg.data.Sample(image, labels), np.zeros(NUMBERS))
    assert crop.image.shape == (5, 16, 32)
    assert crop.image[:, :8, :20].unique().tolist() == [350.0]
    assert crop.size == (8, 20)


def converted():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 1)
    return cacseg.convert(torch.nn.Sequential(*layers))


def test_a_converted_model_of_bands_predicts(folders):
    sample = open_data("folder", folders / "geo", "val", bands=4).read(0)
    how = {"mean": [300.0] * 4, "std": [200.0] * 4, "class_names": ["field", "roof"], "device": "cpu"}
    model = converted()
    result = cacseg.Predictor(model, bands=4, precision="fp32", **how)(sample.image)
    normal = np.nan_to_num((sample.image - 300.0) / np.float32(200.0), nan=0.0)
    with torch.no_grad():
        expected = model(torch.from_numpy(normal).permute(2, 0, 1)[None])[0].argmax(0).numpy()
    empty = np.isnan(sample.image).any(2)
    assert (result.mask[~empty] == expected[~empty]).mean() > 0.999
    assert (result.mask[empty] == 255).all()
    with pytest.raises(ValueError, match="bands=4"):
        cacseg.Predictor(model, **how)
    ours = cacseg.create_model("fcn", 2, backbone="test_resnet", head_channels=8, bands=4)
    with pytest.raises(ValueError, match="bands=3"):
        cacseg.Predictor(ours, bands=3, device="cpu")


@pytest.mark.slow
def test_a_converted_model_of_bands_exports(folders, tmp_path):
    pytest.importorskip("onnxruntime")
    sample = open_data("folder", folders / "geo", "val", bands=4).read(0)
    how = {"mean": [300.0] * 4, "std": [200.0] * 4, "bands": 4, "class_names": ["field", "roof"]}
    model = converted()
    cacseg.export(model, tmp_path / "model.onnx", **how)
    ours = cacseg.Predictor(model, device="cpu", precision="fp32", **how)(sample.image).mask
    assert (cacseg.Predictor(tmp_path / "model.onnx")(sample.image).mask == ours).mean() > 0.999
    with pytest.raises(ValueError, match="3 bands; got 4"):
        cacseg.export(model, tmp_path / "other.onnx", **{**how, "bands": 3})


@pytest.mark.slow
def test_int8_is_calibrated_on_images_with_gaps(trained, tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    file = tmp_path / "model.onnx"
    options = ["--precision", "int8", "--accept"]
    assert run("export", trained / "geo", "-o", file, *options, capsys=capsys, monkeypatch=monkeypatch).code == 0
    assert file.stat().st_size > 0


def test_an_example_of_the_page_is_a_picture():
    ramp = np.linspace(0.0, 0.4, 80 * 60 * 4, dtype=np.float32).reshape(80, 60, 4)
    with serving(make_server(examples=[Example("first", lambda: ramp)])) as address:
        content = urllib.request.urlopen(f"{address}/api/examples/0").read()
    shown = np.array(Image.open(io.BytesIO(content)))
    assert shown.shape == (80, 60, 3)
    assert shown[:3].mean() < 20 < 230 < shown[-3:].mean()
