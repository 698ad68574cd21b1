"""The scripts of benchmarks/ and tools/ that docs name."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import cacseg
from cacseg.data import open_data

ROOT = Path(__file__).parents[1]
SPLITS = ("train", "val")


def load(name, folder="benchmarks"):
    """A script as Python runs it, with the folder of the script on the path."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def test_the_pictures_are_of_the_report_that_their_caption_tells_of(tmp_path):
    pytest.importorskip("playwright.sync_api")
    script = load("pictures", "tools")
    (caption,) = [part for part in (ROOT / "README.md").read_text().split("\n\n") if "Brostow" in part]
    assert str(script.AMONG) in re.findall(r"\d+", caption)
    assert f"cacseg report runs/pictures --images {script.AMONG}" in (ROOT / "docs" / "report.md").read_text()
    page = tmp_path / "report.html"
    page.write_text(f"Chosen among {script.AMONG} of the 101 images")
    script.check_report(page)
    page.write_text("Chosen among all 101 images")
    with pytest.raises(SystemExit, match=f"--images {script.AMONG}"):
        script.check_report(page)


@pytest.mark.parametrize("form", ["converted", "converted, native", "patches"])
def test_a_head_of_3x3_is_measured(form, capsys, monkeypatch):
    script = load("three_by_three_head")
    assert form in script.FORMS
    monkeypatch.setattr(script, "SIZE", 64)
    try:
        script.measure(form)
        assert torch.backends.mkldnn.enabled is not form.endswith("native")
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True)
    seconds, memory = map(float, capsys.readouterr().out.split())
    assert seconds > 0.0
    assert memory >= 0.0


def test_what_dilation_leaves_of_weights(tmp_path):
    """The script runs on a folder of pictures; features are those at a stride of 32 where every block dilates."""
    script = load("dilated_blocks")
    for split in ("train", "val"):
        for index, shade in enumerate((40, 200)):
            picture, labels = Image.new("RGB", (60, 50), (shade, 90, 255 - shade)), Image.new("L", (60, 50), index)
            for folder, image in (("images", picture), ("labels", labels)):
                (tmp_path / folder / split).mkdir(parents=True, exist_ok=True)
                image.save(tmp_path / folder / split / f"{index}.png")
    (tmp_path / "classes.txt").write_text("dark\nlight\n")
    splits = [open_data("folder", tmp_path, split) for split in ("train", "val")]
    torch.manual_seed(0)
    weights = cacseg.create_model("fcn", 2, "plain", backbone="mobilenetv2_035").backbone.net.state_dict()
    save_file(weights, tmp_path / "weights.safetensors")
    told = {
        "backbone_weights": tmp_path / "weights.safetensors",
        "padding": "same",
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
    }
    rows = {(row.stride, row.blocks): row for row in script.measure(splits, "mobilenetv2_035", **told)}
    assert set(rows) == set(script.FORMS)
    for (_, blocks), row in rows.items():
        assert (row.correlation > 0.9999) == (blocks == "all")
        assert row.miou > 90.0  # two plain colours


@pytest.mark.parametrize(("options", "held"), [(["--every", "2"], ["b", "d"]), (["--last", "0.25"], ["d"])])
def test_images_are_held_out(tmp_path, options, held):
    for kind, suffix in (("images", "jpg"), ("labels", "png")):
        (tmp_path / "data" / kind / "train").mkdir(parents=True)
        for name in "abcd":
            (tmp_path / "data" / kind / "train" / f"{name}.{suffix}").write_bytes(name.encode())
    (tmp_path / "data" / "classes.txt").write_text("dark\nlight\n")
    command = [sys.executable, ROOT / "tools" / "hold_out.py", tmp_path / "data", tmp_path / "held", *options]
    subprocess.run(command, check=True)
    for kind in ("images", "labels"):
        found = {split: sorted(path.stem for path in (tmp_path / "held" / kind / split).iterdir()) for split in SPLITS}
        assert found == {"train": sorted({*"abcd"} - {*held}), "val": held}
    assert (tmp_path / "held" / "labels" / "val" / "d.png").read_bytes() == b"d"
