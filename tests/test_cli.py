"""The commands as a user runs them, the first in a process of their own."""

import gzip
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import cacseg
import command_line
from cacseg.models import create_model


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """A command, run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(command_line.run, capsys=capsys, monkeypatch=monkeypatch)


def test_help_and_version():
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "cacseg.cli"]
    version, text = (
        subprocess.run([*command, option], capture_output=True, text=True, env=environment).stdout
        for option in ("--version", "--help")
    )
    assert version.strip() == cacseg.__version__
    assert "models" in text
    assert "import-weights" in text


def test_models_as_a_table_and_as_json(run):
    table = run("models", "fcn_mobilenetv2", "--size", 64).out
    for figure in ("fcn_mobilenetv2", "9.82", "10.61"):
        assert figure in table
    found = json.loads(run("models", "fcn_mobilenetv2", "--num-classes", 19, "--size", 64, "--json").out)
    assert found["num_classes"] == 19
    assert found["models"][0]["context"]["parameters"] > found["models"][0]["plain"]["parameters"]
    heads = json.loads(run("models", "UPER", "--backbone", "resnet18", "--size", 64, "--json").out)
    assert [entry["name"] for entry in heads["models"]] == ["upernet"]
    wrong = run("models", "vgg")
    assert wrong.code == 2
    assert "no model's name contains 'vgg'" in wrong.err
    assert "Traceback" not in wrong.err


def reference_checkpoint(model):
    """Our model's weights under the names of the authors' code, by hand: the inverse of what is tested."""
    from cacseg.models.released import convert_state_dict

    names = {"classifier.weight": "decode_head.conv_seg.weight", "classifier.bias": "decode_head.conv_seg.bias"}
    for ours, theirs in (("context_projector", "proj"), ("oracle_projector", "apd_proj")):
        for leaf in ("0.weight", "2.weight", "2.bias"):
            names[f"classifier.{ours}.{leaf}"] = f"decode_head.{theirs}.{leaf}"
    state = {}
    for name, value in model.state_dict().items():
        theirs = names.get(name)
        if theirs is None and name.startswith("auxiliary.classifier."):
            theirs = name.replace("auxiliary.classifier.", "auxiliary_head.conv_seg.")
        elif theirs is None and name.startswith("auxiliary.head."):
            theirs = name.replace("auxiliary.head.", "auxiliary_head.").replace(".norm.", ".bn.")
        elif theirs is None and name.startswith("head."):
            theirs = name.replace("head.fuse.", "decode_head.conv_cat.").replace("head.convs.", "decode_head.convs.")
            theirs = theirs.replace(".norm.", ".bn.")
        elif theirs is None:
            theirs = mobilenet_name(name.removeprefix("backbone.net."))
        state[theirs] = value
    assert convert_state_dict(state, "fcn_mobilenetv2").missing == []
    return state


def mobilenet_name(name):
    stem = {"conv_stem": "conv1.conv", "bn1": "conv1.bn"}
    part, rest = name.split(".", 1)
    if part in stem:
        return f"backbone.{stem[part]}.{rest}"
    _, stage, block, layer, leaf = name.split(".", 4)
    order = {"conv_dw": 0, "conv_pw": 1} if stage == "0" else {"conv_pw": 0, "conv_dw": 1, "conv_pwl": 2}
    position, kind = (order[layer], "conv") if layer in order else (int(layer[2]) - 1, "bn")
    return f"backbone.layer{int(stage) + 1}.{block}.conv.{position}.{kind}.{leaf}"


def test_import_weights(tmp_path, run):
    torch.manual_seed(0)
    model = create_model("fcn_mobilenetv2", 5, preset="released", dilated_blocks="first").eval()
    meta = {"CLASSES": ("a", "b", "c", "d", "e"), "PALETTE": [[i, i, i] for i in range(5)]}
    torch.save({"meta": meta, "state_dict": reference_checkpoint(model)}, tmp_path / "iter_160000.pth")
    done = run("import-weights", "iter_160000.pth", "--model", "fcn_mobilenetv2")
    assert done.code == 0, done.err
    assert re.search(r"\b5\b.*\bcontext\b.*\b340\b.*\b0\b", done.out)  # classes, tensors used, tensors left over
    imported = cacseg.load(tmp_path / "iter_160000.safetensors")
    assert imported.class_names == ["a", "b", "c", "d", "e"]
    assert imported.palette[4] == [4, 4, 4]
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(imported(images), model(images))
    again = run("import-weights", "iter_160000.pth", "--model", "fcn_mobilenetv2")
    assert again.code == 2
    assert "exists already" in again.err
    assert run("import-weights", "iter_160000.pth", "--model", "fcn_mobilenetv2", "--overwrite").code == 0


@pytest.mark.parametrize("wrong", ["model", "name", "file", "hostile"])
def test_import_weights_refuses(tmp_path, run, wrong):
    """One line on stderr, exit code 2, no traceback, nothing written, nothing run."""

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    state = {"decode_head.conv_seg.weight": torch.zeros(5, 512, 1, 1)}
    if wrong == "hostile":
        state["x"] = Hostile()
    torch.save(state, tmp_path / "a.pth")
    if wrong == "file":
        (tmp_path / "a.pth").write_bytes(b"PK\x03\x04 cut short")
    name = "upernet_swin_tinny" if wrong == "name" else "upernet_swin_tiny"
    done = run("import-weights", "a.pth", "--model", name)
    expected = {
        "model": "a.pth does not fit upernet_swin_tiny",
        "name": "Did you mean 'upernet_swin_tiny'",
        "file": "cannot be read",
        "hostile": "could run code",
    }[wrong]
    assert done.code == 2
    assert expected in done.err
    assert "Traceback" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth"]


def test_import_weights_of_another_model(tmp_path, run):
    """All that the shallower backbone needs is there: exit code 2, the right model named, nothing written."""
    keys = Path(__file__).parent / "models" / "released_checkpoint_keys.json.gz"
    shapes = json.loads(gzip.decompress(keys.read_bytes()))["upernet_resnet101"]
    torch.save({key: torch.zeros(()).expand(shape) for key, shape in shapes.items()}, tmp_path / "a.pth")
    done = run("import-weights", "a.pth", "--model", "upernet_resnet50")
    assert done.code == 2
    assert {"a.pth", "upernet_resnet50", "255", "upernet_resnet101"} <= set(re.findall(r"[\w.]*\w", done.err))
    assert not (tmp_path / "a.safetensors").exists()


def test_import_weights_says_what_it_leaves_out(tmp_path, run):
    torch.manual_seed(0)
    state = reference_checkpoint(create_model("fcn_mobilenetv2", 5, preset="released"))
    state = {key: value.half() if value.is_floating_point() else value for key, value in state.items()}
    more = {f"backbone.extra.{index}.num_batches_tracked": torch.zeros(()) for index in range(3)}
    torch.save({**state, **more, "epoch": 7}, tmp_path / "a.pth")
    done = run("import-weights", "a.pth", "--model", "fcn_mobilenetv2")
    assert done.code == 0, done.err
    assert re.search(r"\b340\b.*\b4\b", done.out)
    lines = [line for line in done.out.splitlines() if "not used:" in line]
    assert re.search(r"backbone\.extra\.0\.num_batches_tracked\b.*\b2 more", lines[0])
    assert [len(lines), "epoch" in lines[1]] == [2, True]
    assert "float16" in done.out
