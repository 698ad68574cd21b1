"""`cacseg train` as a user runs it, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cacseg.cli import main

SETTINGS = {
    "model.name": "fcn",
    "model.backbone": "test_resnet",
    "model.head_channels": 16,
    "data.length": 20,
    "data.val_length": 2,
    "data.crop": [64, 64],
    "training.batch": 2,
    "training.workers": 1,
    "training.log_every": 1,
    "training.loggers": ["csv", "tensorboard"],
    "training.accelerator": "cpu",
    "training.devices": 1,
}


def command(*arguments):
    return [sys.executable, "-m", "cacseg.cli", "train", *map(str, arguments)]


def environment():
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def settings(**changes):
    return [part for key, value in {**SETTINGS, **changes}.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def test_ctrl_c_ends_with_a_checkpoint_and_says_how_to_go_on(tmp_path):
    arguments = command("synthetic", "-o", tmp_path / "run", *settings())
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    process = subprocess.Popen(arguments, env=environment(), start_new_session=True, **options)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None and not (tmp_path / "run" / "metrics.csv").exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "stopping after this step" in errors
    assert f"continue with: cacseg train --resume -o {tmp_path / 'run'}" in errors
    assert "Traceback" not in errors
    names = {path.name for path in (tmp_path / "run").glob("[!.]*")}
    assert names == {"config.json", "last.ckpt", "last.safetensors", "metrics.csv", "tensorboard"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sythetic"], "there is no recipe 'sythetic'. Did you mean 'synthetic'?"),
        (["synthetic", "--set", "optimizer.rate=1"], "Did you mean 'optimiser.rate'"),
        (["folder"], "'folder' needs a root"),
        (["."], "cacseg train folder --root"),
        ([], "a recipe is needed"),
        (["--resume", "-o", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cacseg", "train", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    errors = capsys.readouterr().err
    assert left.value.code == 2
    assert words in errors
    assert len(errors.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_second_word_is_asked_for_as_the_root(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cacseg", "train", "folder", "my_data"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "--root my_data" in capsys.readouterr().err


def test_where_an_error_comes_from_is_shown_when_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACSEG_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["cacseg", "train", "sythetic"])
    with pytest.raises(ValueError, match="there is no recipe 'sythetic'"):
        main()


def answer(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["cacseg", "train", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    return capsys.readouterr().out


def test_every_setting_is_listed(monkeypatch, capsys):
    lines = answer(capsys, monkeypatch, "folder", "--settings", "--set", "data.crop=32x64").splitlines()
    rows = {row[1].strip(): [cell.strip() for cell in row[2:5]] for line in lines if len(row := line.split("│")) == 6}
    assert rows["data.crop"][:2] == ["int,int", "32,64"]
    assert all(meaning for *_, meaning in rows.values())
    assert rows["training.precision"][:2] == ["fp32 | tf32 | bf16 | fp16", "fp32"]
    defaults = answer(capsys, monkeypatch, "--settings")
    assert all(key in defaults for key in rows)
    assert "of the recipe" in defaults


def test_the_list_and_the_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    listed = answer(capsys, monkeypatch, "cocostuff164k/fcn", "--list")
    for part in ("cocostuff164k/fcn_mobilenetv2", "512x512", "sgd 0.01", "160000", "not stated in the paper"):
        assert part in listed
    found = json.loads(
        answer(capsys, monkeypatch, "camvid", "--root", "here", "--set", "data.crop=32,64", "--print-config")
    )
    assert (found["data"]["root"], found["data"]["crop"]) == ("here", [32, 64])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "camvid").mkdir()  # which may well be the data: the recipe is meant
    assert json.loads(answer(capsys, monkeypatch, "camvid", "--print-config"))["data"]["name"] == "camvid"
    (tmp_path / "mine.json").write_text(json.dumps(found))  # what was printed is a recipe
    again = json.loads(answer(capsys, monkeypatch, "mine.json", "--set", "training.loggers=csv", "--print-config"))
    assert again == {**found, "training": {**found["training"], "loggers": ["csv"]}}
