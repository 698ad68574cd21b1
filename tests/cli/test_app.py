"""`cacseg app` in a process of its own: it tells its address, answers, and ends by a signal without leaving files."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app_server import encode, get, named_model, noise, post, upload
from command_line import run


@pytest.fixture
def model(tmp_path):
    named_model().save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def start(model, temporary, *options):
    temporary.mkdir()
    command = [
        sys.executable,
        "-m",
        "cacseg.cli",
        "app",
        str(model),
        "--port",
        "0",
        "--device",
        "cpu",
        *map(str, options),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_it_serves_until_a_signal_ends_it(model, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(30):
        (photos / f"{number:02d}.png").write_bytes(encode(noise(seed=number)))
    large = encode(noise(1024, 2048), "JPEG")
    started = {
        kind: start(model, tmp_path / kind.name, "--examples", photos) for kind in (signal.SIGINT, signal.SIGTERM)
    }
    for kind, process in started.items():
        try:
            url = process.stdout.readline().split("/ ")[0]
            assert url.startswith("http://127.0.0.1:")
            described = json.loads(get(f"{url}/api/model")[2])
            assert described["title"] == "model"
            assert len(described["examples"]) == 24
            assert post(f"{url}/api/examples/3")[0] == 200
            assert upload(url, "a.png", encode(noise()))[0] == 200
            (folder,) = (path for path in (tmp_path / kind.name).iterdir() if path.name.startswith("cacseg_app_"))
            with ThreadPoolExecutor(1) as pool:  # the signal comes while a large image is predicted
                answer = pool.submit(upload, url, "large.png", large)
                deadline = time.monotonic() + 30
                while json.loads(get(f"{url}/api/queue")[2])["waiting"] == 0 and time.monotonic() < deadline:
                    time.sleep(0.02)
                process.send_signal(kind)
                _, errors = process.communicate(timeout=30)
                assert answer.result()[0] in (200, 503)
        finally:
            process.kill()
            process.communicate()
        assert "Traceback" not in errors
        assert process.returncode == (0 if kind == signal.SIGINT else -kind)
        assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.safetensors",), "there is no model"),
        (("model.safetensors", "--examples", "nowhere"), "nowhere"),
        (("model.safetensors", "--device", "cuda:99"), "cuda:99"),
        (("model.safetensors", "--host", "203.0.113.7"), "cannot be listened on"),
    ],
)
def test_what_is_refused(model, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(model.parent)
    done = run("app", *arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_the_examples_of_a_run_are_its_validation_images():
    from cacseg.cli.app import _examples_of
    from cacseg.recipes.config import DataConfig

    found = _examples_of(DataConfig(name="synthetic", crop=(32, 32), size=(32, 48), val_length=5))
    assert len(found) == len({example.name for example in found}) == 5
    assert found[0].read().shape == (32, 48, 3)
    assert _examples_of(None) == []


def test_a_run_whose_data_are_gone_has_no_examples(tmp_path, capsys):
    from cacseg.cli.app import _examples_of
    from cacseg.recipes.config import DataConfig

    assert _examples_of(DataConfig(name="camvid", root=str(tmp_path / "gone"), crop=(32, 32))) == []
    assert "gone" in capsys.readouterr().err
