"""Images in memory by tiles: the same answers, and no scores of a whole image."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cacseg.data import Sample
from cacseg.engine.evaluate import evaluate
from cacseg.engine.inference import Inference, Tiling, normalise_views
from cacseg.engine.tiled import tiled_networks
from cacseg.metrics import confusion
from cacseg.models import create_model
from cacseg.predictor import Predictor

SIZE, NAMES = (192, 224), ["plain", "context", "mean"]
TILES = 5 * 6


@pytest.fixture(scope="module", params=["context", "plain"])
def model(request):
    torch.manual_seed(0)
    return create_model("fcn", 5, backbone="test_resnet", head_channels=16, classifier=request.param).eval()


@pytest.fixture(scope="module")
def adapting():
    torch.manual_seed(0)
    return create_model("fcn", 5, backbone="test_resnet", head_channels=16).eval()


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)


class LargestFloats(TorchDispatchMode):
    """The number of values of the largest tensor of floats that is made."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self.largest = max(self.largest, one.numel())
        return made


class FeaturePasses:
    """How often the model was run, and nothing but that is changed."""

    def __init__(self, model, monkeypatch):
        self.count, run = 0, model.features

        def counted(images):
            self.count += 1
            return run(images)

        monkeypatch.setattr(model, "features", counted)


def whole_logits(model, pixels, names, tiling):
    view = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    (images,) = normalise_views([[view]], tuple(model.mean), tuple(model.std), torch.float32, torch.device("cpu"))
    with torch.no_grad():
        return list(tiled_networks(model, names, tiling)(images, None))


@pytest.mark.parametrize("context", ["image", "tile"])
def test_a_prediction_needs_no_scores_of_the_whole_image(model, pixels, context):
    predictor = Predictor(model, tile=64, overlap=32, tile_context=context, device="cpu", precision="fp32")
    with LargestFloats() as made:
        result = predictor(pixels)
        plain = result.plain
    assert 0 < made.largest < SIZE[0] * SIZE[1]
    tiling = Tiling(64, 32, context)
    (logits,) = whole_logits(model, pixels, [model.default_output], tiling)
    probabilities = logits[0].softmax(0)
    assert np.array_equal(result.mask, logits[0].argmax(0))
    assert np.abs(result.confidence - probabilities.amax(0).numpy()).max() < 1e-6
    assert np.abs(result.entropy - torch.special.entr(probabilities).sum(0).numpy() / np.log(5)).max() < 1e-6
    (logits,) = whole_logits(model, pixels, ["plain"], tiling)
    assert np.array_equal(plain, logits[0].argmax(0))


def test_another_scale_is_resized_from_whole_scores(model, pixels):
    tiling = Tiling(64, 32)
    predictor = Predictor(model, inference=Inference(tiling=tiling), scale=(96, 80), device="cpu")
    assert predictor(pixels).mask.shape == SIZE


class OneImage:
    name, split, class_names, palette, ignore_index = "one", "val", tuple("abcde"), ((0, 0, 0),) * 5, 255

    def __init__(self, pixels):
        self.labels = np.random.default_rng(1).integers(0, 5, SIZE).astype(np.uint8)
        self.pixels = pixels

    def __len__(self):
        return 1

    def image_name(self, index):
        return "image"

    def read(self, index):
        return Sample(self.pixels, self.labels)


@pytest.mark.parametrize(("keep", "passes"), [(1024, 1), (0, 2)])
def test_an_evaluation_runs_the_network_once_or_twice(adapting, pixels, monkeypatch, keep, passes):
    tiling, data = Tiling(64, 32, keep=keep), OneImage(pixels)
    logits = whole_logits(adapting, pixels, NAMES, tiling)
    expected = [confusion(one[0].argmax(0), torch.from_numpy(data.labels), 5) for one in logits]
    counted = FeaturePasses(adapting, monkeypatch)
    with LargestFloats() as made:
        found = evaluate(adapting, data, inference=Inference(tiling=tiling), workers=0)
    assert made.largest < SIZE[0] * SIZE[1]
    assert counted.count == passes * TILES
    assert list(found.counts) == NAMES
    assert all(torch.equal(counts, one) for counts, one in zip(found.counts.values(), expected, strict=True))


def test_a_budget_keeps_as_many_tiles_as_fit(adapting, pixels, monkeypatch):
    tile = 16 * 2 * 2 * 4  # bytes of the features of 64x64 pixels at a stride of 32
    counted = FeaturePasses(adapting, monkeypatch)
    predictor = Predictor(adapting, tile=64, overlap=32, keep=3.5 * tile / 2**20, device="cpu")
    assert "keep" not in predictor.backend.settings()["tiling"]
    mask = predictor(pixels).mask
    assert TILES < counted.count <= 2 * TILES - 3  # tiles at the end of the image are smaller
    assert np.array_equal(mask, Predictor(adapting, tile=64, overlap=32, device="cpu")(pixels).mask)


def test_a_budget_below_nothing():
    with pytest.raises(ValueError, match="keep"):
        Tiling(keep=-1)
