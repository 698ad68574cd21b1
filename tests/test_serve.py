"""The service of examples/serve_onnx.py, over HTTP."""

import http.client
import importlib.util
import io
import json
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cacseg
from distributed_evaluation import small_model

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
SCRIPT = Path(__file__).parent.parent / "examples" / "serve_onnx.py"


def picture(size=(40, 56), kind="PNG"):
    coarse = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC).save(content, kind)
    return content.getvalue()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "model.onnx"
    cacseg.export(small_model(["sky", "road", "tree"]), path)
    return path


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
        (bytes(60_000), 413),
    ],
)
def test_what_is_refused_leaves_the_service_running(port, body, status):
    assert ask(port, body)[0] == status
    assert ask(port, picture())[0] == 200


def test_a_prediction_that_takes_too_long_is_stopped(exported):
    """In this process, where the limit can be shorter than any prediction."""
    import asyncio

    from starlette.exceptions import HTTPException

    spec = importlib.util.spec_from_file_location("serve_onnx", SCRIPT)
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)

    async def predict():
        service = serve.Service(serve.read_options([str(exported), "--seconds", "0.0001"]))
        with pytest.raises(HTTPException) as stopped:
            await service.predict(picture((1200, 1600), "JPEG"))
        service.options.seconds = 60
        return stopped.value.status_code, await service.predict(picture())

    status, content = asyncio.run(predict())
    assert status == 504
    assert content.startswith(b"\x89PNG")
