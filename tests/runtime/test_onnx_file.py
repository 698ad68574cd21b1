"""Exported models predict what the models predict, without torch."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import bad_files as bad
import cacseg
from cacseg.cli import app
from cacseg.engine.inference import Inference
from cacseg.runtime import memory
from distributed_evaluation import small_model
from onnx_files import MEAN, STD, Small, edited, onnx, write_small

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
        for one, expected in zip(predictor(paths), model.predict(paths, precision="fp32"), strict=True):
            assert (one.mask == expected.mask).mean() > 0.999
        return
    for one, expected in zip(predictor(paths), model.predict(paths, precision="fp32"), strict=True):
        assert (one.mask == expected.mask).mean() > 0.999
        assert np.abs(one.confidence - expected.confidence).max() < 1e-4
        assert np.abs(one.entropy - expected.entropy).max() < 1e-4
        assert (one.class_names, one.palette) == (expected.class_names, expected.palette)
        with pytest.raises(ValueError, match="--plain"):
            _ = one.plain


@pytest.mark.slow
def test_the_plain_classifier_in_a_file(model, exported, photos):
    result = cacseg.Predictor(exported(plain=True), device="cpu")(photos / "a.png")
    assert (result.mask == model.predict(photos / "a.png", precision="fp32").plain).mean() > 0.999
    assert np.array_equal(result.plain, result.mask)


@pytest.mark.slow
def test_images_are_fitted_as_the_run_had_it(model, exported, photos):
    path = exported(scale=(28, 20))
    expected = cacseg.Predictor(model, scale=(28, 20), device="cpu", precision="fp32")(photos / "a.png")
    result = cacseg.Predictor(path, device="cpu")(photos / "a.png")
    assert (result.mask == expected.mask).mean() > 0.97  # OpenCV rounds its weights to 11 bits
    own = cacseg.Predictor(path, scale="own", device="cpu")(photos / "a.png")
    assert (own.mask == model.predict(photos / "a.png", precision="fp32").mask).mean() > 0.999


GIVEN = {"mean": MEAN, "std": STD}
MADE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))
IMAGE = np.asarray(MADE.resize((97, 70), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("output", ["logits", "probabilities", "classes"])
def test_one_channel_is_two_classes(output, tmp_path):
    names, network = ["ground", "disc"], Small(1)
    path = write_small(tmp_path / "a.onnx", network, output, class_names=names, palette=PALETTE[:2])
    found = cacseg.Predictor(path, device="cpu")(IMAGE)
    expected = cacseg.Predictor(
        network, precision="fp32", class_names=names, palette=PALETTE[:2], device="cpu", **GIVEN
    )(IMAGE)
    assert 0.05 < expected.mask.mean() < 0.95
    assert (found.class_names, found.palette) == (expected.class_names, expected.palette)
    if output == "classes":  # of features, nearest neighbours in the place of interpolation
        assert (found.mask == expected.mask).mean() > 0.8
        return
    assert (found.mask == expected.mask).mean() > 0.999
    assert np.abs(found.confidence - expected.confidence).max() < 1e-4
    assert np.abs(found.entropy - expected.entropy).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("output", ["logits", "probabilities", "classes"])
def test_one_channel_as_it_is_exported(output, tmp_path):
    class OneChannel(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU()), nn.Conv2d(8, 1, 1)

        def forward(self, images):
            return self.head(self.body(images))

    torch.manual_seed(0)
    network = cacseg.convert(OneChannel(), seam="head").eval()
    given = {**GIVEN, "class_names": ["ground", "disc"], "palette": PALETTE[:2]}
    cacseg.export(network, tmp_path / "a.onnx", output=output, **given)
    found = cacseg.Predictor(tmp_path / "a.onnx", device="cpu")(IMAGE)
    expected = cacseg.Predictor(network, precision="fp32", device="cpu", **given)(IMAGE)
    assert 0.05 < expected.mask.mean() < 0.95
    assert (found.class_names, found.palette) == (expected.class_names, expected.palette)
    assert (found.mask == expected.mask).mean() > 0.999


WINDOWS = {"window": (33, 40), "stride": (20, 21)}


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_windows_of_the_run_slide_as_with_torch(output, tmp_path):
    network, given = Small(3), {**GIVEN, "class_names": NAMES, "device": "cpu"}
    path = write_small(tmp_path / "a.onnx", network, output, **WINDOWS)
    found = cacseg.Predictor(path, device="cpu")(IMAGE)
    expected = cacseg.Predictor(network, precision="fp32", inference=Inference(**WINDOWS), **given)(IMAGE)
    whole = cacseg.Predictor(network, precision="fp32", **given)(IMAGE)
    assert np.abs(found.confidence - expected.confidence).max() < 1e-4
    assert np.abs(found.entropy - expected.entropy).max() < 1e-4
    assert (found.mask == expected.mask).mean() > 0.999
    assert (expected.mask == whole.mask).mean() < 0.99
    Image.fromarray(IMAGE).save(tmp_path / "a.png")
    CliRunner().invoke(app, ["predict", str(path), str(tmp_path / "a.png"), "-o", str(tmp_path / "out"), "--whole"])
    with Image.open(tmp_path / "out/masks/a.png") as mask:
        assert (np.asarray(mask) == whole.mask).mean() > 0.999


def test_images_are_resized_to_a_fixed_size(tmp_path):
    network = Small(3)
    fixed = cacseg.Predictor(write_small(tmp_path / "a.onnx", network, fixed_size=(70, 97)), device="cpu")
    whole = cacseg.Predictor(write_small(tmp_path / "b.onnx", network), device="cpu")
    larger = np.asarray(Image.fromarray(IMAGE).resize((150, 120), Image.Resampling.BICUBIC))
    own, other, again = fixed([IMAGE, larger, IMAGE], batch=2)
    assert np.array_equal(own.mask, whole(IMAGE).mask)
    assert np.array_equal(own.mask, again.mask)
    assert (other.mask == whole(larger).mask).mean() > 0.7
    wrong = edited(tmp_path / "a.onnx", tmp_path / "c.onnx", fixed_size=[70, 98])
    with pytest.raises(ValueError, match="its network is not the one"):
        cacseg.Predictor(wrong)


def test_a_file_of_classes_has_masks_alone(tmp_path):
    network = Small(3)
    path = write_small(tmp_path / "a.onnx", network, "classes")
    result = cacseg.Predictor(path, device="cpu")(IMAGE)
    expected = cacseg.Predictor(network, precision="fp32", class_names=NAMES, device="cpu", **GIVEN)(IMAGE)
    assert (result.mask == expected.mask).mean() > 0.7  # nearest neighbours
    assert result.overlay().size == (97, 70)
    for name in ("confidence", "entropy"):
        with pytest.raises(ValueError, match=rf"{name}.*--output"):
            getattr(result, name)


def test_names_and_colours_may_be_given_and_statistics_not(tmp_path):
    path = write_small(tmp_path / "a.onnx", Small(3), class_names=NAMES, palette=PALETTE)
    predictor = cacseg.Predictor(path, class_names=["a", "b", "c"], palette=PALETTE[::-1], device="cpu")
    assert predictor.backend.classes == (("a", "b", "c"), tuple(PALETTE[::-1]))
    assert cacseg.Predictor(path, palette=PALETTE[::-1]).backend.classes.names == tuple(NAMES)
    with pytest.raises(ValueError, match=r"3 strings.*'a', 'b'"):
        cacseg.Predictor(path, class_names=["a", "b"])
    for given in ({"mean": [0.5] * 3}, {"std": [0.5] * 3}):
        with pytest.raises(ValueError, match="mean, std"):
            cacseg.Predictor(path, **given)


@pytest.mark.parametrize("option", ["--confidence", "--entropy", "--plain"])
def test_what_a_file_does_not_give_is_refused_before_anything_is_written(option, photos, tmp_path):
    path = write_small(tmp_path / "a.onnx", Small(3), "classes")
    done = CliRunner().invoke(app, ["predict", str(path), str(photos), "-o", str(tmp_path / "out"), option])
    assert isinstance(done.exception, ValueError)
    assert not (tmp_path / "out").exists()


WITHOUT_TORCH = """
import sys

