"""What SECURITY.md promises: no code from files, no network unasked, nothing written elsewhere."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import uvicorn
import yaml
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cacseg
import data_trees as trees
import label_trees
from cacseg.app import server
from cacseg.data.check import check_data
from cacseg.data.convert import convert
from cacseg.data.layout import USUAL
from cacseg.engine.checkpoints import read_checkpoint
from cacseg.recipes.protocol import data_of_run
from campaign.loads import service_of
from command_line import run
from compare_runs import TINY
from distributed_evaluation import small_model

ROOT = Path(__file__).parents[1]


class Hostile:
    """Unpickling this writes a file, where something lets it."""

    def __init__(self, trap):
        self.trap = trap

    def __reduce__(self):
        return Path.touch, (self.trap,)


def snapshot(folder, without=None):
    """Every file and link below a folder, and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if without is None or without not in (path, *path.parents):
            found[path] = os.readlink(path) if path.is_symlink() else path.is_dir() or path.read_bytes()
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    small_model(["road", "car", "sky"]).save(path)
    return path


def photos(folder, names=("a",)):
    folder.mkdir(parents=True, exist_ok=True)
    for k, name in enumerate(names):
        Image.fromarray(trees.image(k, (40, 48))).save(folder / f"{name}.png")
    return folder


# --- no code from files


def test_a_checkpoint_runs_nothing(tmp_path):
    trap, path = tmp_path / "trap", tmp_path / "last.ckpt"
    torch.save({"state_dict": {}, "x": Hostile(trap)}, path)
    torch.load(path, weights_only=False)
    assert trap.exists()  # where nothing stops it
    trap.unlink()
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read"):
        read_checkpoint(path)
    assert not trap.exists()


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir", "!!python/object/new:os.mkdir"])
def test_yaml_runs_nothing(tag, tmp_path):
    trap = tmp_path / "trap"
    label_trees.yolo(tmp_path / "data", label_trees.scenes())
    path = tmp_path / "data" / "data.yaml"
    path.write_text(path.read_text() + f"\nextra: {tag} ['{trap}']\n")
    yaml.unsafe_load(path.read_text())
    assert trap.exists()  # where nothing stops it
    trap.rmdir()
    with pytest.raises(ValueError, match=r"data\.yaml"):
        check_data("yolo", tmp_path / "data", workers=0)
    assert not trap.exists()


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    trap = tmp_path / "trap"
    np.save(tmp_path / "a.npy", np.array([Hostile(trap)], dtype=object), allow_pickle=True)
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert trap.exists()  # where nothing stops it
    trap.unlink()
    predictor = cacseg.Predictor(small_model(), device="cpu")
    predictor.backend.bands = 4
    with pytest.raises(OSError, match=r"a\.npy"):
        predictor(tmp_path / "a.npy")
    assert not trap.exists()


# --- no network


@pytest.fixture
def no_network(monkeypatch):
    """Refuses connections, but for those between processes of this machine, and records them."""
    asked, connect = [], socket.socket.connect

    def refuse(self, address):
        if self.family == socket.AF_UNIX:
            return connect(self, address)
        asked.append(address)
        raise OSError("the network is off")

    def resolve(*arguments, **more):
        asked.append(arguments)
        raise OSError("the network is off")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def test_the_guard_sees_a_connection(no_network):
    with pytest.raises(OSError, match="network is off"):
        socket.create_connection(("192.0.2.1", 80), 1)
    with pytest.raises(OSError, match="network is off"), socket.socket() as one:
        one.connect(("192.0.2.1", 80))
    assert len(no_network) == 2


def test_training_evaluating_predicting_and_reporting_ask_nobody(no_network, tmp_path, capsys, monkeypatch):
    how = [part for part in TINY if part not in ("--devices", "cpu")]
    how += ["--set", "model.backbone=test_resnet", "--set", "schedule.steps=2", "--set", "training.accelerator=cpu"]
    folder, tools = tmp_path / "run", {"capsys": capsys, "monkeypatch": monkeypatch}
    images = photos(tmp_path / "photos")
    for command in (
        ["train", *how, "-o", folder, "--no-progress"],
        ["eval", folder, "-o", folder / "eval", "--device", "cpu"],
        ["predict", folder, images, "-o", tmp_path / "out", "--device", "cpu"],
        ["report", folder, "--device", "cpu"],
        ["hub", folder, "-o", tmp_path / "hub", "--device", "cpu"],
    ):
        done = run(*command, **tools)
        assert done.code == 0, done.err
    assert no_network == []


