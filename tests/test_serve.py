"""The service of examples/serve_onnx.py, over HTTP."""

import asyncio
import http.client
import importlib.util
import io
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bad_files as bad
import cacseg
from onnx_files import Small, write_small

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
from starlette.exceptions import HTTPException
from starlette.requests import Request

UNREAD = ("claims.webp", "claims_gif.png")  # of the files that claim to be large, those that Pillow takes for none
SCRIPT = Path(__file__).parent.parent / "examples" / "serve_onnx.py"


def picture(size=(40, 56), kind="PNG"):
    coarse = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC).save(content, kind)
    return content.getvalue()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "model.onnx"
    return write_small(path, Small(3), class_names=["sky", "road", "tree"])


@pytest.fixture(scope="module")
def port(exported):
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    limits = ["--megapixels", "0.01", "--megabytes", "0.05", "--threads", "1"]
    process = subprocess.Popen([sys.executable, str(SCRIPT), str(exported), "--port", str(number), *limits])
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", number), 1).close()
            break
        except OSError:
            assert process.poll() is None
            time.sleep(0.2)
    yield number
    process.terminate()
    process.wait(20)


def ask(port, body=None, path="/mask", headers={}):  # noqa: B006 (never changed)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_an_image_in_a_mask_out(port, exported):
    status, content = ask(port, picture())
    assert status == 200
    with Image.open(io.BytesIO(content)) as mask:
        assert mask.mode == "P"
        expected = cacseg.Predictor(exported, device="cpu")(np.asarray(Image.open(io.BytesIO(picture()))))
        assert np.array_equal(np.asarray(mask), expected.mask)
    described = json.loads(ask(port, path="/")[1])
    assert described["classes"] == ["sky", "road", "tree"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"no image", 400),
        (picture()[:200], 400),
        (picture((101, 100), "JPEG"), 413),  # more pixels than allowed
        pytest.param(bytes(60_000), 413, id="60,000 bytes"),
        *(pytest.param(content, 413, id=name) for name, content in bad.CLAIMS.items() if name not in UNREAD),
        *(pytest.param(bad.CLAIMS[name], 400, id=name) for name in UNREAD),
    ],
)
def test_what_is_refused_leaves_the_service_running(port, body, status):
    code, answer = ask(port, body)
    assert code == status
    assert json.loads(answer).keys() == {"error"}
    assert ask(port, picture())[0] == 200


@pytest.mark.parametrize(("path", "body", "status"), [("/masks", b"", 404), ("/mask", None, 405)])
def test_other_paths_and_methods(port, path, body, status):
    code, answer = ask(port, body, path)
    assert code == status
    assert json.loads(answer).keys() == {"error"}


def form(*parts, boundary="x"):
    """What `curl -F` sends."""
    lines = [
        f"--{boundary}\r\nContent-Disposition: form-data; {about}\r\n\r\n".encode() + content
        for about, content in parts
    ]
    return b"\r\n".join([*lines, f"--{boundary}--\r\n".encode()])


def test_a_form_gives_what_its_file_gives(port):
    kind = {"content-type": "multipart/form-data; boundary=x"}
    text, file = ('name="note"', b"street"), ('name="image"; filename="a.png"', picture())
    assert ask(port, form(text, file), headers=kind) == ask(port, picture())
    quoted = {"content-type": 'multipart/form-data; boundary="a b"'}
    assert ask(port, form(file, boundary="a b"), headers=quoted)[0] == 200
    for wrong in (form(text), form(file)[:300], b""):
        assert ask(port, wrong, headers=kind)[0] == 400


