"""The server as a browser meets it: real requests to a real socket."""

import http.client
import io
import json
import re
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from app_server import (
    CLASSES,
    PALETTE,
    bad_uploads,
    encode,
    get,
    make_server,
    named_model,
    noise,
    post,
    predictor,
    serving,
    upload,
)
from cacseg.app import results, server
from cacseg.app.predict import Predictor
from cacseg.app.server import Example, Server, bind, is_local
from cacseg.models import create_model


@pytest.fixture(scope="module")
def url():
    examples = [Example("scenes/one", noise), Example("gone", lambda: Path("/nowhere/gone.png").read_bytes())]
    with serving(make_server(examples=examples, hosts=("127.0.0.1",))) as address:
        yield address


def test_the_page_needs_nothing_from_elsewhere(url):
    status, headers, body = get(url)
    assert status == 200
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    for name in ("index.html", "page.css", "page.js", "picture.js", "state.js", "icon.svg"):
        status, _, content = get(f"{url}/static/{name}")
        assert status == 200
        assert re.findall(rb"\w+://[^\s\"']+", content.replace(b"http://www.w3.org/2000/svg", b"")) == []
    assert body == (server.STATIC / "index.html").read_bytes()


def test_the_model_is_described(url):
    found = json.loads(get(f"{url}/api/model")[2])
    assert found["names"] == list(CLASSES)
    assert found["palette"] == PALETTE
    assert found["outputs"] == ["plain", "context"]
    assert found["examples"] == ["scenes/one", "gone"]


def test_an_upload_is_predicted_and_its_files_can_be_fetched(url):
    image = noise(37, 61, seed=5)
    status, found = upload(url, "ein Foto (1).png", encode(image))
    assert status == 200, found
    expected = predictor().predict(image)
    assert (found["name"], found["size"], found["shown"]) == ("ein Foto (1).png", [61, 37], [61, 37])
    masks = {}
    for output, answer in expected.answers.items():
        _, headers, content = get(f"{url}/api/results/{found['key']}/{output}.png")
        assert f"{output}.png" in headers["Content-Disposition"]
        with Image.open(io.BytesIO(content)) as picture:
            assert picture.mode == "P"
            assert picture.getpalette()[:9] == [value for colour in PALETTE for value in colour]
            masks[output] = np.asarray(picture)
        assert np.array_equal(masks[output], answer.mask)
        assert found["shares"][output] == [float((answer.mask == label).mean()) for label in range(3)]
    assert found["changed"] == float((masks["plain"] != masks["context"]).mean())
    assert found["moved"] == pytest.approx(expected.moved, abs=1e-5)
    layers = np.frombuffer(get(f"{url}/api/results/{found['key']}/layers.bin")[2], np.uint8).reshape(2, 3, 37, 61)
    assert np.array_equal(layers[1], expected.answers["context"].layers)
    with Image.open(io.BytesIO(get(f"{url}/api/results/{found['key']}/image.jpg")[2])) as picture:
        assert picture.size == (61, 37)


def test_bad_uploads_are_named_and_the_server_goes_on(url):
    for name, content, word in [*bad_uploads(), ("none.png", b"", "empty")]:
        status, found = upload(url, name, content)
        assert status == 422
        assert name in found["error"]
        assert word in found["error"]
    assert upload(url, "good.png", encode(noise()))[0] == 200


def test_examples(url):
    status, found = post(f"{url}/api/examples/0")
    assert (status, found["name"], found["size"]) == (200, "scenes/one", [48, 40])
    status, headers, _ = get(f"{url}/api/examples/0")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    for number, expected in ((1, 422), (2, 404)):
        assert get(f"{url}/api/examples/{number}")[0] == expected
        assert post(f"{url}/api/examples/{number}")[0] == expected


@pytest.mark.parametrize("path", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "x/plain.png", "x/..%2f..%2fplain.png"])
def test_no_other_file_can_be_fetched(url, path):
    assert get(f"{url}/api/results/{path}")[0] == 404
    assert get(f"{url}/static/{path}")[0] == 404


def test_other_sites_are_refused(url):
    """A page elsewhere can send a form or plain text without asking, and a name of its own that leads here."""
    assert post(f"{url}/api/predict", encode(noise()), kind="text/plain")[0] == 415
    assert get(url)[0] == 200
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/", headers={"Host": "elsewhere.example"})
    assert connection.getresponse().status == 400
    connection.close()