GUARD = """
import os, sys
def refuse(event, arguments):
    if event == "socket.getaddrinfo" or (event in ("socket.connect", "socket.sendto") and arguments[0].family != 1):
        with open(os.environ["ASKED"], "a") as file:
            print(event, arguments[1:], file=file)
        raise OSError("the network is off")
sys.addaudithook(refuse)
"""


@pytest.mark.slow
def test_no_process_of_a_comparison_or_an_export_asks_anybody(model, tmp_path):
    """The interpreter itself tells of every connection, in every process that a command starts."""
    (tmp_path / "sitecustomize.py").write_text(GUARD)
    asked, path = tmp_path / "asked", os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "ASKED": str(asked), "OMP_NUM_THREADS": "1"}
    arms = ["--arms", "plain,tuned", "--seeds", "1", "--steps", "2", "--set", "model.backbone=test_resnet"]
    for command in (
        ["compare", *TINY, *arms, "-o", str(tmp_path / "comparison")],
        ["export", str(model), "-o", str(tmp_path / "model.onnx")],
        ["predict", str(tmp_path / "model.onnx"), str(photos(tmp_path / "photos")), "-o", str(tmp_path / "out")],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "cacseg.cli", *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert not asked.exists(), asked.read_text()
    look = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
    subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, check=False)
    assert asked.exists()  # the guard was there


@pytest.mark.parametrize("backbone", ["hf_hub:timm/resnet18.a1_in1k", "hf-hub:someone/model", "local-dir:/tmp"])
def test_a_model_file_cannot_start_a_download(backbone, model, no_network, tmp_path):
    with safe_open(model, "pt") as file:
        described = file.metadata()
    arguments = {**json.loads(described["arguments"]), "backbone": backbone}
    path = tmp_path / "other.safetensors"
    save_file(load_file(model), path, {**described, "arguments": json.dumps(arguments)})
    with pytest.raises(ValueError, match=r"other\.safetensors"):
        cacseg.load(path)
    assert no_network == []


def test_a_model_of_the_hub_names_no_folder_of_this_machine(tmp_path):
    stated = {"name": "folder", "crop": [32, 32], "root": "/etc"}
    (tmp_path / "config.json").write_text(json.dumps({"format": "cacseg model 1", "data": stated}))
    assert data_of_run(tmp_path / "model.safetensors").root is None


# --- nothing written elsewhere


@pytest.mark.parametrize(
    "name", ["../../outside/x.png", "/ABSOLUTE/outside/x.png", "..\\..\\outside\\x.png", "../x.png"]
)
@pytest.mark.parametrize("tool", ["coco", "labelme", "label_studio"])
def test_names_in_labels_do_not_lead_out_of_a_conversion(tool, name, tmp_path):
    place = tmp_path / "in" / "data"
    getattr(label_trees, tool)(place, label_trees.scenes(count=1))
    photos(tmp_path / "outside", ["x"])
    photos(tmp_path / "in", ["x"])
    name = name.replace("/ABSOLUTE", str(tmp_path))
    for path in place.rglob("*.json"):
        text = json.loads(path.read_text())
        if tool == "coco":
            text["images"][0]["file_name"] = name
        elif tool == "labelme":
            text["imagePath"] = name
        else:
            text[0]["file_upload"] = name
            text[0]["data"]["image"] = name
        path.write_text(json.dumps(text))
    output = tmp_path / "deep" / "er" / "out"
    output.parent.mkdir(parents=True)
    before = snapshot(tmp_path, without=output)
    with suppress(ValueError, OSError):  # or it is refused
        convert(tool, place, output, rules=USUAL, workers=1)
    assert snapshot(tmp_path, without=output) == before


