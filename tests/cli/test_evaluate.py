"""`cacseg eval` as a user runs it, in this process: words, files, exit codes."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from cacseg.data import open_data
from cacseg.engine.evaluate import evaluate
from cacseg.engine.inference import Inference
from cacseg.runtime import memory
from command_line import run
from distributed_evaluation import small_model

CLASSES = ("grass", "sky", "stone")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set of one's own and a model for it."""
    root = tmp_path_factory.mktemp("evaluation")
    numbers = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (root / "data" / kind / "val").mkdir(parents=True)
    for name, size in (("a", (40, 48)), ("b", (36, 40)), ("c", (48, 40))):
        Image.fromarray(numbers.integers(0, 256, (*size, 3), np.uint8)).save(root / f"data/images/val/{name}.png")
        labels = numbers.integers(0, 3, size, np.uint8)
        labels[:2] = 255
        Image.fromarray(labels).save(root / f"data/labels/val/{name}.png")
    (root / "data" / "classes.txt").write_text("\n".join(CLASSES))
    model = small_model(CLASSES)
    model.save(root / "model.safetensors")
    small_model(("grass", "sky", "water")).save(root / "renamed.safetensors")
    small_model(num_classes=5).save(root / "five.safetensors")
    return root


def test_files_and_tables(place, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    arguments = ("eval", place / "model.safetensors", "--data", place / "data", "--oracle", "-o", out)
    done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    for word in ("grass", "mIoU", "plain", "context", "oracle", "3 images"):
        assert word in done.out
    outputs = ("plain", "context", "mean", "oracle")
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["scores.json", "report.html", "classes.csv", "images.csv"] + [f"confusion_{name}.csv" for name in outputs]
    )
    found = evaluate(small_model(), open_data("folder", place / "data", "val"), oracle=True)
    scores = json.loads((out / "scores.json").read_text())
    for name in outputs:
        assert scores["outputs"][name]["mean_iou"] == found.scores(name).mean_iou
        assert f"{100 * found.scores(name).mean_iou:.1f}" in done.out
    rows = list(csv.DictReader((out / "images.csv").read_text().splitlines()))
    assert [row["image"] for row in rows] == [image.name for image in found.worst_first()]

    again = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert again.code == 2
    assert "holds files already. Choose another folder, or pass --overwrite" in again.err
    assert run(*arguments, "--overwrite", capsys=capsys, monkeypatch=monkeypatch).code == 0


def outputs_of(folder):
    return json.loads((folder / "scores.json").read_text())["outputs"]


