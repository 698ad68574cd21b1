"""An exported model behind HTTP: an image goes in, a mask comes out.

    cacseg export runs/mine --output classes -o model.onnx      # classes: the least memory
    python examples/serve_onnx.py model.onnx --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/mask > mask.png
    curl -F image=@photo.jpg http://127.0.0.1:8000/mask > mask.png
    curl http://127.0.0.1:8000/                          # classes, colours and limits

It needs onnxruntime, numpy, Pillow, starlette and uvicorn, and no torch. What is too large is refused before it is
read or decoded. A request has `--seconds` to arrive with all its headers, and as long from there to its answer; what is
late is answered at once and stopped. At most `--waiting` requests wait for their turn, on at most `--connections`.

Errors are {"error": what is wrong}: 400 no image, 404 no such path, 408 too slow to arrive, 413 too large, 503 too many
at once, 504 too slow to predict.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http import HTTPStatus
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from cacseg.runtime.colours import index_png
from cacseg.runtime.decode import TooLargeError, check_pixels, decode_image
from cacseg.runtime.onnx_file import OnnxBackend


class Connection(H11Protocol):
    """One connection: closed when the headers of a request are late, and at once where there are too many."""

    seconds, most = 30.0, 64

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.await_request()
        if len(self.connections) > self.most:
            self.refuse(503, "there are too many connections; try again later")

    def on_response_complete(self) -> None:
        self.await_request()
        super().on_response_complete()

    def await_request(self) -> None:
        self.loop.call_later(self.seconds, self.give_up, self.cycle)

    def give_up(self, last: object) -> None:
        if self.cycle is last is None:
            self.refuse(408, f"the headers did not arrive within {self.seconds} s")
        elif self.cycle is last:  # nothing new since an answer, or the rest of a body that nobody reads
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def refuse(self, status: int, words: str) -> None:
        body = json.dumps({"error": words}).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        if not self.transport.is_closing():
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
            self.transport.close()


class Service:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.waiting = options, 0
        self.backend = OnnxBackend(options.model, device=options.device, threads=options.threads)
        self.worker = ThreadPoolExecutor(1)  # one prediction at a time: it uses all threads of ONNX Runtime
        # Scores of all classes at the size of the image are the largest thing in memory, in whatever file.
        by_scores = options.gigabytes * 1e9 / (4 * len(self.backend.classes.names))
        self.pixels = int(min(options.megapixels * 1e6, by_scores))
        routes = [Route("/", self.describe), Route("/mask", self.mask, methods=["POST"])]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: explain, Exception: explain})

    async def describe(self, request: Request) -> Response:
        names, palette = self.backend.classes
        limits = {"megabytes": self.options.megabytes, "megapixels": self.pixels / 1e6}
        return JSONResponse({"classes": names, "palette": palette, **limits, "seconds": self.options.seconds})

    async def mask(self, request: Request) -> Response:
        """An image file, alone or in a form, becomes an index PNG of its size with the classes' colours as palette."""
        if int(request.headers.get("content-length", 0)) > self.options.megabytes * 1e6:
            raise HTTPException(413, f"a request may have {self.options.megabytes} MB")
        if self.waiting >= self.options.waiting:
            raise HTTPException(503, "too many requests are waiting; try again later")
        self.waiting += 1
        deadline = asyncio.get_running_loop().time() + self.options.seconds
        try:
            content = file_of(await self.read(request, deadline), request.headers.get("content-type", ""))
            return Response(await self.predict(content, deadline), media_type="image/png")
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        finally:
            self.waiting -= 1

    async def read(self, request: Request, deadline: float) -> bytes:
        limit, content = self.options.megabytes * 1e6, bytearray()

        async def receive() -> None:
            async for part in request.stream():
                content.extend(part)
                if len(content) > limit:
                    raise HTTPException(413, f"a request may have {self.options.megabytes} MB")

        try:
            await asyncio.wait_for(receive(), deadline - asyncio.get_running_loop().time())
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the image did not arrive within {self.options.seconds} s") from None
        return bytes(content)

    async def predict(self, content: bytes, deadline: float) -> bytes:
        loop, run = asyncio.get_running_loop(), onnxruntime.RunOptions()
        work = loop.run_in_executor(self.worker, self.segment, content, run)
        try:
            done, _ = await asyncio.wait([work], timeout=max(0.0, deadline - loop.time()))
            if not done:
                raise HTTPException(504, f"it took more than {self.options.seconds} s; send a smaller image")
            return work.result()
        except (TooLargeError, MemoryError) as error:
            raise HTTPException(413, str(error)) from error
        except (OSError, ValueError) as error:
            raise HTTPException(400, str(error)) from error
        finally:
            run.terminate = True  # ONNX Runtime ends at the next operator; then the worker takes its next turn
            work.cancel()  # or it has not begun

    def segment(self, content: bytes, run: onnxruntime.RunOptions) -> bytes:
        if not content:
            raise OSError("the request has no image: curl --data-binary @photo.jpg, or curl -F image=@photo.jpg")
        check_pixels(content, "the image", self.pixels)
        image = decode_image(content, "the image", self.pixels)
        size = (image.shape[0], image.shape[1])
        (answer,) = self.backend.predict([self.backend.view(image)], size, run=run)
        return index_png(answer.mask, self.backend.classes.palette)


def file_of(body: bytes, content_type: str) -> bytes:
    """The first file of a form; a body of another type is the file itself."""
    header = Message()
    header["content-type"] = content_type
    if header.get_content_type() != "multipart/form-data":
        return body
    boundary = header.get_boundary("").encode()
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:-1]:
        about, _, content = part.partition(b"\r\n\r\n")
        if b"filename=" in about.lower():
            return content
    return b""


async def explain(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": "this is an error of the service; its log has more"}, 500)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="what `cacseg export --format onnx` wrote")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in; put a proxy before it")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="auto", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=None, help="of ONNX Runtime; all cores by default")
    parser.add_argument("--megabytes", type=float, default=20, help="of an upload (%(default)s)")
    parser.add_argument("--megapixels", type=float, default=4, help="of an image (%(default)s)")
    parser.add_argument("--gigabytes", type=float, default=2, help="of scores, pixels x classes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="for headers, and then to the answer (%(default)s)")
    parser.add_argument("--waiting", type=int, default=16, help="requests at once (%(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="open at once (%(default)s)")
    return parser.parse_args(arguments)


def make_server(options: argparse.Namespace) -> uvicorn.Server:
    service = Service(options)
    # The first prediction also plans memory; the file is known to run before anybody asks.
    service.backend.predict([service.backend.view(np.zeros((64, 64, 3), np.uint8))], (64, 64))
    limited: Any = type("Limited", (Connection,), {"seconds": options.seconds, "most": options.connections})
    config = uvicorn.Config(service.app, options.host, options.port, log_level="warning", http=limited, ws="none")
    return uvicorn.Server(config)


if __name__ == "__main__":
    make_server(read_options()).run()
