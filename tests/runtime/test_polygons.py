"""Polygons as tools take them: read back by our readers, in map coordinates, assembled from parts."""

import json
import warnings

import numpy as np
import pytest
from PIL import Image

from cacseg.data import open_data
from cacseg.data.spans import paint, polygon_spans
from cacseg.runtime.geojson import geojson_lines
from cacseg.runtime.places import place_of
from cacseg.runtime.polygons import coco_part, foreground, labelme_json, write_coco

CAR = np.zeros((12, 16), np.uint8)  # a ring of car around background, with a wheel and a corner in it
CAR[2:10, 3:13] = 1
CAR[4:8, 5:11] = 0
CAR[5, 6:8] = 2
CAR[8, 11] = 0
NAMES = {"background": ("background", "car", "wheel"), "_background_": ("_background_", "car", "wheel")}


@pytest.mark.parametrize("simplify", [0.0, 0.5])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("target", ["coco", "labelme"])
def test_a_ring_around_background_comes_back(target, names, simplify, tmp_path):
    Image.fromarray(np.zeros((*CAR.shape, 3), np.uint8)).save(tmp_path / "one.png")
    if target == "coco":
        write_coco(tmp_path / "coco.json", names, [coco_part(CAR, names, "one.png", simplify)])
        content = json.loads((tmp_path / "coco.json").read_text())
        areas = {one["category_id"]: one["area"] for one in content["annotations"]}
        assert areas == {2: int((CAR == 1).sum()), 3: 2}
        assert [one["bbox"] for one in content["annotations"]] == [[3, 2, 10, 8], [6, 5, 2, 1]]
    else:
        text = labelme_json(CAR, names, tmp_path / "one.png", tmp_path / "one.json", simplify)
        (tmp_path / "one.json").write_text(text)
    data = open_data("folder", tmp_path, "all")
    assert data.name == target
    place = np.array([data.class_names.index(one) if one in data.class_names else 0 for one in names])
    np.testing.assert_array_equal(data.read(0).labels, place[CAR])


def features(labels, place, names=NAMES["background"], start=(0, 0)):
    text = "".join(geojson_lines([(foreground(labels, names), start)], names, place, 0.0))
    return json.loads(text)


def drawn(content, shape, to_pixels=lambda points: points):
    """The even-odd rule over the rings of each feature."""
    labels = np.zeros(shape, np.uint8)
    for one in content["features"]:
        rings = [to_pixels(np.array(ring[:-1])) for ring in one["geometry"]["coordinates"]]
        assert all(ring[0] == ring[-1] for ring in one["geometry"]["coordinates"])
        spans = [polygon_spans(ring, np.array([len(ring)]), shape) for ring in rings]
        outer, *holes = (paint([one], np.ones(1, np.uint8), shape, 0, False) for one in spans)
        labels[(outer - sum(holes)).astype(bool)] = one["properties"]["index"]
    return labels


def turns(content):
    for one in content["features"]:
        for ring in one["geometry"]["coordinates"]:
            x, y = (np.array(ring) - ring[0]).T
            yield (x[:-1] * y[1:] - x[1:] * y[:-1]).sum()


def test_geojson_in_pixels_where_an_image_has_no_place(tmp_path):
    Image.fromarray(CAR).save(tmp_path / "one.tif")
    place = place_of(tmp_path / "one.tif", "wgs84")
    content = features(CAR, place)
    assert content["type"] == "FeatureCollection"
    assert "pixels" in content["coordinates"]
    assert [one["properties"] for one in content["features"]] == [
        {"class": "car", "index": 1, "area_pixels": int((CAR == 1).sum())},
        {"class": "wheel", "index": 2, "area_pixels": 2},
    ]
    np.testing.assert_array_equal(drawn(content, CAR.shape), CAR)
    assert [len(one["geometry"]["coordinates"]) for one in content["features"]] == [3, 1]
    assert [turn > 0 for turn in turns(content)] == [True, False, False, True]


def georeferenced(path, **place):
    rasterio = pytest.importorskip("rasterio")
    kind = {"driver": "GTiff", "count": 3, "height": CAR.shape[0], "width": CAR.shape[1], "dtype": "uint8", **place}
    with rasterio.open(path, "w", **kind) as file:
        file.write(np.zeros((3, *CAR.shape), np.uint8))


