"""Large TIFF files, by windows."""

import json
import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from cacseg.engine import rasters
from cacseg.engine.backend import TorchBackend
from cacseg.engine.inference import Inference, Tiling
from cacseg.engine.rasters import predict_rasters, window_of
from cacseg.engine.tiles import Box
from cacseg.models import create_model
from cacseg.predictor import Predictor
from cacseg.runtime.decode import decode_image
from cacseg.runtime.folder import SaveOptions
from cacseg.runtime.inputs import find_images
from cacseg.runtime.journal import Journal
from cacseg.runtime.rasters import read_colours
from command_line import run

rasterio = pytest.importorskip("rasterio")
from affine import Affine  # noqa: E402
from rasterio.features import rasterize  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
TILING = Tiling(128, 32)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return create_model("fcn", 5, backbone="test_resnet", head_channels=16).eval()


def write(path, bands, **options):
    count, height, width = bands.shape
    kind = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": bands.dtype, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path, "w", **kind) as file:
            file.write(bands)


@pytest.fixture
def bands():
    return np.random.default_rng(0).integers(0, 256, (3, 300, 420), np.uint8)


def predict(model, path, out, **options):
    backend = TorchBackend(model, inference=Inference(tiling=TILING), device="cpu")
    with Journal(out, {}) as journal:
        return predict_rasters(backend, find_images([path]), journal, **options)


def test_a_geotiff_keeps_its_place_and_its_empty_pixels(model, bands, tmp_path):
    place = {"crs": "EPSG:32632", "transform": Affine(0.2, 0.0, 500_000.0, 0.0, -0.2, 5_400_000.0), "nodata": 0}
    bands[:, 100:120, 50:90] = 0
    write(tmp_path / "city.tif", bands, tiled=True, blockxsize=64, blockysize=64, **place)
    steps = []
    save = SaveOptions(confidence=True, entropy=True)
    done = predict(model, tmp_path / "city.tif", tmp_path / "out", save=save, step=lambda _, *n: steps.append(n))
    assert done == (1, 0, [])
    expected = Predictor(model, tile=128, overlap=32, device="cpu")(bands.transpose(1, 2, 0))
    with rasterio.open(tmp_path / "out/masks/city.tif") as file:
        mask = file.read(1)
        assert (file.crs, file.transform, file.nodata) == (place["crs"], place["transform"], 255)
        assert file.profile["tiled"]
        assert file.colormap(1)[0][:3] == tuple(expected.palette[0])
    assert (mask[100:120, 50:90] == 255).all()
    kept = mask != 255
    assert kept.sum() == 300 * 420 - 20 * 40
    assert np.array_equal(mask[kept], expected.mask[kept])
    with rasterio.open(tmp_path / "out/confidence/city.tif") as file:
        assert np.abs(file.read(1) / 255 - expected.confidence).max() <= 0.5 / 255 + 1e-6
    tiles = steps[-1][1]
    assert [done for done, _ in steps] == list(range(1, tiles + 1))
    assert predict(model, tmp_path / "city.tif", tmp_path / "out", save=save)[:2] == (0, 1)


def test_ground_control_points_of_an_unknown_system_are_kept(model, bands, tmp_path):
    points = [(0, 0, 10.0, 50.0), (0, 420, 14.2, 50.0), (300, 0, 10.0, 47.0), (300, 420, 14.2, 47.0)]
    points = [rasterio.control.GroundControlPoint(*point) for point in points]
    write(tmp_path / "city.tif", bands, gcps=points, crs=rasterio.crs.CRS())
    assert predict(model, tmp_path / "city.tif", tmp_path / "out", save=SaveOptions(overlays=False))[:2] == (1, 0)
    with rasterio.open(tmp_path / "out/masks/city.tif") as file:
        found, system = file.gcps
    assert not system
    assert [(one.row, one.col, one.x, one.y) for one in found] == [(one.row, one.col, one.x, one.y) for one in points]


def test_grey_and_four_bands(model, bands, tmp_path):
    write(tmp_path / "grey.tif", bands[:1])
    write(tmp_path / "four.tif", np.concatenate([bands, np.full_like(bands[:1], 255)]))
    assert predict(model, tmp_path, tmp_path / "out").written == 2
    for name, shown in (("grey", bands[[0, 0, 0]]), ("four", bands)):
        with rasterio.open(tmp_path / f"out/masks/{name}.tif") as file:
            expected = Predictor(model, tile=128, overlap=32, device="cpu")(shown.transpose(1, 2, 0)).mask
            assert (file.read(1) == expected).all()


