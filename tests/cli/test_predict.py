"""`cacseg predict` as a user runs it, in this process."""

import json
import os
import sys

import numpy as np
import pytest
from PIL import Image

import bad_files as bad
from cacseg.data import open_data
from command_line import run
from distributed_evaluation import small_model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("prediction")
    model = small_model(("grass", "sky", "stone"))
    model.palette = [[10, 200, 10], [10, 10, 200], [90, 90, 90]]
    model.save(root / "model.safetensors")
    numbers = np.random.default_rng(0)
    for name in ("photos/one.png", "photos/more/one.png", "other/two.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (40, 48, 3), np.uint8)).save(root / name)
    return root


def test_files_folders_and_globs(place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(place)
    arguments = ("predict", "model.safetensors", "photos", "other/*.jpg", "photos/one.png", "-o", tmp_path / "out")
    done = run(*arguments, "--confidence", "--entropy", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert "3 of 3 images predicted" in done.out
    for name in ("photos/one", "photos/more/one", "other/two"):
        for file in (f"masks/{name}.png", f"overlays/{name}.jpg", f"confidence/{name}.png", f"entropy/{name}.png"):
            assert (tmp_path / "out" / file).is_file()
    with Image.open(tmp_path / "out/masks/photos/one.png") as mask:
        assert mask.mode == "P"
        assert mask.getpalette()[:3] == [10, 200, 10]
    again = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert again.code == 0
    assert "0 of 3 images predicted" in again.out
    assert "3 were done before" in again.out
    other = run(*arguments, "--flip", capsys=capsys, monkeypatch=monkeypatch)
    assert other.code == 2
    assert "made with other options (flip was False and is now True)" in other.err
    options = json.loads((tmp_path / "out/predict.json").read_text())
    assert options["flip"] is False
    assert run(*arguments, "--flip", "--overwrite", capsys=capsys, monkeypatch=monkeypatch).code == 0


def test_the_exit_code_tells_of_broken_images(place, tmp_path, capsys, monkeypatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/good.png").write_bytes((place / "photos/one.png").read_bytes())
    (tmp_path / "photos/bad.png").write_bytes((place / "photos/one.png").read_bytes()[:500])
    arguments = ("predict", place / "model.safetensors", tmp_path / "photos", "-o", tmp_path / "out", "--no-overlays")
    done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 1
    assert "1 of 2 images predicted" in done.out
    assert "bad.png is damaged" in done.err
    assert "1 of 2 images could not be predicted" in done.err
    assert (tmp_path / "out/masks/good.png").is_file()
    assert not (tmp_path / "out/overlays").exists()
    (tmp_path / "photos/bad.png").write_bytes((place / "photos/one.png").read_bytes())
    assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch).code == 0


def test_files_of_a_folder_that_are_not_taken_are_told(place, tmp_path, capsys, monkeypatch):
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (40, 30)).save(photos / "a.png")
    for name in ("b.heic", "c.jp2", "notes.txt"):
        (photos / name).write_bytes(b"x")
    arguments = ("predict", place / "model.safetensors", photos, "-o", tmp_path / "out")
    done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0
    (line,) = [line for line in done.err.splitlines() if ".heic" in line]
    assert all(word in line for word in ("2 files", ".jp2", ".webp"))
    assert ".txt" not in line


def test_the_prediction_of_the_plain_classifier(place, tmp_path, capsys, monkeypatch):
    masks = []
    for extra in ((), ("--plain",)):
        out = tmp_path / f"out{len(extra)}"
        arguments = ("predict", place / "model.safetensors", place / "other", "-o", out, *extra)
        assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch).code == 0
        with Image.open(out / "masks/two.png") as mask:
            masks.append(np.asarray(mask))
    assert not np.array_equal(*masks)


def test_workers_by_torchrun_and_by_argument(place, tmp_path, capsys, monkeypatch):
    """Each predicts its share; a broken image is no failure to torchrun, which would end the other workers."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for k in range(12):
        (photos / f"{k}.png").write_bytes((place / "photos/one.png").read_bytes())
    (photos / "bad.png").write_bytes(b"no image")
    arguments = ("predict", place / "model.safetensors", photos, "-o", tmp_path / "out", "--no-overlays")
    masks, codes = [], []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        for name, value in (("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")):
            monkeypatch.setenv(name, value)
        done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
        assert done.code == 0
        assert f"shard {rank + 1} of 2" in done.err
        masks.append({path.stem for path in (tmp_path / "out/masks").iterdir()})
    assert 0 < len(masks[0]) < 12
    assert masks[1] == {str(k) for k in range(12)}
    for shard in ("1/3", "2/3", "3/3", "1/1"):
        codes.append(run(*arguments, "--shard", shard, capsys=capsys, monkeypatch=monkeypatch).code)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    for shard in ("1/3", "2/3", "3/3", "1/1"):
        codes.append(run(*arguments, "--shard", shard, capsys=capsys, monkeypatch=monkeypatch).code)
    assert codes[:4] == [0, 0, 0, 1]
    assert sorted(codes[4:7]) == [0, 0, 1]
    assert codes[7] == 1
    assert len((tmp_path / "out/index.csv").read_text().splitlines()) == 13


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.safetensors", "photos", "-o", "out", "--shard", "3/2"), "--shard must be like 3/8"),
        (("model.safetensors", "nowhere.jpg", "-o", "out"), "there is no file or folder nowhere.jpg"),
        (("none.safetensors", "photos", "-o", "out"), "there is no model"),
        (("model.safetensors", "photos", "-o", "photos/one.png"), "is a file"),
        (("model.safetensors", "photos", "-o", "other"), "holds files that are no predictions"),
        (("model.safetensors", "photos", "-o", "out", "--bits", 12), "8 or 16 bits; got 12"),
        (("model.safetensors", "photos", "-o", "out", "--device", "cuda:99"), "there is no device 'cuda:99'"),
        (("model.safetensors", "photos", "-o", "out", "--precision", "int8"), "precision must be"),
    ],
)
def test_what_is_refused(place, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    done = run("predict", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("target", ["labelme", "coco"])
def test_polygons_for_labelling_tools(target, place, tmp_path, capsys, monkeypatch):
    """Without simplification they draw the mask again; corrected, they are data to train on."""
    (tmp_path / "photos").mkdir()
    for k in range(2):
        noise = np.random.default_rng(k).integers(0, 256, (40, 48, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / f"photos/{k}.png")
    arguments = ("predict", place / "model.safetensors", tmp_path / "photos", "-o", tmp_path / "out", "--no-overlays")
    arguments += ("--format", target, "--simplify", "0")
    for _ in range(2):  # made anew, and resumed
        assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch).code == 0
    if target == "coco":
        (tmp_path / "out/coco.json").rename(tmp_path / "photos/coco.json")
    else:
        for path in (tmp_path / "out/labelme").glob("*.json"):
            stated = json.loads(path.read_text())["imagePath"]
            assert (path.parent / stated).resolve() == (tmp_path / "photos" / f"{path.stem}.png").resolve()
            path.rename(tmp_path / "photos" / path.name)
    data = open_data("folder", tmp_path / "photos", "all", uncovered="ignore")
    names = ["grass", "sky", "stone"]
    for k in range(2):
        mask = np.asarray(Image.open(tmp_path / f"out/masks/{data.image_name(k)}.png"))
        place_of = np.array([data.class_names.index(one) if one in data.class_names else 255 for one in names])
        np.testing.assert_array_equal(data.read(k).labels, place_of[mask])


def test_shards_and_resumed_runs_share_one_coco_file(place, tmp_path, capsys, monkeypatch):
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for k in range(5):
        (photos / f"{k}.png").write_bytes((place / "photos/one.png").read_bytes())
    arguments = ("predict", place / "model.safetensors", photos, "-o", out, "--no-overlays", "--format", "coco")
    counts = []
    for shard in ("1/2", "2/2"):
        assert run(*arguments, "--shard", shard, capsys=capsys, monkeypatch=monkeypatch).code == 0
        counts.append(len(json.loads((out / "coco.json").read_text())["images"]))
    assert 0 < counts[0] < counts[1] == 5
    content = (out / "coco.json").read_text()
    kept = (out / "coco/0.json").stat().st_mtime_ns
    (out / "coco/1.json").unlink()
    (out / "coco.json").unlink()
    again = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert "1 of 5 images predicted" in again.out
    assert (out / "coco.json").read_text() == content
    assert (out / "coco/0.json").stat().st_mtime_ns == kept


@pytest.mark.parametrize(("target", "file"), [("coco", "coco.json"), ("labelme", "labelme/one.json")])
def test_polygons_of_frames_in_their_order(target, file, place, tmp_path, capsys, monkeypatch):
    arguments = ("predict", place / "model.safetensors", place / "photos/more", "-o", tmp_path / "out", "--carry", 0.5)
    assert run(*arguments, "--format", target, capsys=capsys, monkeypatch=monkeypatch).code == 0
    assert "one.png" in (tmp_path / "out" / file).read_text()


@pytest.mark.parametrize("target", ["coco", "labelme", "geojson"])
def test_polygons_of_videos_are_refused(target, place, tmp_path, capsys, monkeypatch):
    for source, out in (("film.mp4", "out"), (place / "photos", "out.mp4")):
        arguments = ("predict", place / "model.safetensors", source, "-o", tmp_path / out, "--format", target)
        done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
        assert done.code == 2
        assert f"--format {target}" in done.err
        assert len(done.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_geojson_of_ordinary_images(place, tmp_path, capsys, monkeypatch):
    arguments = ("predict", place / "model.safetensors", place / "other", "-o", tmp_path / "out", "--format", "geojson")
    assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch).code == 0
    content = json.loads((tmp_path / "out/geojson/two.geojson").read_text())
    mask = np.asarray(Image.open(tmp_path / "out/masks/two.png"))
    pixels = np.zeros(3, int)
    for one in content["features"]:
        pixels[one["properties"]["index"]] += one["properties"]["area_pixels"]
    assert pixels.tolist() == np.bincount(mask.ravel(), minlength=3).tolist()
    other = run(*arguments, "--coordinates", "pixels", capsys=capsys, monkeypatch=monkeypatch)
    assert other.code == 2
    assert "coordinates was 'wgs84' and is now 'pixels'" in other.err


@pytest.mark.parametrize("options", [("--overlap", 64), ("--tile-context", "tile"), ("--keep", 0)])
def test_options_of_tiles_need_tiles(options, place, tmp_path, capsys, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"not read")
    for model, words in (
        (place / "model.safetensors", (options[0], "--tile 1024")),
        (tmp_path / "model.onnx", ("own windows",)),
    ):
        arguments = ("predict", model, place / "photos", "-o", tmp_path / "out")
        done = run(*arguments, *options, capsys=capsys, monkeypatch=monkeypatch)
        assert done.code == 2
        assert all(word in done.err for word in words)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tiles", [(), ("--tile", 64, "--overlap", 0)])
def test_a_large_file_is_named(place, tmp_path, capsys, monkeypatch, tiles):
    monkeypatch.setattr(sys.modules["cacseg.cli.predict"], "LARGE", 40 * 50 - 1)
    monkeypatch.setattr(sys.modules["cacseg.cli.predict"], "LARGE_FILE", 1000)
    numbers = np.random.default_rng(0)
    for name, shape in (("large", (40, 50, 3)), ("small", (30, 50, 3))):
        Image.fromarray(numbers.integers(0, 256, shape, np.uint8)).save(tmp_path / f"{name}.png")
    arguments = (place / "model.safetensors", tmp_path / "*.png", "-o", tmp_path / "out", "--device", "cpu", *tiles)
    done = run("predict", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert "large.png" in done.err
    assert "small.png" not in done.err
    assert ("--tile" in done.err) == (not tiles)


@pytest.mark.parametrize(("options", "tiled"), [((), True), (("--whole",), False), (("--flip",), False)])
def test_who_raises_the_limit_gets_tiles(options, tiled, place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["cacseg.cli._options"], "TILE", 32)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 100, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    arguments = (place / "model.safetensors", tmp_path / "wide.png", "--device", "cpu", *options)
    more = ("--max-pixels", "1e9", *(("--overlap", 0) if tiled else ()))
    raised = run("predict", *arguments, "-o", tmp_path / "a", *more, capsys=capsys, monkeypatch=monkeypatch)
    usual = run("predict", *arguments, "-o", tmp_path / "b", capsys=capsys, monkeypatch=monkeypatch)
    assert (raised.code, usual.code) == (0, 0)
    assert ("tiles of 32" in raised.err) == tiled
    masks = [(tmp_path / name / "masks/wide.png").read_bytes() for name in "ab"]
    assert (masks[0] != masks[1]) == tiled  # tiles overlap by less than the network sees


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
def test_what_would_take_it_down_is_named_and_the_rest_goes_on(place, tmp_path, capsys, monkeypatch):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "good.png").write_bytes((place / "photos/one.png").read_bytes())
    words = bad.make_traps(photos) | dict.fromkeys(bad.CLAIMS, "more than 256 megapixels")
    for name, content in bad.CLAIMS.items():
        (photos / name).write_bytes(content)
    bad.make_loops(photos)
    arguments = ("predict", place / "model.safetensors", photos, "-o", tmp_path / "out")
    done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 1
    assert f"1 of {len(words) + 1} images predicted" in done.out
    lines = done.err.splitlines()
    for name, word in words.items():
        assert any(f"/{name} " in line and word in line for line in lines)
    assert len([line for line in lines if line.startswith("error:")]) == len(words) + 1  # and how many they are
    refused = run(*arguments, "--max-pixels", "1e3", "--overwrite", capsys=capsys, monkeypatch=monkeypatch)
    assert "good.png has 48x40 pixels, more than 0.001 megapixels" in refused.err
    assert (
        run(
            "predict",
            place / "model.safetensors",
            photos / "pipe.png",
            "-o",
            tmp_path / "one",
            capsys=capsys,
            monkeypatch=monkeypatch,
        ).code
        == 2
    )
    frames = run(*arguments[:3], "-o", tmp_path / "frames", "--carry", "0.5", capsys=capsys, monkeypatch=monkeypatch)
    assert frames.code == 1
    assert "1 frames predicted" in frames.out
    for name in words:
        assert f"/{name} " in frames.err
