"""`cacseg demo`, with next to no training and few scenes: that everything is there, not that it has learnt."""

import csv

from PIL import Image

import cacseg
from cacseg.cli.demo import _unused_path
from cacseg.data import synthetic
from command_line import run


def test_the_demo_trains_scores_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("demo", "--steps", 2, "--images", 3, "--seed", 5, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert "3 scenes never trained on, 2 steps, seed 5" in done.out
    folder = tmp_path / "runs/demo"
    found = {}
    for kind, outputs in (("plain", ["plain"]), ("context", ["plain", "context", "mean", "oracle"])):
        of_kind = folder / "runs" / {"plain": "plain-2-5", "context": "tuned-2-5"}[kind]
        model = cacseg.load(of_kind / "last.safetensors")
        assert model.arguments["classifier"] == kind
        rows = list(csv.DictReader((of_kind / "eval/classes.csv").read_text().splitlines()))
        assert [row["class"] for row in rows] == list(synthetic.CLASSES)
        for output in outputs:
            values = [float(row[f"iou_{output}"]) for row in rows if row[f"iou_{output}"]]
            found[kind, output] = sum(values) / len(values)
    for (kind, output), value in found.items():
        name = "plain model" if kind == "plain" else f"context-aware model, {output} logits"
        line = next(line for line in done.out.splitlines() if name in line)
        assert f"{100 * value:.1f}" in line
    with Image.open(folder / "scenes.png") as sheet:
        assert sheet.size[0] > 600
    assert "step 2/2: mIoU" in (folder / "runs/tuned-2-5/train.log").read_text()
    assert done.out.split()[-1] == (folder / "report.html").resolve().as_uri()
    assert "photographs" in (folder / "report.html").read_text()  # what the scenes are not
    refused = run("demo", "-o", folder, capsys=capsys, monkeypatch=monkeypatch)
    assert refused.code == 2
    assert "holds files already" in refused.err


def test_another_run_gets_a_folder_of_its_own(tmp_path):
    assert _unused_path(tmp_path / "demo").name == "demo"
    (tmp_path / "demo").mkdir()
    assert _unused_path(tmp_path / "demo").name == "demo-2"
    (tmp_path / "demo-2").mkdir()
    assert _unused_path(tmp_path / "demo").name == "demo-3"