def test_workers_that_share_a_folder_score_as_one_process(place, tmp_path, capsys, monkeypatch):
    def score(*options):
        arguments = ("eval", place / "model.safetensors", "--data", place / "data", "--no-report", *options)
        return run(*arguments, capsys=capsys, monkeypatch=monkeypatch)

    alone, out = tmp_path / "alone", tmp_path / "out"
    assert score("-o", alone, "--oracle").code == 0
    for shard in ("3/3", "1/3"):  # the first has no image
        done = score("-o", out, "--oracle", "--shard", shard)
        assert done.code == 0, done.err
        assert f"shard {shard[0]} of 3" in done.err
        assert not (out / "scores.json").exists()
    for name, value in (("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "3")):
        monkeypatch.setenv(name, value)
    assert "mIoU" in score("-o", out, "--oracle").out
    files = sorted(path.name for path in alone.iterdir())
    assert sorted(path.name for path in out.iterdir()) == sorted([*files, "counts"])
    assert outputs_of(out) == outputs_of(alone)
    for name in files:
        if name != "scores.json":
            assert (out / name).read_bytes() == (alone / name).read_bytes()

    counted = {path: path.stat().st_mtime_ns for path in (out / "counts/images").iterdir()}
    assert len(counted) == 3
    (out / "counts/images/b.npz").unlink()
    (out / "scores.json").unlink()
    assert score("-o", out, "--oracle", "--shard", "1/1").code == 0
    anew = {path.name for path, before in counted.items() if path.stat().st_mtime_ns != before}
    assert anew == {"b.npz"}
    assert outputs_of(out) == outputs_of(alone)
    other = score("-o", out, "--shard", "1/1")
    assert other.code == 2
    assert "oracle" in other.err
    assert score("-o", alone, "--shard", "1/1").code == 2  # the result of a single process
    assert score("--shard", "1/1").code == 2


def test_faulty_images_are_all_named_and_there_is_no_score(place, tmp_path, capsys, monkeypatch):
    """Workers that share a folder keep what they counted, so that only mended images are counted then."""
    shutil.copytree(place / "data", tmp_path / "data")
    whole = (tmp_path / "data/images/val/a.png").read_bytes()
    (tmp_path / "data/images/val/a.png").write_bytes(whole[:60])
    Image.fromarray(np.full((48, 40), 77, np.uint8)).save(tmp_path / "data/labels/val/c.png")
    for more in ((), ("--shard", "1/1")):
        out = tmp_path / f"out{len(more)}"
        arguments = ("eval", place / "model.safetensors", "--data", tmp_path / "data", "-o", out, "--no-report", *more)
        done = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
        assert (done.code, done.out) == (1, "")
        assert not (out / "scores.json").exists()
        first, second, last = done.err.splitlines()[-3:]
        assert "images/val/a.png" in first
        assert "labels/val/c.png" in second
        assert "77" in second
        assert "2 of 3 images of the split 'val'" in last
    assert [path.name for path in (out / "counts/images").iterdir()] == ["b.npz"]
    kept = (out / "counts/images/b.npz").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(place / "data", tmp_path / "data")
    assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch).code == 0
    assert (out / "counts/images/b.npz").stat().st_mtime_ns == kept
    assert json.loads((out / "scores.json").read_text())["images"] == 3


def test_another_ignore_index(place, tmp_path, capsys, monkeypatch):
    shutil.copytree(place / "data", tmp_path / "data")
    for path in (tmp_path / "data/labels/val").iterdir():
        labels = np.array(Image.open(path))
        Image.fromarray(np.where(labels == 255, 99, labels).astype(np.uint8)).save(path)
    outcomes = []
    for data, more in ((place / "data", ()), (tmp_path / "data", ("--ignore-index", 99)), (tmp_path / "data", ())):
        arguments = ("eval", place / "model.safetensors", "--data", data, "--json", *more)
        outcomes.append(run(*arguments, capsys=capsys, monkeypatch=monkeypatch))
    assert [one.code for one in outcomes] == [0, 0, 1]
    first, second = (json.loads(one.out)["outputs"] for one in outcomes[:2])
    assert first == second
    assert "holds the label 99" in outcomes[2].err


def test_scores_are_printed_before_anything_is_written(place, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError("scores.json could not be written (No space left on device).")

    monkeypatch.setattr("cacseg.reports.write.write_file", full)
    arguments = ("eval", place / "model.safetensors", "--data", place / "data", "-o", tmp_path / "out")
    done = run(*arguments, "--json", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert json.loads(done.out)["outputs"]["context"]["mean_iou"] > 0
    assert "No space left" in done.err


def test_json_and_other_ways_of_showing_images(place, capsys, monkeypatch):
    arguments = ("eval", place / "model.safetensors", "--data", place / "data", "--json")
    ways = ("--scale", "36,30", "--slide", "32x24", "--stride", 16, "--flip", "--batch", 2, "--workers", 1)
    done = run(*arguments, *ways, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    scores = json.loads(done.out)
    assert scores["inference"] == {
        "window": [32, 24],
        "stride": [16, 16],
        "ratios": [1.0],
        "flip": True,
        "window_batch": 4,
        "scale": [36, 30],
        "tiling": None,
    }
    inference = Inference((32, 24), (16, 16), flip=True)
    found = evaluate(
        small_model(), open_data("folder", place / "data", "val"), inference=inference, scale=(36, 30), batch=2
    )
    assert scores["outputs"]["context"]["mean_iou"] == found.scores().mean_iou
    assert list(scores["outputs"]) == ["plain", "context", "mean"]


def test_the_folder_of_a_run_says_what_it_was_trained_on(place, tmp_path, capsys, monkeypatch):
    from cacseg.recipes.config import change
    from cacseg.recipes.files import write_config
    from cacseg.recipes.named import folder

    model, window = small_model(CLASSES), (32, 32)
    settings = {
        "data.root": str(place / "data"),
        "data.window": window,
        "data.stride": (24, 24),
        "data.val_scale": (64, 40),
    }
    model.save(tmp_path / "last.safetensors")
    write_config(tmp_path, "folder", change(folder(), settings), model.arguments)
    done = run("eval", tmp_path, "--json", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    scores = json.loads(done.out)
    assert scores["checkpoint"].endswith("last.safetensors")
    assert scores["inference"]["window"] == [32, 32]
    assert scores["inference"]["scale"] == [64, 40]
    done = run("eval", tmp_path, "--json", "--whole", "--scale", "own", capsys=capsys, monkeypatch=monkeypatch)
    assert json.loads(done.out)["inference"]["window"] is None
    assert json.loads(done.out)["inference"]["scale"] is None


def test_names_that_differ_are_told_and_counted_all_the_same(place, capsys, monkeypatch):
    done = run("eval", place / "renamed.safetensors", "--data", place / "data", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0
    (line,) = [line for line in done.err.splitlines() if "'water'" in line]
    assert re.search(r"class 2\b.*'water'.*model.*'stone'.*folder", line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("five.safetensors", "--data", "data"), "the model has 5, folder has 3 (grass, sky, stone)"),
        (("nowhere.safetensors", "--data", "data"), "there is no model"),
        (("data", "--data", "data"), "is a folder without best.safetensors"),
        (("model.safetensors",), "give the data set with --data"),
        (("model.safetensors", "--data", "nowhere"), "there is no data set at"),
        (("model.safetensors", "--data", "data", "--name", "adek20"), "unknown data set 'adek20'"),
        (("model.safetensors", "--data", "data", "--split", "test"), "there is no split 'test'"),
        (("model.safetensors", "--data", "data", "--slide", "wide"), "--slide must be one or two whole numbers"),
        (("model.safetensors", "--data", "data", "--slide", 32, "--stride", 40), "pixels would be skipped"),
        (("model.safetensors", "--data", "data", "--stride", 40), "--stride belongs to --slide"),
        (("model.safetensors", "--data", "data", "--slide", 32, "--whole"), "--whole and --slide exclude each other"),
        (("model.safetensors", "--data", "data", "--precision", "half"), "must be one of 'fp32', 'bf16', 'fp16'"),
        (("model.safetensors", "--data", "data", "--device", "cuda:77"), "there is no device 'cuda:77'"),
        (("model.safetensors", "--data", "data", "-o", "model.safetensors"), "results go into a folder"),
    ],
)  # fmt: skip
def test_what_is_refused(place, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    done = run("eval", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert sorted(place.rglob("*")) == before


def test_a_wrong_ignore_index_names_the_image(place, tmp_path, capsys, monkeypatch):
    import shutil

    shutil.copytree(place / "data", tmp_path / "data")
    labels = np.full((40, 48), 7, np.uint8)
    Image.fromarray(labels).save(tmp_path / "data/labels/val/a.png")
    done = run("eval", place / "model.safetensors", "--data", tmp_path / "data", capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 1
    assert "a" in done.err
    assert "7" in done.err
    assert "255" in done.err


def test_a_limit_of_pixels(place, capsys, monkeypatch):
    arguments = ("eval", place / "model.safetensors", "--data", place / "data", "--max-pixels")
    refused = run(*arguments, 40 * 48 - 1, capsys=capsys, monkeypatch=monkeypatch)
    assert refused.code == 1
    assert "40x48 pixels" in refused.err or "48x40 pixels" in refused.err
    assert "--max-pixels" in refused.err
    assert run(*arguments, 40 * 48, capsys=capsys, monkeypatch=monkeypatch).code == 0


def test_scores_that_cannot_fit(place, capsys, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    found = run("eval", place / "model.safetensors", "--data", place / "data", capsys=capsys, monkeypatch=monkeypatch)
    assert found.code == 2
    assert all(word in found.err for word in ("3 classes", "48x40", "--tile"))