def test_uploads_are_bounded_in_size(url, monkeypatch):
    monkeypatch.setattr(server, "UPLOAD_BYTES", 2**20)
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    headers = {"Content-Type": server.BODY}
    connection.request("POST", "/api/predict?name=large.png", None, {**headers, "Content-Length": str(2**20 + 1)})
    answer = connection.getresponse()
    assert answer.status == 413
    assert "large.png has more than 1 MiB" in json.loads(answer.read())["error"]
    connection.close()
    parts = (bytes(2**16) for _ in range(17))  # of a length that nobody told
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("POST", "/api/predict", parts, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_an_upload_that_stalls_is_given_up(url, monkeypatch):
    monkeypatch.setattr(server, "UPLOAD_SECONDS", 0.2)
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("POST", "/api/predict", None, {"Content-Type": server.BODY, "Content-Length": "1000"})
    assert connection.getresponse().status == 408
    connection.close()
    assert json.loads(get(f"{url}/api/queue")[2]) == {"waiting": 0}


class Gated(Predictor):
    """Waits for a gate before each prediction, and counts those under way."""

    gate, active, most = threading.Event(), 0, 0

    def predict(self, image):
        Gated.active += 1
        Gated.most = max(Gated.most, Gated.active)
        try:
            assert self.gate.wait(30)
            return super().predict(image)
        finally:
            Gated.active -= 1


def test_users_queue_and_too_many_are_told_so():
    content = encode(noise())
    with serving(Server(predictor(kind=Gated), "gated")) as url, ThreadPoolExecutor(server.WAITING) as pool:
        answers = [pool.submit(upload, url, f"{k}.png", content) for k in range(server.WAITING)]
        deadline = time.monotonic() + 20
        while json.loads(get(f"{url}/api/queue")[2])["waiting"] < server.WAITING and time.monotonic() < deadline:
            time.sleep(0.02)
        status, found = upload(url, "late.png", content)
        assert status == 503
        assert f"{server.WAITING} predictions are waiting" in found["error"]
        Gated.gate.set()
        assert [one.result()[0] for one in answers] == [200] * server.WAITING
        assert upload(url, "late.png", content)[0] == 200
    assert Gated.most == 1


def test_only_the_last_results_are_kept_and_none_after_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(results, "KEPT", 2)
    with serving(make_server()) as url:
        keys = [upload(url, "a.png", encode(noise()))[1]["key"] for _ in range(3)]
        statuses = [get(f"{url}/api/results/{key}/plain.png")[0] for key in keys]
        assert statuses == [404, 200, 200]
        (folder,) = tmp_path.iterdir()
        assert sorted(path.name for path in folder.iterdir()) == sorted(keys[1:])
    assert list(tmp_path.iterdir()) == []


def test_the_end_waits_for_no_prediction_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    class Endless(Predictor):
        def predict(self, image):
            begun.set()
            assert gate.wait(60)
            return super().predict(image)

    class Watched(Server):
        def _predict(self, *arguments):
            try:
                return super()._predict(*arguments)
            finally:
                ended.set()

    with ThreadPoolExecutor(1) as pool:
        with serving(Watched(predictor(kind=Endless), "endless")) as url:
            answer = pool.submit(upload, url, "a.png", encode(noise()))
            assert begun.wait(30)
        assert not ended.is_set()
        assert answer.result(30)[0] == 503
    gate.set()
    assert ended.wait(30)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_the_server_goes_on(url, monkeypatch):
    def full(*arguments, **more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(results, "save_index_png", full)
        status, found = upload(url, "a.png", encode(noise()))
        assert status == 507
        assert "store" in found["error"]
    assert upload(url, "a.png", encode(noise()))[0] == 200


def test_a_plain_model_without_names():
    model = create_model("fcn", 4, "plain", backbone="test_resnet", head_channels=16)
    with serving(Server(predictor(model), "plain")) as url:
        described = json.loads(get(f"{url}/api/model")[2])
        _, found = upload(url, "a.png", encode(noise()))
    assert described["outputs"] == found["outputs"] == ["plain"]
    assert len(set(map(tuple, described["palette"]))) == len(described["names"]) == 4
    assert found["changed"] is found["moved"] is None


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"127.0.0.1:{port} cannot be listened on.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_what_is_local(host, local):
    assert is_local(host) is local


def test_more_classes_than_a_mask_holds():
    model = named_model()
    model.num_classes = 300
    with pytest.raises(ValueError, match="300"):
        predictor(model)