def test_geojson_in_longitude_and_latitude(tmp_path):
    affine = pytest.importorskip("affine")
    pytest.importorskip("rasterio")
    place = affine.Affine(0.2, 0.0, 500_000.0, 0.0, -0.2, 5_400_000.0)
    georeferenced(tmp_path / "city.tif", crs="EPSG:32632", transform=place)
    from rasterio.warp import transform

    def in_pixels(points):
        return (points - (500_000.0, 5_400_000.0)) / (0.2, -0.2)

    def back(points):
        x, y = transform("EPSG:4326", "EPSG:32632", *points.T)
        return in_pixels(np.stack([x, y], 1))

    content = features(CAR, place_of(tmp_path / "city.tif", "wgs84"))
    points = np.array(content["features"][0]["geometry"]["coordinates"][0])
    assert (np.abs(points - (9.0, 48.75)) < 0.01).all()  # the middle of zone 32
    np.testing.assert_array_equal(drawn(content, CAR.shape, back), CAR)
    assert [turn > 0 for turn in turns(content)] == [True, False, False, True]
    areas = [one["properties"]["area_square_metres"] for one in content["features"]]
    assert areas == [round(0.04 * (CAR == 1).sum(), 3), 0.08]
    assert "crs" not in content
    content = features(CAR, place_of(tmp_path / "city.tif", "map"))
    np.testing.assert_array_equal(drawn(content, CAR.shape, in_pixels), CAR)
    assert content["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32632"
    np.testing.assert_array_equal(drawn(features(CAR, place_of(tmp_path / "city.tif", "pixels")), CAR.shape), CAR)


def test_geojson_by_ground_control_points_and_by_a_world_file(tmp_path):
    control = pytest.importorskip("rasterio.control")
    corners = [(0, 0, 10.0, 50.0), (0, 16, 10.16, 50.0), (12, 0, 10.0, 49.88), (12, 16, 10.16, 49.88)]
    gcps = [control.GroundControlPoint(row, col, x, y) for row, col, x, y in corners]
    georeferenced(tmp_path / "gcps.tif", crs="EPSG:4326", gcps=gcps)
    Image.fromarray(np.zeros((*CAR.shape, 3), np.uint8)).save(tmp_path / "world.png")
    (tmp_path / "world.pgw").write_text("0.01\n0\n0\n-0.01\n10.005\n49.995\n")  # of the middle of the first pixel
    Image.open(tmp_path / "world.png").save(tmp_path / "notes.png")
    place = "<GeoTransform>10, 0.01, 0, 50, 0, -0.01</GeoTransform>"
    (tmp_path / "notes.png.aux.xml").write_text(f"<PAMDataset><SRS>EPSG:4326</SRS>{place}</PAMDataset>")
    for name, kind in (("gcps.tif", "WGS 84"), ("world.png", "unknown"), ("notes.png", "WGS 84")):
        content = features(CAR, place_of(tmp_path / name, "wgs84"))
        assert kind in content["coordinates"]
        np.testing.assert_array_equal(drawn(content, CAR.shape, lambda points: (points - (10, 50)) * (100, -100)), CAR)


def test_no_warning_and_no_rasterio_for_ordinary_images(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rasterio", None)
    Image.fromarray(CAR).save(tmp_path / "one.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert place_of(tmp_path / "one.png", "wgs84").transform is None
        (tmp_path / "one.png.aux.xml").write_text("<PAMDataset><Metadata/></PAMDataset>")
        assert place_of(tmp_path / "one.png", "wgs84").transform is None
    (tmp_path / "one.pgw").write_text("1\n0\n0\n-1\n0\n0\n")
    with pytest.raises(ModuleNotFoundError, match=r"one\.png.*rasterio.*--coordinates pixels"):
        place_of(tmp_path / "one.png", "wgs84")


def test_ids_of_coco_are_those_of_all_images(tmp_path):
    names = NAMES["background"]
    parts = [coco_part(CAR, names, f"{k}.png", 1.0) for k in range(3)]
    write_coco(tmp_path / "coco.json", names, parts)
    content = json.loads((tmp_path / "coco.json").read_text())
    assert [(one["id"], one["file_name"]) for one in content["images"]] == [(1, "0.png"), (2, "1.png"), (3, "2.png")]
    assert [one["id"] for one in content["annotations"]] == list(range(1, 7))
    assert [one["image_id"] for one in content["annotations"]] == [1, 1, 2, 2, 3, 3]
    assert [one["name"] for one in content["categories"]] == list(names)
    write_coco(tmp_path / "empty.json", names, [])
    assert json.loads((tmp_path / "empty.json").read_text())["images"] == []
