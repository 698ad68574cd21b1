"""Prediction as a user meets it: files in, files out, again and again, with broken ones among them."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import bad_files as bad
from cacseg.data import normalise
from cacseg.engine import backend as module
from cacseg.engine.backend import TorchBackend
from cacseg.engine.inference import Inference
from cacseg.runtime import folder as writing
from cacseg.runtime import memory
from cacseg.runtime.folder import SaveOptions, predict_files
from cacseg.runtime.inputs import find_images
from cacseg.runtime.journal import Journal
from distributed_evaluation import small_model

PALETTE = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def photos(tmp_path):
    numbers = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for name, size in (
        ("a/one.png", (40, 48)),
        ("b/one.png", (33, 47)),
        ("two.png", (40, 48)),
        ("three.png", (40, 48)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (*size, 3), np.uint8)).save(folder / name)
    return folder


def run(model, photos, out, options=None, overwrite=False, inference=None, **arguments):
    backend = TorchBackend(model, palette=PALETTE, inference=inference or Inference(), device="cpu", precision="fp32")
    with Journal(out, options or {"model": "m"}, overwrite=overwrite) as journal:
        return predict_files(backend, find_images([photos], out), journal, **{"workers": 2, **arguments})


def load(path):
    with Image.open(path) as picture:
        picture.load()
        return picture


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def expected_logits(model, path):
    pixels = np.asarray(load(path).convert("RGB"))
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
    with torch.no_grad():
        return model(normalise(planes, model.mean, model.std))[0]


def test_masks_overlays_and_maps(model, photos, tmp_path):
    out = tmp_path / "out"
    wanted = SaveOptions(overlays=True, confidence=True, entropy=True)
    assert run(model, photos, out, save=wanted, batch=1) == (4, 0, [])
    names = ["a/one", "b/one", "three", "two"]
    assert files(out) == sorted(
        [".lock", "index.csv", "predict.json"]
        + [f"{kind}/{name}.png" for kind in ("masks", "confidence", "entropy") for name in names]
        + [f"overlays/{name}.jpg" for name in names]
    )
    for name in names:
        logits = expected_logits(model, photos / f"{name}.png")
        mask = load(out / f"masks/{name}.png")
        assert mask.mode == "P"
        assert mask.getpalette()[:9] == [value for colour in PALETTE for value in colour]
        assert np.array_equal(np.asarray(mask), logits.argmax(0).numpy())
        probabilities = logits.softmax(0)
        confidence = np.asarray(load(out / f"confidence/{name}.png")) / 255
        assert abs(confidence - probabilities.amax(0).numpy()).max() <= 0.5 / 255 + 1e-6
        entropy = -(probabilities * probabilities.log()).sum(0) / math.log(3)
        assert abs(np.asarray(load(out / f"entropy/{name}.png")) / 255 - entropy.numpy()).max() < 0.5 / 255 + 1e-6
        assert load(out / f"overlays/{name}.jpg").size == mask.size


def test_maps_of_sixteen_bits(model, photos, tmp_path):
    run(model, photos / "a", tmp_path / "out", save=SaveOptions(False, confidence=True, bits=16))
    found = np.asarray(load(tmp_path / "out/confidence/one.png"))
    expected = expected_logits(model, photos / "a/one.png").softmax(0).amax(0).numpy()
    assert found.max() > 255
    assert abs(found / 65535 - expected).max() <= 0.5 / 65535 + 1e-6


@pytest.mark.parametrize("inference", [Inference(flip=True), Inference((32, 32), (16, 16))])
def test_other_inference_and_batches_give_masks_of_the_image_size(model, photos, tmp_path, inference):
    wanted = SaveOptions(overlays=False, confidence=True)
    assert run(model, photos, tmp_path / "out", inference=inference, batch=3, save=wanted).written == 4
    for name in ("a/one", "b/one", "two"):
        assert load(tmp_path / f"out/masks/{name}.png").size == load(photos / f"{name}.png").size


def test_a_broken_image_is_reported_and_the_rest_goes_on(model, photos, tmp_path):
    whole = (photos / "two.png").read_bytes()
    (photos / "broken.png").write_bytes(whole[: len(whole) // 2])
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "text.jpg").write_text("no image")
    found = run(model, photos, tmp_path / "out", batch=2)
    assert found.written == 4
    assert sorted(one.path.name for one in found.failed) == ["broken.png", "empty.jpg", "text.jpg"]
    assert all(str(one.path) in one.reason for one in found.failed)
    assert not (tmp_path / "out/masks/broken.png").exists()
    assert run(model, photos, tmp_path / "out", batch=2)[:2] == (0, 4)


def test_originals_behind_links_are_never_written_to(model, photos, tmp_path):
    linked = tmp_path / "a/b/linked"
    linked.mkdir(parents=True)
    for name in ("two.png", "three.png"):
        os.symlink(f"../../../photos/{name}", linked / name)
    before = {path: path.read_bytes() for path in photos.rglob("*.png")}
    assert run(model, linked, tmp_path / "out").written == 2
    assert {path: path.read_bytes() for path in photos.rglob("*.*")} == before
    assert {"masks/two.png", "masks/three.png", "overlays/two.jpg"} <= set(files(tmp_path / "out"))


def test_what_is_done_is_skipped(model, photos, tmp_path):
    out = tmp_path / "out"
    run(model, photos / "a", out)
    before = (out / "masks/one.png").stat().st_mtime_ns
    Image.fromarray(np.zeros((40, 48, 3), np.uint8)).save(photos / "a/new.png")
    assert run(model, photos / "a", out)[:2] == (1, 1)
    assert (out / "masks/one.png").stat().st_mtime_ns == before
    (out / "masks/one.png").unlink()
    assert run(model, photos / "a", out)[:2] == (1, 1)
    assert run(model, photos / "a", out, save=SaveOptions(entropy=True))[:2] == (2, 0)
    Image.fromarray(np.zeros((50, 48, 3), np.uint8)).save(photos / "a/one.png")  # another image under the same name
    assert run(model, photos / "a", out)[:2] == (1, 1)
    assert load(out / "masks/one.png").size == (48, 50)


@pytest.mark.parametrize(("place", "step"), [(module, "predict_each"), (writing, "write_prediction")])
def test_an_image_that_changes_while_it_is_predicted_is_predicted_anew(
    place, step, model, photos, tmp_path, monkeypatch
):
    """What is recorded is the file that was read, not the one that lies there when its mask is written."""
    out, real, changing = tmp_path / "out", getattr(place, step), photos / "a/one.png"

    def slow(*arguments):
        Image.fromarray(np.full((40, 48, 3), 200, np.uint8)).save(changing)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(place, step, slow)
        assert run(model, photos / "a", out) == (1, 0, [])
    before = (out / "masks/one.png").read_bytes()
    assert run(model, photos / "a", out) == (1, 0, [])
    run(model, changing, tmp_path / "alone")
    assert (out / "masks/one.png").read_bytes() == (tmp_path / "alone/masks/one.png").read_bytes() != before
    assert run(model, photos / "a", out) == (0, 1, [])


def test_a_stop_in_the_middle_costs_what_was_under_way(model, photos, tmp_path):
    out = tmp_path / "out"

    class Stop(Exception):
        pass

    def stop(done, _):
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        run(model, photos, out, workers=0, progress=stop)
    assert not [name for name in files(out) if name.endswith(".tmp")]
    index = out / "index.csv"
    index.write_bytes(index.read_bytes()[:-7])  # killed while it wrote the row of the second image
    assert run(model, photos, out, workers=0)[:2] == (3, 1)
    assert len(index.read_text().splitlines()) == 5
    assert run(model, photos, out)[:2] == (0, 4)


def test_one_process_a_folder(model, photos, tmp_path):
    out = tmp_path / "out"
    run(model, photos / "a", out)
    (out / "masks/.12.34.tmp").write_bytes(b"half")  # a killed process left it
    (out / "masks/.mine.tmp").write_bytes(b"whole")
    script = f"""
