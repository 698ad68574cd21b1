"""The server: a page, uploads one at a time through the model, and the files of the last predictions.

    GET  /                            the page
    GET  /api/model                   classes, colours, outputs, limits, names of examples
    GET  /api/queue                   how many predictions are waiting or under way
    GET  /api/examples/INDEX          the small picture of an example
    POST /api/examples/INDEX          predicts it
    POST /api/predict?name=NAME       predicts the image that is the body
    GET  /api/results/KEY/FILE        image.jpg, layers.bin, plain.png, context.png

What goes wrong is {"error": a sentence} and a status of 400 or more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cacseg.app.predict import MAX_PIXELS, Predictor, read_image, shrink
from cacseg.app.results import Results
from cacseg.runtime.bands import Pixels, as_picture
from cacseg.runtime.colours import distinct_colours, jpeg

UPLOAD_BYTES = 64 * 2**20
UPLOAD_SECONDS = 120.0
WAITING = 8  # uploads and predictions at a time, the running one included; more are told to come again
EXAMPLE_PIXELS = 160 * 120
BODY = "application/octet-stream"  # which a page of another site cannot send without asking this server
PREDICTING = "cacseg prediction"  # name of a thread
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_Kind = TypeVar("_Kind")

logger = logging.getLogger("uvicorn.error")


class Example(NamedTuple):
    name: str
    read: Callable[[], Pixels]


class Server:
    """The application for one model: `uvicorn.run(Server(...).app)`, or `serve`."""

    def __init__(
        self, predictor: Predictor, title: str, examples: Sequence[Example] = (), hosts: Sequence[str] = ("*",)
    ) -> None:
        model = predictor.model
        self.predictor, self.title, self.examples = predictor, title, examples
        self.names = list(model.class_names or (f"class {label}" for label in range(model.num_classes)))
        self.palette = [(int(r), int(g), int(b)) for r, g, b in model.palette or distinct_colours(model.num_classes)]
        self.results: Results
        self.turn, self.reading = asyncio.Semaphore(1), asyncio.Semaphore(2)
        self.waiting = 0
        routes = [
            Route("/", self.page),
            Route("/api/model", self.describe),
            Route("/api/queue", self.queue),
            Route("/api/examples/{index:int}", self.show_example),
            Route("/api/examples/{index:int}", self.predict_example, methods=["POST"]),
            Route("/api/predict", self.predict_upload, methods=["POST"]),
            Route("/api/results/{key}/{file}", self.show_result),
            Mount("/static", StaticFiles(directory=str(STATIC))),
        ]
        middleware = [Middleware(_Headers), Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]
        handlers: dict[Any, Any] = {HTTPException: _explain, Exception: _explain_bug}
        self.app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        with tempfile.TemporaryDirectory(prefix="cacseg_app_", ignore_cleanup_errors=True) as folder:
            self.results = Results(Path(folder), self.palette)
            yield
            self.results.close()

    async def page(self, request: Request) -> Response:
        return FileResponse(str(STATIC / "index.html"))

    async def describe(self, request: Request) -> Response:
        return JSONResponse(
            {
                "title": self.title,
                "device": str(self.predictor.device),
                "names": self.names,
                "palette": self.palette,
                "outputs": self.predictor.outputs,
                "examples": [example.name for example in self.examples],
                "upload_bytes": UPLOAD_BYTES,
                "max_pixels": MAX_PIXELS,
            }
        )

    async def queue(self, request: Request) -> Response:
        return JSONResponse({"waiting": self.waiting})

    async def show_example(self, request: Request) -> Response:
        example = self._example(request)

        def thumbnail() -> bytes:
            return jpeg(as_picture(shrink(example.read(), EXAMPLE_PIXELS)), 85)

        try:
            async with self.reading:
                return Response(await run_in_threadpool(thumbnail), media_type="image/jpeg")
        except (OSError, ValueError) as error:
            raise HTTPException(422, str(error)) from error

    async def predict_example(self, request: Request) -> Response:
        example = self._example(request)
        return await self._answer(request, example.name, example.read)

    async def predict_upload(self, request: Request) -> Response:
        name = PurePosixPath(request.query_params.get("name", "image").replace("\\", "/")).name[:120] or "image"
        return await self._answer(request, name, None)

    async def show_result(self, request: Request) -> Response:
        found = self.results.find(request.path_params["key"], request.path_params["file"])
        if found is None:
            raise HTTPException(404, "this prediction is no longer kept. Predict the image again.")
        path, name = found
        return FileResponse(path, filename=name, content_disposition_type="inline")

    def _example(self, request: Request) -> Example:
        index = request.path_params["index"]
        if index >= len(self.examples):
            raise HTTPException(404, f"there are {len(self.examples)} examples; got number {index}.")
        return self.examples[index]

    async def _answer(self, request: Request, name: str, read: Callable[[], Pixels] | None) -> Response:
        """Waits for its turn and predicts; without `read` the image is the body."""
        if request.headers.get("content-type") != BODY:
            raise HTTPException(415, f"the content type must be {BODY}.")
        if self.waiting >= WAITING:
            raise HTTPException(503, f"{self.waiting} predictions are waiting already. Try again in a minute.")
        self.waiting += 1
        try:
            content = await _read_body(request, name)
            async with self.turn:
                if await request.is_disconnected():
                    return Response(status_code=499)
                bands = self.predictor.model.bands
                own = read or (lambda: read_image(content, name, bands))
                found = await _run_apart(lambda: self._predict(name, own))
        except asyncio.CancelledError:
            raise HTTPException(503, "the server is ending.") from None
        finally:
            self.waiting -= 1
        return JSONResponse(found)

    def _predict(self, name: str, read: Callable[[], Pixels]) -> dict[str, Any]:
        try:
            prediction = self.predictor.predict(read())
        except (OSError, ValueError, MemoryError) as error:
            raise HTTPException(422, str(error)) from error
        try:
            return self.results.add(name, prediction)
        except OSError as error:
            logger.error("%s", error)
            raise HTTPException(507, "the server could not store the prediction; its log says why.") from error


async def _run_apart(work: Callable[[], _Kind]) -> _Kind:
    """Runs `work` in a thread that neither a cancelled request nor the end of the process waits for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Kind] = loop.create_future()

    def finish(act: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # cancelled
            act(value)

    def run() -> None:
        try:
            done = future.set_result, work()
        except Exception as error:
            done = future.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, *done)

    threading.Thread(target=run, name=PREDICTING, daemon=True).start()
    return await future