def test_names_in_an_index_do_not_lead_out(model, tmp_path, capsys, monkeypatch):
    tools = {"capsys": capsys, "monkeypatch": monkeypatch}
    images, output = photos(tmp_path / "photos", ["a", "b"]), tmp_path / "deep" / "out"
    command = ["predict", model, images, "-o", output, "--format", "coco", "--device", "cpu"]
    assert run(*command, **tools).code == 0
    index = output / "index.csv"
    rows = index.read_text().splitlines()
    index.write_text("\n".join([rows[0], rows[1].replace("a,", "../../../evil,", 1), f"{tmp_path}/evil,x,1,1,1,1", ""]))
    before = snapshot(tmp_path, without=output)
    assert run(*command, **tools).code == 0
    assert snapshot(tmp_path, without=output) == before


def test_links_to_files_in_an_output_are_replaced_not_written_through(model, tmp_path, capsys, monkeypatch):
    tools = {"capsys": capsys, "monkeypatch": monkeypatch}
    images, output, precious = photos(tmp_path / "photos"), tmp_path / "out", tmp_path / "precious"
    precious.write_text("mine")
    for name in ("masks/a.png", "overlays/a.jpg", "predict.json", "index.csv", "coco.json", "coco/a.json"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).symlink_to(precious)
    done = run("predict", model, images, "-o", output, "--overwrite", "--format", "coco", "--device", "cpu", **tools)
    assert done.code == 0, done.err
    assert precious.read_text() == "mine"
    assert not any(path.is_symlink() for path in output.rglob("*"))


def test_a_folder_in_an_output_may_be_a_link(model, tmp_path, capsys, monkeypatch):
    """It is followed, and nothing but the masks that belong there is written or changed behind it."""
    images, output, elsewhere = photos(tmp_path / "photos"), tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    output.mkdir()
    (output / "masks").symlink_to(elsewhere)
    done = run(
        "predict", model, images, "-o", output, "--overwrite", "--device", "cpu", capsys=capsys, monkeypatch=monkeypatch
    )
    assert done.code == 0, done.err
    assert (output / "masks").is_symlink()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["a.png", "mine.txt"]
    assert (elsewhere / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["../../evil.png", "/etc/evil.png", "..\\..\\evil.png", "a/../../evil.png"])
def test_names_of_uploads_lead_nowhere(name, tmp_path, monkeypatch):
    import tempfile
    from urllib.parse import quote

    from app_server import encode, make_server, noise
    from cacseg.app.server import BODY
    from campaign.loads import ask

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    made = make_server()

    async def upload():
        async with made._lifespan(made.app):
            answer = await ask(made.app, "/api/predict", f"name={quote(name)}".encode(), BODY, encode(noise()))
            return answer, snapshot(tmp_path)

    (status, body), found = asyncio.run(upload())
    assert (status, json.loads(body)["name"]) == (200, "evil.png")
    assert not any("evil" in path.name for path in found)
    assert snapshot(tmp_path / "a" / "b") == {}


# --- the page


def test_the_page_listens_to_this_machine_alone(model, tmp_path, capsys, monkeypatch):
    """What the command binds by its own options, and the service by those that it parses."""
    served = []
    monkeypatch.setattr(server, "serve", lambda made, listening: served.append((made, listening.getsockname()[0])))
    command, tools = ["app", model, "--port", 0, "--device", "cpu"], {"capsys": capsys, "monkeypatch": monkeypatch}
    assert run(*command, **tools).code == 0
    done = run(*command, "--host", "0.0.0.0", **tools)
    assert (done.code, "no password" in done.err) == (0, True)
    (here, address), (everywhere, other) = served
    assert (address, other) == ("127.0.0.1", "0.0.0.0")
    assert [_status(one.app, "elsewhere.example") for one in (here, everywhere)] == [400, 200]
    assert _status(here.app, "localhost:8000") == 200
    from onnx_files import Small, write_small  # skips without onnx

    options = service_of(write_small(tmp_path / "classes.onnx", Small(3), "classes")).options
    with uvicorn.Config(None, host=options.host, port=0).bind_socket() as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def _status(app, host):
    """Of the page, asked for under the name of a host."""
    parts = []

    waiting = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if not waiting:
            await asyncio.sleep(3600)  # the client stays
        return waiting.pop()

    async def send(message):
        parts.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"}
    scope |= {
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", host.encode())],
    }
    asyncio.run(app({**scope, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}, receive, send))
    return parts[0]["status"]


def test_the_tests_that_the_page_names_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 12
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), (path, name)
