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
from contextlib import closing
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


def ask(port, body=None, path="/mask"):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
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
        (b"", 422),
        (b"no image", 422),
        (picture()[:200], 422),
        (picture((101, 100), "JPEG"), 422),  # more pixels than allowed
        pytest.param(bytes(60_000), 413, id="60,000 bytes"),
        *(pytest.param(content, 422, id=name) for name, content in bad.CLAIMS.items()),
    ],
)
def test_what_is_refused_leaves_the_service_running(port, body, status):
    assert ask(port, body)[0] == status
    assert ask(port, picture())[0] == 200


@pytest.fixture(scope="module")
def serve():
    spec = importlib.util.spec_from_file_location("serve_onnx", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def post(service, body, content_type=b"application/octet-stream"):
    """Status and body of the answer to a request; None as the body is a client that is gone."""
    event = {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body, "more_body": False}

    async def receive():
        return event

    async def answer():
        scope = {"type": "http", "method": "POST", "path": "/mask", "headers": [(b"content-type", content_type)]}
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


def test_a_client_that_is_gone_and_a_form(exported, serve):
    service = serve.Service(serve.read_options([str(exported)]))

    async def ask():
        form = await post(service, picture(), b"multipart/form-data; boundary=x")
        return await post(service, None), form, await post(service, picture())

    gone, (status, words), after = asyncio.run(ask())
    assert gone[0] == 400
    assert status == 415
    assert "--data-binary" in words
    assert after[0] == 200
    assert service.waiting == 0


def test_the_limit_counts_classes(exported, serve):
    service = serve.Service(serve.read_options([str(exported), "--gigabytes", "0.000024"]))
    assert service.pixels == 2000  # times 3 classes times 4 bytes
    assert asyncio.run(post(service, picture((40, 50))))[0] == 200
    assert asyncio.run(post(service, picture((40, 51))))[0] == 422
