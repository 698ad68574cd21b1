"""The web page of a tiny model, served in a thread of this process, and requests to it."""

import io
import json
import threading
import time
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import numpy as np
import torch
import uvicorn
from PIL import Image

from cacseg.app.predict import Predictor
from cacseg.app.server import BODY, Server, bind
from cacseg.engine.inference import Inference
from distributed_evaluation import small_model

CLASSES = ("grass", "sky", "stone")
PALETTE = [[10, 200, 10], [10, 10, 200], [90, 90, 90]]


def named_model():
    model = small_model(CLASSES)
    model.palette = PALETTE
    return model


def predictor(model=None, kind=Predictor, inference=Inference(), scale=None):  # noqa: B008 (frozen)
    return kind(named_model() if model is None else model, inference, scale, torch.device("cpu"))


def noise(height=40, width=48, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encode(image, kind="PNG"):
    content = io.BytesIO()
    Image.fromarray(image).save(content, kind)
    return content.getvalue()


def bomb(width=20_000, height=10_000):
    """A PNG of 200 megapixels in a few kilobytes."""
    content = io.BytesIO()
    Image.new("1", (width, height)).save(content, "PNG", optimize=True)
    return content.getvalue()


def bad_uploads():
    """Name, content and a word of the message of what is no image for us."""
    whole = encode(noise(seed=3))
    return [
        ("notes.pdf", b"%PDF-1.7 nothing to see" * 20, "no image"),
        ("bomb.png", bomb(), "more than 100 megapixels"),
        ("cut.png", whole[: len(whole) // 2], "truncated"),
        ("text.png", b"these are words, not pixels\n" * 50, "no image"),
    ]


@contextmanager
def serving(server):
    """The address of a running server."""
    with bind("127.0.0.1", 0) as listening:
        running = uvicorn.Server(uvicorn.Config(server.app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        try:
            while not running.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def get(url):
    """Status, headers and body."""
    return _send(Request(url))


def post(url, content=b"", kind=BODY, **headers):
    """Status and the JSON of the answer."""
    status, _, body = _send(Request(url, content, {"Content-Type": kind, **headers}, method="POST"))
    return status, json.loads(body)


def upload(url, name, content):
    return post(f"{url}/api/predict?name={quote(name)}", content)


def _send(request):
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def make_server(**arguments):
    return Server(predictor(), "tiny", **arguments)
