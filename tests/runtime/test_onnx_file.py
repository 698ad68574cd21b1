"""Exported models predict what the models predict, without torch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cacseg
from distributed_evaluation import small_model

pytest.importorskip("onnxruntime")
NAMES = ["sky", "road", "tree"]
OTHER_GRAPHS = [{"output": "probabilities"}, {"size": "features"}, {"normalise": False}, {"output": "classes"}]
PALETTE = [(10, 20, 30), (200, 0, 0), (0, 200, 0)]


@pytest.fixture(scope="module")
def model():
    made = small_model(NAMES)
    made.palette = PALETTE
    return made


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    numbers = np.random.default_rng(0)
    for name, size in (("a.png", (40, 56)), ("b.png", (33, 47)), ("c.jpg", (40, 56))):
        coarse = numbers.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """A file for each kind of graph."""
    folder = tmp_path_factory.mktemp("exported")

    def find(**options):
        path = folder / f"{'-'.join(map(str, options.values())) or 'logits'}.onnx"
        if not path.exists():
            cacseg.export(model, path, **options)
        return path

    return find


@pytest.mark.parametrize(
    "options",
    [{}, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHER_GRAPHS)],
)
def test_a_file_predicts_what_the_model_predicts(options, model, exported, photos):
    predictor = cacseg.Predictor(exported(**options), device="cpu")
    paths = sorted(photos.iterdir())
    if options.get("output") == "classes":
        with pytest.raises(ValueError, match="--output"):
            predictor(paths[0])
        backend = predictor.backend
        image = np.asarray(Image.open(paths[0]))
        (answer,) = backend.predict([backend.view(image)], image.shape[:2])
        assert (answer.mask == model.predict(image).mask).mean() > 0.999
        return
    for one, expected in zip(predictor(paths), model.predict(paths), strict=True):
        assert (one.mask == expected.mask).mean() > 0.999
        assert np.abs(one.confidence - expected.confidence).max() < 1e-4
        assert np.abs(one.entropy - expected.entropy).max() < 1e-4
        assert (one.class_names, one.palette) == (expected.class_names, expected.palette)
        with pytest.raises(ValueError, match="--plain"):
            _ = one.plain


@pytest.mark.slow
def test_the_plain_classifier_in_a_file(model, exported, photos):
    result = cacseg.Predictor(exported(plain=True), device="cpu")(photos / "a.png")
    assert (result.mask == model.predict(photos / "a.png").plain).mean() > 0.999
    assert np.array_equal(result.plain, result.mask)


def test_images_are_fitted_as_the_run_had_it(model, exported, photos):
    path = exported(scale=(28, 20))
    expected = cacseg.Predictor(model, scale=(28, 20), device="cpu")(photos / "a.png")
    result = cacseg.Predictor(path, device="cpu")(photos / "a.png")
    assert (result.mask == expected.mask).mean() > 0.97  # OpenCV rounds its weights to 11 bits
    own = cacseg.Predictor(path, scale="own", device="cpu")(photos / "a.png")
    assert (own.mask == model.predict(photos / "a.png").mask).mean() > 0.999


WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "cv2", "timm", "jaxtyping", "lightning", "pandas", "matplotlib"):
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, Refuse())
from cacseg.cli import main
sys.argv = ["cacseg", *sys.argv[1:]]
main()
"""


def test_the_command_needs_no_torch(model, exported, photos, tmp_path):
    (tmp_path / "photos").mkdir()
    for path in photos.iterdir():
        (tmp_path / "photos" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "photos/broken.png").write_text("no image")
    command = [sys.executable, "-c", WITHOUT_TORCH, "predict", str(exported()), str(tmp_path / "photos"), "-o"]
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "--confidence"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr  # one image is broken, and the rest is done
    assert "broken.png" in done.stderr
    for path in photos.iterdir():
        with Image.open(tmp_path / "out/masks" / f"{path.stem}.png") as mask:
            assert (np.asarray(mask) == model.predict(path).mask).mean() > 0.999
            assert mask.getpalette()[:9] == [value for colour in PALETTE for value in colour]
        assert (tmp_path / "out/overlays" / f"{path.stem}.jpg").stat().st_size > 0
    again = subprocess.run([*command, str(tmp_path / "out"), "--confidence"], capture_output=True, text=True)
    assert again.returncode == 1
    assert "3 were done before" in again.stdout


def test_files_that_are_refused(exported, tmp_path):
    import onnx

    whole = Path(exported()).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        cacseg.Predictor(tmp_path / "cut.onnx")
    graph = onnx.load(exported())
    del graph.metadata_props[:]
    onnx.save(graph, tmp_path / "nameless.onnx")
    with pytest.raises(ValueError, match="cacseg export"):
        cacseg.Predictor(tmp_path / "nameless.onnx")
    onnx.helper.set_model_props(graph, {"cacseg": '{"format": 9}'})
    onnx.save(graph, tmp_path / "later.onnx")
    with pytest.raises(ValueError, match="format 9"):
        cacseg.Predictor(tmp_path / "later.onnx")
    with pytest.raises(ValueError, match="'cpu' or 'cuda'"):
        cacseg.Predictor(exported(), device="tpu")