def of_bands(kind, bands):
    """A file of one band, and how it is written."""
    grey = bands[:1]
    return {
        "palette": (grey // 16, {"photometric": "palette"}),
        "two colours": (grey // 128, {"nbits": 1}),
        "two colours, white first": (grey // 128, {"nbits": 1, "photometric": "miniswhite"}),
        "grey, white first": (grey, {"photometric": "miniswhite"}),
    }[kind]


@pytest.mark.parametrize("kind", ["palette", "two colours", "two colours, white first", "grey, white first"])
def test_one_band_is_read_as_the_whole_image_is(kind, bands, tmp_path):
    values, options = of_bands(kind, bands)
    write(tmp_path / "x.tif", values, **options)
    if kind == "palette":
        with rasterio.open(tmp_path / "x.tif", "r+") as file:
            file.write_colormap(1, {k: (15 * k, 255 - 7 * k, 3 * k * k % 256) for k in range(16)})
    expected = decode_image((tmp_path / "x.tif").read_bytes(), "x.tif")
    assert len(np.unique(expected)) > 1
    with rasterio.open(tmp_path / "x.tif") as file:
        found = read_colours(file, window_of(Box(20, 40, 300, 410)))
    assert np.array_equal(found.transpose(1, 2, 0), expected[20:300, 40:410])


def test_a_palette_is_predicted_in_colours(model, bands, tmp_path):
    write(tmp_path / "x.tif", bands[:1] // 16, photometric="palette")
    with rasterio.open(tmp_path / "x.tif", "r+") as file:
        file.write_colormap(1, {k: (15 * k, 255 - 7 * k, 3 * k * k % 256) for k in range(16)})
    assert predict(model, tmp_path / "x.tif", tmp_path / "out").written == 1
    expected = Predictor(model, tile=128, overlap=32, device="cpu")(tmp_path / "x.tif").mask
    with rasterio.open(tmp_path / "out/masks/x.tif") as file:
        assert np.array_equal(file.read(1), expected)


def test_a_file_that_cannot_be_read_is_named_and_nothing_is_left(model, bands, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    write(photos / "good.tif", bands)
    write(photos / "deep.tif", bands.astype(np.uint16))
    whole = (photos / "good.tif").read_bytes()
    (photos / "cut.tif").write_bytes(whole[: len(whole) // 2])
    (photos / "text.tif").write_text("no image")
    done = predict(model, photos, tmp_path / "out")
    assert done.written == 1
    assert sorted(one.path.name for one in done.failed) == ["cut.tif", "deep.tif", "text.tif"]
    assert sorted(path.name for path in (tmp_path / "out/masks").iterdir()) == ["good.tif"]


def test_polygons_by_windows_are_those_of_the_mask(model, bands, tmp_path, monkeypatch):
    """Cut where a window ends, in map coordinates, and made anew when they are gone."""
    monkeypatch.setattr(rasters, "WINDOW", 128)
    bands[:, 100:120, 50:90] = 0
    place = {"crs": "EPSG:32632", "transform": Affine(0.2, 0.0, 500_000.0, 0.0, -0.2, 5_400_000.0), "nodata": 0}
    write(tmp_path / "city.tif", bands, **place)
    save = SaveOptions(False, polygons="geojson", simplify=0.0, coordinates="map")
    assert predict(model, tmp_path / "city.tif", tmp_path / "out", save=save).written == 1
    path = tmp_path / "out/geojson/city.geojson"
    content = json.loads(path.read_text())
    with rasterio.open(tmp_path / "out/masks/city.tif") as file:
        mask = file.read(1)
    shapes = [(one["geometry"], one["properties"]["index"] + 1) for one in content["features"]]
    drawn = rasterize(shapes, mask.shape, transform=place["transform"])
    np.testing.assert_array_equal(drawn, np.where(mask == 255, 0, mask + 1))
    pixels = sum(one["properties"]["area_pixels"] for one in content["features"])
    assert pixels == (mask != 255).sum()
    before = path.read_bytes()
    path.unlink()
    assert predict(model, tmp_path / "city.tif", tmp_path / "out", save=save).written == 1
    assert path.read_bytes() == before
    assert predict(model, tmp_path / "city.tif", tmp_path / "out", save=save).skipped == 1


@pytest.mark.parametrize("target", ["coco", "labelme"])
def test_other_polygons_of_rasters_are_refused(target, model, bands, tmp_path, capsys, monkeypatch):
    model.save(tmp_path / "model.safetensors")
    write(tmp_path / "city.tif", bands)
    arguments = ("predict", tmp_path / "model.safetensors", tmp_path / "city.tif", "-o", tmp_path / "out")
    done = run(*arguments, "--tile", 128, "--overlap", 32, "--format", target, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert "--format geojson" in done.err
    assert not (tmp_path / "out").exists()
    Image.fromarray(bands.transpose(1, 2, 0)).save(tmp_path / "city.png")  # decoded whole
    arguments = (*arguments[:2], tmp_path / "city.png", "-o", tmp_path / "out", "--overlap", 32)
    assert run(*arguments, "--tile", 128, "--format", target, capsys=capsys, monkeypatch=monkeypatch).code == 0
    assert (tmp_path / "out" / {"coco": "coco.json", "labelme": "labelme/city.json"}[target]).is_file()


def test_the_command(model, bands, tmp_path, capsys, monkeypatch):
    model.save(tmp_path / "model.safetensors")
    write(tmp_path / "city.tif", bands)
    paths = (tmp_path / "model.safetensors", tmp_path / "city.tif", "-o", tmp_path / "out", "--device", "cpu")
    done = run("predict", *paths, "--tile", 128, "--overlap", 32, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    with rasterio.open(tmp_path / "out/masks/city.tif") as file:
        assert file.shape == (300, 420)
    again = run("predict", *paths, "--tile", 128, "--overlap", 64, capsys=capsys, monkeypatch=monkeypatch)
    assert again.code == 2
    assert "overlap" in again.err


def test_a_mask_is_as_small_as_one_that_is_written_at_once(model, bands, tmp_path, monkeypatch):
    monkeypatch.setattr("cacseg.engine.rasters.CACHE", 100_000)  # bytes, so that GDAL keeps one block
    write(tmp_path / "city.tif", np.tile(bands, (1, 2, 2)), tiled=True)
    predict(model, tmp_path / "city.tif", tmp_path / "out")
    written = tmp_path / "out/masks/city.tif"
    with rasterio.open(written) as file:
        mask, profile, colours = file.read(), file.profile, file.colormap(1)
    with rasterio.open(tmp_path / "again.tif", "w", **profile) as file:
        file.write_colormap(1, colours)
        file.write(mask)
    assert written.stat().st_size <= 1.01 * (tmp_path / "again.tif").stat().st_size


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
def test_no_file_takes_the_batch_down(model, bands, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    write(photos / "good.tif", bands)
    write(photos / f"{'n' * 249}.tif", bands)  # whose polygons cannot be called after it
    os.mkfifo(photos / "pipe.tif")
    (photos / "nowhere.tif").symlink_to("gone.tif")
    (photos / "list.tif").write_text(  # of other files, which GDAL would open, on the network too
        "<VRTDataset rasterXSize='300' rasterYSize='300'><VRTRasterBand dataType='Byte' band='1'><SimpleSource>"
        "<SourceFilename relativeToVRT='1'>good.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource>"
        "</VRTRasterBand></VRTDataset>"
    )
    found = predict(model, photos, tmp_path / "out", save=SaveOptions(overlays=False, polygons="geojson"))
    assert found.written == 1
    reasons = {failure.path.name: failure.reason for failure in found.failed}
    words = {"pipe.tif": "pipe", "nowhere.tif": "gone.tif", "list.tif": "list.tif"}
    words |= {f"{'n' * 249}.tif": "geojson"}
    assert set(reasons) == set(words)
    for name, word in words.items():
        assert word in reasons[name]


def test_a_file_that_changes_while_it_is_read_is_a_failure(model, bands, tmp_path):
    write(tmp_path / "x.tif", bands)

    def step(item, done, total):
        os.utime(item.path, ns=(done, done))

    found = predict(model, tmp_path / "x.tif", tmp_path / "out", step=step)
    assert (found.written, len(found.failed)) == (0, 1)
    assert "changed" in found.failed[0].reason
    assert predict(model, tmp_path / "x.tif", tmp_path / "out").written == 1