@pytest.fixture(scope="module")
def serve():
    spec = importlib.util.spec_from_file_location("serve_onnx", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def serving(serve, *options):
    """The port of a service in this process, with its own limits."""
    server = serve.make_server(serve.read_options([*map(str, options), "--port", "0", "--threads", "1"]))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def received(client):
    """Status and body of what comes until the service closes the connection."""
    client.settimeout(30)
    content = b"".join(iter(partial(client.recv, 2**16), b""))
    head, _, body = content.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


HEAD = b"POST /mask HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"


def test_slow_clients_are_let_go(exported, serve):
    """Of headers and of bodies that do not come: one has its own deadline from the other's end."""
    with serving(serve, exported, "--seconds", 0.3) as port:
        start = time.perf_counter()
        sent = (
            b"",
            b"POST /mask HT",
            HEAD + b"content-length: 100\r\n\r\nbeginning",
            HEAD + b"transfer-encoding: chunked\r\n\r\n",
        )
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in sent]
        for client, content in zip(clients, sent, strict=True):
            client.sendall(content)
        for client in clients:
            with client:
                status, body = received(client)
                assert status == 408
                assert "0.3 s" in body["error"]
        assert 0.3 <= time.perf_counter() - start < 10
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as kept:
            kept.request("GET", "/")
            assert kept.getresponse().read()
            kept.sock.sendall(b"GET / HT")  # which keeps the connection open no longer than the first
            assert kept.sock.recv(100) == b""
        assert ask(port, path="/")[0] == 200


def test_as_many_connections_as_are_allowed(exported, serve):
    with serving(serve, exported, "--connections", 2) as port:
        first, second, third = (socket.create_connection(("127.0.0.1", port)) for _ in range(3))
        with first, second, third:
            status, body = received(third)
            assert status == 503
            assert "connections" in body["error"]
            first.sendall(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert received(first)[0] == 200
        assert ask(port, path="/")[0] == 200


def test_what_is_too_long_is_refused_before_it_comes(port):
    for length in (50_001, 10**12):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(HEAD + b"content-length: %d\r\n\r\n" % length)
            status, body = received(client)
            assert status == 413
            assert "0.05 MB" in body["error"]


def test_what_is_no_http_is_answered(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"no http\r\n\r\n")
        assert received(client)[0] == 400


def post(service, body):
    """Status and body of the answer to a request; None as the body is a client that is gone."""
    event = {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body, "more_body": False}

    async def receive():
        return event

    async def answer():
        scope = {"type": "http", "method": "POST", "path": "/mask", "headers": []}
        try:
            response = await service.mask(Request(scope, receive))
        except HTTPException as error:
            return error.status_code, error.detail
        return response.status_code, response.body

    return answer()


def test_one_deadline_for_the_queue_and_the_prediction(exported, serve, monkeypatch):
    """The worker is held up: those who wait are answered all the same, and it serves the next when it is free."""
    service = serve.Service(serve.read_options([str(exported), "--seconds", "0.3", "--waiting", "3"]))
    predict, free, seen = service.backend.predict, threading.Event(), []

    def held(views, size, *, run):
        assert free.wait(60)
        seen.append(run.terminate)
        return predict(views, size, run=run)

    monkeypatch.setattr(service.backend, "predict", held)

    async def ask():
        start = time.perf_counter()
        late = await asyncio.gather(*(post(service, picture()) for _ in range(4)))
        seconds = time.perf_counter() - start
        free.set()
        service.options.seconds = 60
        return late, seconds, await post(service, picture())

    late, seconds, (status, content) = asyncio.run(ask())
    assert sorted(code for code, _ in late) == [503, 504, 504, 504]
    assert 0.3 <= seconds < 5.0  # while the worker is held
    assert seen == [True, False]  # of those that were late, the two that had not begun never do
    assert (status, content[:4]) == (200, b"\x89PNG")
    assert service.waiting == 0


def test_a_prediction_is_stopped_within_the_graph(exported, serve):
    backend, run = serve.OnnxBackend(exported, threads=1), serve.onnxruntime.RunOptions()
    run.terminate = True
    with pytest.raises(Exception, match="terminate"):
        backend.predict([backend.view(np.zeros((64, 64, 3), np.uint8))], (64, 64), run=run)


def test_a_client_that_is_gone(exported, serve):
    service = serve.Service(serve.read_options([str(exported)]))

    async def ask():
        return await post(service, None), await post(service, picture())

    gone, after = asyncio.run(ask())
    assert (gone[0], after[0]) == (400, 200)
    assert service.waiting == 0


def test_the_limit_counts_classes(exported, serve):
    service = serve.Service(serve.read_options([str(exported), "--gigabytes", "0.000024"]))
    assert service.pixels == 2000  # times 3 classes times 4 bytes
    assert asyncio.run(post(service, picture((40, 50))))[0] == 200
    assert asyncio.run(post(service, picture((40, 51))))[0] == 413
