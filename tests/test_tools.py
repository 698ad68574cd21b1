"""The scripts of benchmarks/ and tools/ that docs name."""

import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError

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


def _index(pages):
    """Answers of an index of packages: a page, or the status of an error."""

    def answer(address, timeout):
        found = pages.get(address.removeprefix("https://pypi.org/pypi/").removesuffix("/json"), 404)
        if isinstance(found, int):
            raise HTTPError(address, found, "no", {}, None)
        if isinstance(found, Exception):
            raise found
        return io.BytesIO(found if isinstance(found, bytes) else json.dumps(found).encode())

    return answer


def _page(version, *advisories):
    return {"info": {"version": version}, "vulnerabilities": [{"id": one, "withdrawn": None} for one in advisories]}


def test_an_audit_tells_weak_from_unknown(monkeypatch):
    audit = load("audit", "tools")
    gone = {"id": "PYSEC-9", "withdrawn": "2020-01-01"}
    pages = {"pycrypto/2.6.1": _page("2.6.1", "PYSEC-1"), "fine/1.0": _page("1.0"), "newest": _page("2.0")}
    pages |= {"weak/1.0": _page("1.0", "PYSEC-7"), "old": _page("9.0"), "html/1": b"<html>", "html": b"<html>"}
    pages |= {"withdrawn/1": {**_page("1"), "vulnerabilities": [gone]}, "off/1": URLError("refused"), "off": 503}
    monkeypatch.setattr(audit, "urlopen", _index(pages))
    code, lines = audit.judge([("fine", "1.0"), ("newest", "2.0"), ("withdrawn", "1")])
    assert (code, len(lines)) == (audit.FINE, 1)
    code, lines = audit.judge([("fine", "1.0"), ("weak", "1.0"), ("none", "1")])
    assert code == audit.WEAK
    assert "weak 1.0: PYSEC-7" in lines
    code, lines = audit.judge([("fine", "1.0"), ("old", "1.0"), ("none", "1"), ("html", "1"), ("off", "1")])
    assert code == audit.UNKNOWN
    assert "1 without known weaknesses, 0 with some, 4 not audited" in lines[-1]
    expected = [("old 1.0", "404", "9.0"), ("none 1", "404"), ("html 1",), ("off 1", "refused")]
    for line, words in zip(lines[:-1], expected, strict=True):
        assert all(word in line for word in words), line
    for control in ({}, {"pycrypto/2.6.1": _page("2.6.1")}, {"pycrypto/2.6.1": URLError("refused")}):
        monkeypatch.setattr(audit, "urlopen", _index({**pages, "pycrypto": 404, "pycrypto/2.6.1": 404, **control}))
        code, lines = audit.judge([("fine", "1.0")])
        assert (code, len(lines)) == (audit.UNASKED, 1)
