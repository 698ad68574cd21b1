"""`cacseg report`, and the report.html of other commands: files, last lines, exit codes."""

import json
import re
import shutil
from datetime import datetime, timedelta, timezone
from html import unescape

import numpy as np
import pytest

import cacseg
from cacseg.engine.device import available_cores
from cacseg.reports.page import MARK
from command_line import Silent
from command_line import run as run_command
from test_cli_train import settings

SMALL = {"schedule.steps": 2, "data.size": [64, 64], "data.length": 8, "training.scored_train_images": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A plain and a context-aware run with next to no training."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("plain", "context"):
            changes = settings(**SMALL, **{"model.classifier": name})
            words = ("train", "synthetic", "-o", root / name, "--no-report", *changes)
            assert run_command(*words, capsys=Silent(), monkeypatch=patch).code == 0
    assert not list(root.rglob("report.html"))
    return root


@pytest.fixture
def run(capsys, monkeypatch):
    return lambda *arguments: run_command(*arguments, capsys=capsys, monkeypatch=monkeypatch)


def test_a_run_and_two_beside_each_other(runs, run, tmp_path):
    done = run("report", runs / "context", "-o", tmp_path / "one.html")
    assert done.code == 0, done.err
    assert done.out.strip() == str(tmp_path / "one.html")
    page = (tmp_path / "one.html").read_text()
    assert "all 2 images of synthetic val" in page
    scores = json.loads((runs / "context" / "scores.json").read_text())["splits"]["val"]["outputs"]
    for output in ("plain", "context", "oracle"):
        assert f"{100 * scores[output]['mean_iou']:.1f}" in page
    assert page.count("<img") == 2 * 5
    matrices = [json.loads(unescape(one)) for one in re.findall(r'data-matrix="(.*?)"', page)]
    for output, matrix in zip(("plain", "context"), matrices, strict=True):  # of the validation, not of the images
        counts = np.array(scores[output]["confusion"])
        order = np.argsort(-counts.sum(1), kind="stable")
        shares = (counts / np.maximum(counts.sum(1, keepdims=True), 1))[np.ix_(order, order)]
        assert [int(one or 0) for one in matrix["permille"].split(",")] == np.round(1000 * shares).ravel().tolist()
    done = run("report", runs / "plain", runs / "context", "-o", tmp_path / "two.html", "--images", 1)
    assert done.code == 0, done.err
    page = (tmp_path / "two.html").read_text()
    assert f"{100 * (scores['context']['mean_iou'] - plain_score(runs)):+.1f}" in page
    assert "model.classifier" in page  # in which they differ


def test_curves_that_cannot_be_read_are_told_from_none(runs, run, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "run")
    metrics, page = tmp_path / "run/metrics.csv", tmp_path / "run/report.html"
    whole = metrics.read_text()
    for content, words in ((whole.encode("utf-16"), "is no metrics.csv of a run"), (b"", "has no rows yet")):
        metrics.write_bytes(content)
        done = run("report", tmp_path / "run", "--images", 0)
        assert done.code == 0
        assert ("metrics.csv is no" in done.err) == bool(content)
        assert f"metrics.csv {words}" in unescape(page.read_text())
        assert "is missing" not in unescape(page.read_text())
    metrics.unlink()
    assert "metrics.csv" not in run("report", tmp_path / "run", "--images", 0).err
    assert "metrics.csv is missing" in unescape(page.read_text())


def test_what_a_run_on_the_cpu_tells(runs):
    found = json.loads((runs / "context" / "scores.json").read_text())
    assert found["device"].startswith(f"CPU, {available_cores()} core")
    assert 50 < found["peak_mib"] < 100_000
    assert found["train_images"] == SMALL["data.length"]
    model = cacseg.load(runs / "context" / "last.safetensors")
    assert found["parameters"] == sum(one.numel() for one in model.parameters())
    assert abs(datetime.now(timezone.utc) - datetime.fromisoformat(found["date"])) < timedelta(hours=1)


def test_images_are_predicted_in_the_precision_of_the_run(runs, run, tmp_path, monkeypatch):
    seen = []

    def examine(subjects, data, **options):
        seen.extend(subjects)
        raise ValueError("enough")

    monkeypatch.setattr("cacseg.reports.strips.examine", examine)
    folder = shutil.copytree(runs / "context", tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    for precision in ("bf16", "tf32", "fp16"):
        config["config"]["training"]["precision"] = precision
        (folder / "config.json").write_text(json.dumps(config))
        assert run("report", folder, "--device", "cpu").code == 0
    assert [one.precision for one in seen] == ["bf16", "fp32", "fp32"]  # a CPU has neither of the others


def test_another_kind_of_file_is_refused(runs, run, tmp_path):
    done = run("report", runs / "plain", "-o", tmp_path / "page.pdf")
    assert done.code == 2
    assert ".html" in done.err
    assert not list(tmp_path.iterdir())


def plain_score(runs):
    return json.loads((runs / "plain" / "scores.json").read_text())["splits"]["val"]["outputs"]["plain"]["mean_iou"]


def test_training_evaluation_and_comparison_write_one_in_the_end(runs, run, tmp_path, monkeypatch):
    done = run("train", "--resume", "-o", shutil.copytree(runs / "context", tmp_path / "run"))
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == str(tmp_path / "run" / "report.html")
    done = run("eval", tmp_path / "run", "-o", tmp_path / "eval")
    assert done.out.splitlines()[-1] == str(tmp_path / "eval" / "report.html")
    done = run("report", tmp_path / "eval", "-o", tmp_path / "again.html")
    assert done.code == 0, done.err
    for page in ("run/report.html", "eval/report.html", "again.html"):
        assert (tmp_path / page).read_text().count("<img") == 2 * 5


def test_a_comparison_is_a_report_over_its_arms(runs, run, tmp_path):
    arms = {name: {"model.classifier": name} for name in ("plain", "context")}
    for name in arms:
        shutil.copytree(runs / name, tmp_path / "runs" / f"{name}-2-0")
    content = {
        "format": "cacseg comparison 1",
        "recipe": "synthetic",
        "data": "synthetic",
        "model": "fcn",
        "arms": arms,
    }
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    done = run("compare", tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == str(tmp_path / "report.html")
    assert "compared with plain (1 seed: too few to tell)" in (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    assert run("compare", tmp_path, "--no-report").code == 0
    assert not (tmp_path / "report.html").exists()
    done = run("report", tmp_path, runs / "plain")
    assert done.code == 2
    assert "runs, or comparisons, not both" in done.err


def test_joined_comparisons_of_two_models_show_the_images_of_the_first(runs, run, tmp_path):
    for model, arms in (("fcn", ("plain", "context")), ("other", ("plain",))):
        for name in arms:
            shutil.copytree(runs / name, tmp_path / model / "runs" / f"{name}-2-0")
        content = {"format": "cacseg comparison 1", "recipe": "synthetic", "data": "synthetic", "model": model}
        content["arms"] = {name: {"model.classifier": name} for name in arms}
        (tmp_path / model / "comparison.json").write_text(json.dumps(content))
    done = run("report", tmp_path / "fcn", tmp_path / "other", "-o", tmp_path / "joined.html")
    assert done.code == 0, done.err
    page = (tmp_path / "joined.html").read_text()
    assert "synthetic, other, 2 steps" in page
    assert f"last.safetensors of plain-2-0, context-2-0 in {tmp_path / 'fcn/runs'}." in page
    assert page.count("<img") == 2 * 5


def test_runs_are_named_however_their_folders_are_given(runs, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "context"):
        shutil.copytree(runs / name, tmp_path / name)
    for folders, words in (
        (("plain", "context"), "plain/last.safetensors, context/last.safetensors"),
        (("plain", tmp_path / "context"), f"plain/last.safetensors, {tmp_path}/context/last.safetensors"),
        ((tmp_path / "plain", tmp_path / "context"), f"last.safetensors of plain, context in {tmp_path}"),
    ):
        done = run("report", *folders, "-o", "both.html", "--images", 2)
        assert done.code == 0, done.err
        assert words in (tmp_path / "both.html").read_text()


def test_a_run_without_adapting_is_called_so(runs, run, tmp_path):
    folder = shutil.copytree(runs / "context", tmp_path / "unadapted")
    config = json.loads((folder / "config.json").read_text())
    known = config["config"]["model"]
    for change, words in (
        (
            {"classifier_arguments": {"context_design": "weight"}},
            "one classifier for all images, losses of preset tuned",
        ),
        ({"variant": "loss_a"}, "one classifier for all images<"),
        ({"variant": "loss_c"}, "context-aware, preset tuned"),
        ({"variant": "of a later version"}, "context-aware, preset tuned"),
    ):
        config["config"]["model"] = {**known, **change}
        (folder / "config.json").write_text(json.dumps(config))
        done = run("report", folder, "-o", tmp_path / "one.html", "--images", 0)
        assert done.code == 0, done.err
        page = (tmp_path / "one.html").read_text()
        assert words in page
        assert ("context-aware, preset" in page) == words.startswith("context-aware")


def test_a_run_without_scores_beside_one_with(runs, run, tmp_path):
    folder = shutil.copytree(runs / "plain", tmp_path / "begun")
    (folder / "scores.json").unlink()
    done = run("report", folder, runs / "context", "-o", tmp_path / "two.html", "--images", 0)
    assert done.code == 0, done.err
    assert "begun: There are no scores" in (tmp_path / "two.html").read_text()


def test_what_is_missing_is_left_out_and_told(runs, run, tmp_path):
    folder = shutil.copytree(runs / "context", tmp_path / "run")
    (folder / "metrics.csv").write_text("")
    (folder / "last.safetensors").unlink()
    (folder / "best.safetensors").unlink()
    done = run("report", folder)
    assert done.code == 0
    page = (folder / "report.html").read_text()
    for words in ("no curves", "metrics.csv", "no images", "no weights"):
        assert words in page
    (folder / "scores.json").unlink()
    assert run("report", folder).code == 0
    assert "There are no scores" in (folder / "report.html").read_text()


def test_data_that_are_gone(runs, run, tmp_path):
    folder = shutil.copytree(runs / "context", tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["config"]["data"].update(name="folder", root=str(tmp_path / "gone"), size=None, val_length=None, length=None)
    (folder / "config.json").write_text(json.dumps(config))
    done = run("report", folder)
    assert done.code == 0, done.err
    page = (folder / "report.html").read_text()
    assert str(tmp_path / "gone") in page
    assert "<img" not in page
    assert page.count("data-curves") > 3
    wrong = run("report", folder, "--data", tmp_path / "nowhere")
    assert wrong.code == 2
    assert str(tmp_path / "nowhere") in wrong.err


@pytest.mark.parametrize("content", ["", "{}", '{"outputs": 3}', "[1]"])
def test_folders_of_something_else(run, tmp_path, content):
    (tmp_path / "scores.json").write_text(content)
    done = run("report", tmp_path)
    assert done.code == 2
    assert str(tmp_path) in done.err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("content", ['{"finished": true}', '{"finished": true, "splits": {"val": {}}}', "[]"])
def test_a_run_with_broken_scores_gets_one_line(runs, run, tmp_path, content):
    folder = shutil.copytree(runs / "plain", tmp_path / "run")
    (folder / "scores.json").write_text(content)
    done = run("report", folder, "--images", 0)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert str(folder / "scores.json") in line


@pytest.mark.parametrize("command", ["figures", "app"])
def test_folders_without_weights_say_what_to_do(runs, run, tmp_path, command):
    folder = shutil.copytree(runs / "plain", tmp_path / "begun", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "empty").mkdir()
    shutil.copytree(runs / "plain", tmp_path / "comparison" / "runs" / "plain-2-0")
    remedies = {folder: "--resume", tmp_path / "empty": "save_pretrained", tmp_path / "comparison": "runs/plain-2-0"}
    for path, remedy in remedies.items():
        done = run(command, path)
        assert done.code == 2
        (line,) = done.err.splitlines()
        assert str(path) in line
        assert remedy in line


def test_a_folder_that_does_not_exist_is_not_made(run, tmp_path):
    done = run("report", tmp_path / "nothing")
    assert done.code == 2
    assert not (tmp_path / "nothing").exists()


def test_no_file_of_somebody_else_is_replaced(runs, run, tmp_path):
    (tmp_path / "page.html").write_text("mine")
    done = run("report", runs / "plain", "-o", tmp_path / "page.html", "--images", 0)
    assert done.code == 2
    assert (tmp_path / "page.html").read_text() == "mine"
    (tmp_path / "page.html").write_text(MARK)
    assert run("report", runs / "plain", "-o", tmp_path / "page.html", "--images", 0).code == 0


def test_a_failure_does_not_fail_the_training(runs, run, tmp_path):
    folder = shutil.copytree(runs / "plain", tmp_path / "run")
    (folder / "report.html").mkdir()
    done = run("train", "--resume", "-o", folder)
    assert done.code == 0
    assert "no report.html" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