async def _read_body(request: Request, name: str) -> bytes:
    """The whole body, within limits of size and time."""
    too_large = HTTPException(413, f"{name} has more than {UPLOAD_BYTES // 2**20} MiB. Make it smaller.")
    if int(request.headers.get("content-length", "0")) > UPLOAD_BYTES:
        raise too_large
    content = bytearray()

    async def read() -> None:
        async for part in request.stream():
            content.extend(part)
            if len(content) > UPLOAD_BYTES:
                raise too_large

    try:
        await asyncio.wait_for(read(), UPLOAD_SECONDS)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"{name} did not arrive within {UPLOAD_SECONDS:.0f} seconds.") from None
    except ClientDisconnect:
        raise HTTPException(400, f"{name} was cut off after {len(content)} bytes.") from None
    return bytes(content)


async def _explain(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, {"Connection": "close"})


async def _explain_bug(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"{type(error).__name__} in the server; its log says where."}, 500)


class _Headers:
    """Adds `HEADERS` to every answer: the browser then loads nothing from elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


STATIC = Path(str(resources.files("cacseg.app") / "static"))


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise OSError(f"{host}:{port} cannot be listened on ({error}). Choose another --port, or 0 for any.") from error


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(server: Server, listening: socket.socket) -> None:
    """Runs until Ctrl-C (KeyboardInterrupt) or SIGTERM; requests under way are given two seconds, then left."""
    config = uvicorn.Config(server.app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    uvicorn.Server(config).run([listening])


def is_predicting() -> bool:
    """Whether a prediction is under way, which `serve` may have left behind."""
    return any(thread.name == PREDICTING for thread in threading.enumerate())