from pathlib import Path
from cacseg.runtime.journal import Journal
Journal(Path({str(out)!r}), {{"model": "m"}})
"""
    with Journal(out, {"model": "m"}):
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"OSError: another process is predicting in {out}" in other.stderr
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    assert [name for name in files(out) if name.endswith(".tmp")] == ["masks/.mine.tmp"]


def test_progress_counts_what_was_done_before(model, photos, tmp_path):
    told = []
    run(model, photos / "a", tmp_path / "out", progress=lambda *numbers: told.append(numbers))
    run(model, photos / "a", tmp_path / "out", progress=lambda *numbers: told.append(numbers))
    assert told == [(0, 0), (1, 0), (1, 0)]


def test_names_that_are_no_utf8(model, photos, tmp_path):
    os.rename(os.fsencode(photos / "a/one.png"), os.fsencode(photos / "a") + b"/b\xff.png")
    out = tmp_path / "out"
    assert run(model, photos / "a", out)[:2] == (1, 0)
    assert os.listdir(os.fsencode(out / "masks")) == [b"b\xff.png"]
    assert run(model, photos / "a", out)[:2] == (0, 1)


def test_names_as_long_as_the_system_takes_them(model, photos, tmp_path):
    (photos / "a/one.png").rename(photos / "a" / f"{'n' * 251}.png")
    assert run(model, photos / "a", tmp_path / "out")[:2] == (1, 0)


def test_an_image_too_wide_for_a_jpeg_does_not_end_it(model, photos, tmp_path):
    Image.fromarray(np.zeros((2, 65501, 3), np.uint8)).save(photos / "a/wide.png")
    found = run(model, photos / "a", tmp_path / "out")
    assert found.written == 1
    assert "wide.png is 65501x2; overlays are JPEGs, at most 65500 pixels" in found.failed[0].reason
    found = run(
        model,
        photos / "a",
        tmp_path / "out",
        save=SaveOptions(overlays=False),
        inference=Inference((32, 4096), (32, 4096), window_batch=4),
    )
    assert found[:2] == (1, 1)


def test_other_options_are_refused(model, photos, tmp_path):
    out = tmp_path / "out"
    run(model, photos, out, {"model": "m", "window": None})
    with pytest.raises(ValueError, match=r"made with other options \(window was None and is now \[32, 32\]\)"):
        run(model, photos, out, {"model": "m", "window": (32, 32)})
    assert json.loads((out / "predict.json").read_text()) == {"model": "m", "window": None}
    again = run(model, photos, out, {"model": "m", "window": (32, 32)}, overwrite=True)
    assert again[:2] == (4, 0)


def test_files_of_others_are_left_alone(model, photos, tmp_path):
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/hand_made.png").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="holds files that are no predictions"):
        run(model, photos, tmp_path / "labels")
    with pytest.raises(NotADirectoryError, match="is a file"):
        run(model, photos, photos / "two.png")
    run(model, photos / "a", tmp_path / "out")
    with pytest.raises(
        FileExistsError, match=r"index.csv holds the prediction of .*a/one.png under the name one, which .*b/one"
    ):
        run(model, photos / "b", tmp_path / "out")


def test_memory_that_runs_out(model, photos, tmp_path, monkeypatch):
    """Batches are taken apart; what does not fit alone is a failure of that image."""
    real = module.predict_each

    def small_device(networks, shown, size, inference):
        if shown[0].shape[0] > 1 or size == (33, 47):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(networks, shown, size, inference)

    monkeypatch.setattr(module, "predict_each", small_device)
    found = run(model, photos, tmp_path / "out", batch=3)
    assert found.written == 3
    assert [one.path.name for one in found.failed] == ["one.png"]
    words = ("one.png", "47x33 did not fit into the memory of cpu", "a smaller batch", "--tile", "--slide")
    assert all(word in found.failed[0].reason for word in words)


def test_a_disk_that_is_full_ends_it(model, photos, tmp_path, monkeypatch):
    def full(source, target):
        if str(target).endswith("two.png"):
            raise OSError(28, "No space left on device")
        return real(source, target)

    real = os.replace
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"two.png could not be written.*No space left on device.*Free some space"):
        run(model, photos, tmp_path / "out")
    assert not [name for name in files(tmp_path / "out") if name.endswith(".tmp")]
    monkeypatch.setattr(os, "replace", real)
    assert run(model, photos, tmp_path / "out").failed == []
    assert (tmp_path / "out/masks/two.png").exists()


def test_kinds_of_images(model, tmp_path):
    """Grey, transparent, palette and 16-bit ones are read as colours, photographs are turned upright."""
    folder = tmp_path / "photos"
    folder.mkdir()
    numbers = np.random.default_rng(0)
    grey = numbers.integers(0, 256, (40, 48), np.uint8)
    Image.fromarray(grey).save(folder / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(folder / "deep.png")
    Image.fromarray(grey).convert("RGBA").save(folder / "clear.png")
    Image.fromarray(grey).convert("P").save(folder / "palette.png")
    turned = Image.fromarray(np.rot90(grey))  # as a camera held upright stores it
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(folder / "held.png", exif=exif)
    turned.save(folder / "photo.jpg", exif=exif)
    assert run(model, folder, tmp_path / "out").failed == []
    masks = {path.stem: np.asarray(load(path)) for path in (tmp_path / "out/masks").iterdir()}
    for name in ("deep", "clear", "palette"):
        assert np.array_equal(masks[name], masks["grey"]), name
    assert masks["photo"].shape == (40, 48)


@pytest.mark.parametrize(
    ("arguments", "words"), [(dict(bits=12), "8 or 16 bits; got 12"), (dict(opacity=2.0), r"in \[0, 1\]; got 2.0")]
)
def test_what_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        SaveOptions(**arguments)


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
def test_no_file_takes_the_batch_down(model, photos, tmp_path):
    """Claims of any size, pipes, links, names that are too long: each is a failure that names the file."""
    words = bad.make_traps(photos) | dict.fromkeys(bad.CLAIMS, "--max-pixels")
    for name, content in bad.CLAIMS.items():
        (photos / name).write_bytes(content)
    long = "n" * 251 + ".png"  # whose GeoJSON cannot be called after it
    (photos / long).write_bytes((photos / "two.png").read_bytes())
    bad.make_loops(photos)
    found = run(model, photos, tmp_path / "out", save=SaveOptions(polygons="geojson"))
    reasons = {failure.path.name: failure.reason for failure in found.failed}
    assert set(reasons) == {*words, long}
    assert found.written == 4
    assert "255" in reasons[long]
    assert "geojson" in reasons[long]
    for name, word in words.items():
        assert name in reasons[name]
        assert word in reasons[name]
    again = run(model, photos, tmp_path / "out", save=SaveOptions(polygons="geojson"))
    assert (again.written, again.skipped, len(again.failed)) == (0, 4, len(words) + 1)


def test_a_limit_of_pixels_that_is_given(model, photos, tmp_path):
    found = run(model, photos, tmp_path / "out", max_pixels=40 * 48 - 1)
    assert found.written == 1
    assert all("48x40 pixels" in failure.reason for failure in found.failed)
    assert run(model, photos, tmp_path / "out", max_pixels=40 * 48).skipped == 1


def test_an_image_that_is_gone_since_is_a_failure(model, photos, tmp_path):
    backend = TorchBackend(model, palette=PALETTE, device="cpu", precision="fp32")
    inputs = find_images([photos])
    for _ in range(2):  # the second time it is in the journal
        with Journal(tmp_path / "out", {}) as journal:
            found = predict_files(backend, inputs, journal)
        (photos / "two.png").unlink(missing_ok=True)
    assert (found.written, found.skipped) == (0, 3)
    assert [failure.path.name for failure in found.failed] == ["two.png"]


def test_scores_that_cannot_fit_are_refused_and_tiles_named(model, photos, tmp_path, monkeypatch):
    needed = (4 * 3 + memory.WHOLE_BYTES) * 40 * 48  # scores of three classes, and what the network holds
    monkeypatch.setattr(memory, "available_bytes", lambda: needed - 1)
    found = run(model, photos, tmp_path / "out", batch=3)
    assert found.written == 1  # the smaller one
    assert len(found.failed) == 3
    for failure in found.failed:
        assert failure.path.name in failure.reason
        assert "3 classes" in failure.reason
        assert "48x40" in failure.reason
        assert "--tile" in failure.reason
