"""Evaluation against a naive one: image by image, output by output, counted in loops over classes."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import multiprocessing
from torch.nn import functional as F

from cacseg.data import Sample, normalise, open_data
from cacseg.engine import evaluate as module
from cacseg.engine.evaluate import compare_classes, evaluate
from cacseg.engine.inference import Inference, predict_each
from cacseg.metrics import boundary_tally, confusion
from cacseg.models import create_model
from distributed_evaluation import evaluate_share, small_data, small_model


@dataclass
class Listed:
    """A data set of given samples."""

    samples: list
    name: str = "listed"
    split: str = "val"
    class_names: tuple = ("a", "b", "c")
    palette: tuple = ((0, 0, 0), (255, 0, 0), (0, 255, 0))
    ignore_index: int = 255

    def __len__(self):
        return len(self.samples)

    def image_name(self, index):
        return f"image{index}"

    def read(self, index):
        return self.samples[index]


def draw(size, seed=0, n=3, ignored=True):
    numbers = np.random.default_rng(seed)
    labels = numbers.integers(0, n, size).astype(np.uint8)
    if ignored:
        labels[:3] = 255
    return Sample(numbers.integers(0, 256, (*size, 3)).astype(np.uint8), labels)


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def data():
    return Listed([draw((40, 48), 0), draw((33, 47), 1), draw((40, 48), 2), draw((64, 32), 3)])


def to_images(sample, model):
    planes = torch.from_numpy(np.ascontiguousarray(sample.image.transpose(2, 0, 1)))[None]
    return normalise(planes, model.mean, model.std)


def resize(logits, size):
    return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)


def test_counts_equal_those_of_each_method_of_the_model(model, data):
    found = evaluate(model, data, oracle=True, workers=2)
    expected = {name: torch.zeros(3, 3, dtype=torch.long) for name in ("plain", "context", "oracle")}
    near = {name: torch.zeros(3, 3, dtype=torch.long) for name in expected}
    with torch.no_grad():
        for sample in data.samples:
            images, labels = to_images(sample, model), torch.from_numpy(sample.labels)
            scores = {
                "plain": model.plain(images),
                "context": model(images),
                "oracle": model.oracle(images, labels[None].long()),
            }
            for name, one in scores.items():
                expected[name] += confusion(one[0].argmax(0), labels, 3)
                near[name] += torch.stack(boundary_tally(one[0].argmax(0), labels, 3))
    assert list(found.counts) == ["plain", "context", "mean", "oracle"]
    for name, counts in expected.items():
        assert torch.equal(found.counts[name], counts), name
        assert torch.equal(torch.stack(found.boundaries[name]), near[name]), name
    without = evaluate(model, data, oracle=True, boundaries=False)
    assert without.boundaries == {}
    assert all(torch.equal(without.counts[name], counts) for name, counts in expected.items())
    assert found.output == "context"
    assert len({tuple(counts.flatten().tolist()) for counts in found.counts.values()}) == 4
    assert all((counts.sum(0) > 0).sum() > 1 for counts in found.counts.values())  # else a mistake would not be seen


def test_images_are_scored_one_by_one_and_add_up(model, data):
    found = evaluate(model, data, oracle=True)
    assert [(one.place, one.name, one.size) for one in found.images] == [
        (0, "image0", (40, 48)),
        (1, "image1", (33, 47)),
        (2, "image2", (40, 48)),
        (3, "image3", (64, 32)),
    ]
    for name, counts in found.counts.items():
        for part, whole in (("hits", counts.diag()), ("labelled", counts.sum(1)), ("predicted", counts.sum(0))):
            assert torch.equal(sum(getattr(one.tallies[name], part) for one in found.images).long(), whole)
    alone = evaluate(model, Listed(data.samples[1:2]))
    assert alone.scores().mean_iou == found.images[1].scores("context").mean_iou
    values = [one.scores("context").mean_iou for one in found.worst_first()]
    assert values == sorted(values)


@pytest.mark.parametrize(
    "inference",
    [
        Inference(ratios=(0.5, 1.0), flip=True),
        Inference(window=(32, 32), stride=(20, 20)),
        Inference(window=(32, 32), stride=(20, 20), ratios=(1.0, 1.5), flip=True),
    ],
)
def test_other_ways_of_showing_an_image(model, inference):
    """Against `predict` on the images that the data pipeline would have made at each ratio."""
    sample = draw((40, 48), 5)
    found = evaluate(model, Listed([sample]), inference=inference)
    labels = torch.from_numpy(sample.labels)
    total = 0
    for ratio in inference.ratios:
        import cv2

        shown = cv2.resize(sample.image, (round(48 * ratio), round(40 * ratio)), interpolation=cv2.INTER_LINEAR)
        for flipped in (False, True) if inference.flip else (False,):
            images = to_images(Sample(shown, sample.labels), model)
            images = images.flip(-1) if flipped else images
            one = Inference(window=inference.window, stride=inference.stride)
            scores = next(predict_each(lambda x, _: [model.classifier(model.features(x))], [images], (40, 48), one))
            scores = scores.flip(-1) if flipped else scores
            total = total + (scores.softmax(1) if inference.averages else scores)
    assert torch.equal(found.counts["context"], confusion(total[0].argmax(0), labels, 3))
    assert not torch.equal(found.counts["context"], evaluate(model, Listed([sample])).counts["context"])


def test_the_oracle_knows_the_labels_of_each_window_and_scale(model):
    """The oracle of a window is made from that window alone."""
    sample = draw((32, 64), 7)
    found = evaluate(model, Listed([sample]), inference=Inference((32, 32), (32, 32)), oracle=True)
    expected = torch.zeros(3, 3, dtype=torch.long)
    with torch.no_grad():
        for part in (slice(0, 32), slice(32, 64)):
            half = Sample(sample.image[:, part], sample.labels[:, part])
            labels = torch.from_numpy(half.labels.copy())
            scores = model.oracle(to_images(half, model), labels[None].long())
            expected += confusion(scores[0].argmax(0), labels, 3)
    assert torch.equal(found.counts["oracle"], expected)


def test_labels_keep_their_own_size(model):
    """The image is shrunk, the scores are brought back to the labels."""
    sample = draw((60, 80), 4)
    found = evaluate(model, Listed([sample]), scale=(40, 30))
    assert found.counts["plain"].sum() == (sample.labels != 255).sum()
    import cv2

    shown = Sample(cv2.resize(sample.image, (40, 30), interpolation=cv2.INTER_LINEAR), sample.labels)
    with torch.no_grad():
        scores = resize(model(to_images(shown, model)), (60, 80))
    assert torch.equal(found.counts["context"], confusion(scores[0].argmax(0), torch.from_numpy(sample.labels), 3))


def test_batches_and_workers_change_nothing(model):
    data = Listed([draw((40, 48), seed) for seed in range(5)] + [draw((32, 32), 9)])
    one = evaluate(model, data, workers=0)
    for batch, workers in ((1, 3), (4, 2), (16, 1)):
        other = evaluate(model, data, batch=batch, workers=workers)
        for name, counts in one.counts.items():
            # Batched convolutions round differently: of some ten thousand pixels a tie may fall the other way.
            assert (other.counts[name] - counts).abs().sum() <= 2
        assert [image.name for image in other.images] == [image.name for image in one.images]


def test_a_plain_model_has_one_output(data):
    model = create_model("fcn", 3, "plain", backbone="test_resnet", head_channels=16).eval()
    found = evaluate(model, data)
    assert list(found.counts) == ["plain"]
    assert found.output == "plain"
    with pytest.raises(ValueError, match="the model has no oracle: its classifier is plain"):
        evaluate(model, data, oracle=True)


def test_another_ignore_index_of_the_data(model):
    """Labels say what is ignored, whatever the model was trained with; for the oracle as well."""
    sample = draw((32, 32), 1)
    other = Sample(sample.image, np.where(sample.labels == 255, 200, sample.labels).astype(np.uint8))
    first = evaluate(model, Listed([sample]), oracle=True)
    second = evaluate(model, Listed([other], ignore_index=200), oracle=True)
    for name, counts in first.counts.items():
        assert torch.equal(second.counts[name], counts)


def test_progress_and_mode(data):
    model = small_model().train()
    seen = []
    evaluate(model, data, progress=lambda done, counts: seen.append((done, int(counts["plain"].sum()))))
    assert [done for done, _ in seen] == [1, 2, 3, 4]
    assert seen[-1][1] == sum(int((sample.labels != 255).sum()) for sample in data.samples)
    assert model.training


def test_an_image_without_labels_has_no_score_and_comes_last(model):
    blank = draw((32, 32), 0)
    blank.labels[:] = 255
    found = evaluate(model, Listed([blank, draw((32, 32), 1)]))
    assert math.isnan(found.images[0].scores("context").mean_iou)
    assert [one.name for one in found.worst_first()] == ["image1", "image0"]


def test_what_is_refused(model):
    good = draw((32, 32))
    with pytest.raises(ValueError, match=r"the model has 3 \(x, y, z\), listed has 2 \(a, b\)"):
        evaluate(small_model(names=("x", "y", "z")), Listed([good], class_names=("a", "b")))
    with pytest.raises(ValueError, match=r"the split 'val' of listed has no images"):
        evaluate(model, Listed([]))
    with pytest.raises(ValueError, match=r"in \[0, 3\) or the ignore index 254; got 255 \(listed, val: image1\)"):
        evaluate(model, Listed([draw((32, 32), ignored=False), good], ignore_index=254))
    with pytest.raises(ValueError, match=r"listed, val: image0 is 32x24 and its labels 32x32"):
        evaluate(model, Listed([Sample(good.image[:24], good.labels)]))
    blank = draw((32, 32))
    blank.labels[:] = 255
    with pytest.raises(ValueError, match=r"no pixel of 1 images is labelled: every label is the ignore index 255"):
        evaluate(model, Listed([blank]))
    with pytest.raises(ValueError, match=r"red, green and blue; the model takes 1 channel\(s\)"):
        evaluate(create_model("fcn", 3, backbone="test_resnet", head_channels=16, in_channels=1), Listed([good]))
    with pytest.raises(ValueError, match="at least 1 image; got 0"):
        evaluate(model, Listed([good]), batch=0)
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'bf16', 'fp16'; got 'half'"):
        evaluate(model, Listed([good]), precision="half")


def test_names_that_differ_are_told():
    model = small_model(names=("a", "sky", "c"))
    assert compare_classes(model, Listed([])) == ["class 1 is 'sky' in the model and 'b' in listed"]
    assert compare_classes(small_model(), Listed([])) == []


def test_memory_that_runs_out_is_explained(model, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    monkeypatch.setattr(module, "predict_each", fail)
    with pytest.raises(ValueError, match=r"1 image\(s\) of 48x40 \(image0\) did not fit into the memory of cpu"):
        evaluate(model, Listed([draw((40, 48))]))


def test_lower_precision_runs_and_mostly_agrees(model):
    data = open_data("synthetic", None, "val", size=(64, 64), length=2)
    big = create_model("fcn", 8, backbone="test_resnet", head_channels=16).eval()
    full, low = (evaluate(big, data, precision=precision) for precision in ("fp32", "bf16"))
    assert full.counts["plain"].sum() == low.counts["plain"].sum()
    assert (full.counts["plain"] - low.counts["plain"]).abs().sum() < 0.2 * full.counts["plain"].sum()


def test_two_processes_count_every_image_once(tmp_path):
    alone = evaluate(small_model(), small_data(), oracle=True)
    multiprocessing.spawn(evaluate_share, (str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["names"] == [one.name for one in alone.images]
        for name, counts in alone.counts.items():
            assert torch.equal(found["counts"][name], counts)
            assert torch.equal(found["boundaries"][name], torch.stack(alone.boundaries[name]))
        assert "1 of 5 images" in found["summary"]
        assert found["reasons"] == [f"{small_data().image_name(3)} is damaged."]  # told by both


@pytest.mark.gpu
def test_a_gpu_counts_as_the_cpu_does(monkeypatch):
    """But for ties: another order of the sums in the convolutions."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # ten bits would move more than ties
    data = small_data()
    model = small_model()
    slide = Inference((32, 32), (24, 24), ratios=(0.75, 1.0), flip=True)
    for inference in (Inference(), slide):
        cpu = evaluate(model, data, inference=inference, oracle=True)
        gpu = evaluate(model, data, inference=inference, oracle=True, device="cuda", batch=2)
        for name, counts in cpu.counts.items():
            assert counts.sum() == gpu.counts[name].sum()
            assert (counts - gpu.counts[name]).abs().sum() <= 0.002 * counts.sum()
    low = evaluate(model, data, device="cuda", precision="bf16")
    assert low.counts["plain"].sum() == cpu.counts["plain"].sum()


def test_threads_may_share_a_zip(tmp_path, model):
    """Reads at once from one archive do not disturb each other."""
    import zipfile

    from PIL import Image

    for kind in ("images", "labels"):
        (tmp_path / kind / "val").mkdir(parents=True)
    for seed in range(12):
        sample = draw((40, 48), seed)
        Image.fromarray(sample.image).save(tmp_path / f"images/val/{seed:02d}.png")
        Image.fromarray(sample.labels).save(tmp_path / f"labels/val/{seed:02d}.png")
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    with zipfile.ZipFile(tmp_path / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(tmp_path.rglob("*")):
            if path.suffix in (".png", ".txt"):
                archive.write(path, path.relative_to(tmp_path))
    packed = evaluate(model, open_data("folder", tmp_path / "data.zip", "val"), workers=8)
    loose = evaluate(model, open_data("folder", tmp_path, "val"), workers=0)
    assert torch.equal(packed.counts["context"], loose.counts["context"])
    assert [image.name for image in packed.images] == [image.name for image in loose.images]