# What docs/export.md says to install, and what these need.
ALLOWED = {"cacseg", "onnxruntime", "numpy", "PIL", "typer", "rich"}
ALLOWED |= {"click", "shellingham", "typing_extensions", "annotated_doc", "markdown_it", "mdurl", "pygments"}
ALLOWED |= {"pydantic", "pydantic_core", "annotated_types", "typing_inspection"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED | set(sys.stdlib_module_names) and not top.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, Refuse())
from cacseg.cli import main
sys.argv = ["cacseg", *sys.argv[1:]]
main()
"""


def test_the_command_needs_no_torch(photos, tmp_path):
    network = Small(3)
    path_of_model = write_small(tmp_path / "model.onnx", network, class_names=NAMES, palette=PALETTE)
    model = cacseg.Predictor(network, precision="fp32", class_names=NAMES, device="cpu", **GIVEN)
    (tmp_path / "photos").mkdir()
    for path in photos.iterdir():
        (tmp_path / "photos" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "photos/broken.png").write_text("no image")
    for name, content in bad.CLAIMS.items():
        (tmp_path / "photos" / name).write_bytes(content)
    command = [sys.executable, "-c", WITHOUT_TORCH, "predict", str(path_of_model), str(tmp_path / "photos"), "-o"]
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "--confidence"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr  # one image is broken, and the rest is done
    assert "broken.png" in done.stderr
    for name in bad.CLAIMS:
        assert f"{name} has " in done.stderr
    for path in photos.iterdir():
        with Image.open(tmp_path / "out/masks" / f"{path.stem}.png") as mask:
            assert (np.asarray(mask) == model(path).mask).mean() > 0.999
            assert mask.getpalette()[:9] == [value for colour in PALETTE for value in colour]
        assert (tmp_path / "out/overlays" / f"{path.stem}.jpg").stat().st_size > 0
    again = subprocess.run([*command, str(tmp_path / "out"), "--confidence"], capture_output=True, text=True)
    assert again.returncode == 1
    assert "3 were done before" in again.stdout


def test_files_that_are_refused(tmp_path):
    path = write_small(tmp_path / "whole.onnx", Small(3))
    whole = path.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        cacseg.Predictor(tmp_path / "cut.onnx")
    graph = onnx.load(path)
    del graph.metadata_props[:]
    onnx.save(graph, tmp_path / "nameless.onnx")
    with pytest.raises(ValueError, match="cacseg export"):
        cacseg.Predictor(tmp_path / "nameless.onnx")
    onnx.helper.set_model_props(graph, {"cacseg": '{"format": 9}'})
    onnx.save(graph, tmp_path / "later.onnx")
    with pytest.raises(ValueError, match="format 9"):
        cacseg.Predictor(tmp_path / "later.onnx")
    with pytest.raises(ValueError, match=r"^an ONNX file runs on 'cpu' or 'cuda'"):
        cacseg.Predictor(path, device="tpu")
    with pytest.raises(ValueError, match=r"no CUDA.*onnxruntime-gpu.*--device cpu"):
        cacseg.Predictor(path, device="cuda")
    more = edited(path, tmp_path / "more.onnx", num_classes=4, class_names=None, palette=None)
    with pytest.raises(ValueError, match="its network is not the one"):
        cacseg.Predictor(more)


@pytest.mark.parametrize(
    ("key", "value", "must"),
    [
        ("num_classes", "3", "whole number"),
        ("num_classes", -1, "whole number"),
        ("bands", 0.5, "whole number"),
        ("class_names", ["sky", "road"], "3 names"),
        ("class_names", ["sky", "road", 3], "3 names"),
        ("palette", [[1, 2, 3], [4, 5, 6], [7, 8]], "3 colours"),
        ("palette", [[1, 2, 3], [4, 5, 6], [7, 8, 300]], "3 colours"),
        ("mean", [0.5], "3 numbers"),
        ("mean", [float("nan")] * 3, "3 numbers"),
        ("mean", [10**400] * 3, "3 numbers"),
        ("std", [0.0, 1.0, 1.0], "above 0"),
        ("normalises", 1, "true or false"),
        ("output", "scores", "logits, probabilities, classes"),
        ("classifier", None, "plain or context"),
        ("scale", [512], "two whole numbers"),
        ("window", [64, 64], "stride"),
        ("output", "classes", "its network is not the one"),
        ("output", "probabilities", "its network is not the one"),
        ("normalises", False, "its network is not the one"),
    ],
)
def test_a_description_that_does_not_hold_is_refused(key, value, must, tmp_path):
    path = write_small(tmp_path / "whole.onnx", Small(3))
    wrong = edited(path, tmp_path / "wrong.onnx", **{key: value})
    with pytest.raises(ValueError, match=rf"wrong\.onnx cannot be read: .*{must}.*[Ee]xport"):
        cacseg.Predictor(wrong)
    assert cacseg.Predictor(path).backend.facts[key] is not value


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_cuda_that_does_not_start_is_an_error_and_auto_takes_the_cpu(tmp_path, monkeypatch):
    """onnxruntime says that it has CUDA, and runs on the CPU all the same."""
    path = write_small(tmp_path / "a.onnx", Small(3))
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(ValueError, match=r"could not start CUDA.*onnxruntime-gpu.*--device cpu"):
        cacseg.Predictor(path, device="cuda")
    monkeypatch.undo()
    assert cacseg.Predictor(path).backend.session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "{", '{"format": 1}'])
def test_a_description_of_no_use_is_refused(text, tmp_path):
    graph = onnx.load(write_small(tmp_path / "whole.onnx", Small(3)))
    onnx.helper.set_model_props(graph, {"cacseg": text})
    onnx.save(graph, tmp_path / "wrong.onnx")
    with pytest.raises(ValueError, match=r"wrong\.onnx cannot be read"):
        cacseg.Predictor(tmp_path / "wrong.onnx")


def test_scores_that_cannot_fit(tmp_path, monkeypatch):
    scores = 4 * 3 * 64 * 64
    monkeypatch.setattr(memory, "available_bytes", lambda: scores + memory.WHOLE_BYTES * 64 * 64 - 1)
    image = np.zeros((64, 64, 3), np.uint8)
    predictor = cacseg.Predictor(write_small(tmp_path / "model.onnx", Small(3)))
    with pytest.raises(MemoryError, match=r"3 classes.*64x64.*--output classes"):
        predictor(image)
    classes = cacseg.Predictor(write_small(tmp_path / "classes.onnx", Small(3), "classes"))
    assert classes(image).mask.shape == (64, 64)
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.WHOLE_BYTES * 64 * 64 - 1)
    with pytest.raises(MemoryError, match=r"64x64.*--scale.*--tile") as raised:
        classes(image)
    assert "--output" not in str(raised.value)
