"""An exported model behind HTTP: an image goes in, a mask comes out.

    cacseg export runs/mine --output classes -o model.onnx      # classes: the least memory
    python examples/serve_onnx.py model.onnx --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/mask > mask.png
    curl http://127.0.0.1:8000/                          # classes, colours and limits

It needs onnxruntime, numpy, Pillow, starlette and uvicorn, and no torch. What is too large is refused before it is
decoded. Each request has one deadline, for the upload, the queue and the prediction; what is late is answered at once
and stopped. At most `--waiting` requests wait for their turn.
"""

from __future__ import annotations

import argparse
import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cacseg.runtime.colours import index_png
from cacseg.runtime.decode import check_pixels, decode_image
from cacseg.runtime.onnx_file import OnnxBackend


class Service:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.waiting = options, 0
        self.backend = OnnxBackend(options.model, device=options.device, threads=options.threads)
        self.worker = ThreadPoolExecutor(1)  # one prediction at a time: it uses all threads of ONNX Runtime
        # Scores of all classes at the size of the image are the largest thing in memory, in whatever file.
        by_scores = options.gigabytes * 1e9 / (4 * len(self.backend.classes.names))
        self.pixels = int(min(options.megapixels * 1e6, by_scores))
        self.app = Starlette(routes=[Route("/", self.describe), Route("/mask", self.mask, methods=["POST"])])

    async def describe(self, request: Request) -> Response:
        names, palette = self.backend.classes
        limits = {"megabytes": self.options.megabytes, "megapixels": self.pixels / 1e6}
        return JSONResponse({"classes": names, "palette": palette, **limits, "seconds": self.options.seconds})

    async def mask(self, request: Request) -> Response:
        """The body is an image file; the answer an index PNG of its size, with the classes' colours as palette."""
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise HTTPException(415, "the body is the image itself, no form: curl --data-binary @photo.jpg")
        if self.waiting >= self.options.waiting:
            raise HTTPException(503, "too many requests are waiting; try again later")
        self.waiting += 1
        deadline = asyncio.get_running_loop().time() + self.options.seconds
        try:
            content = await self.read(request, deadline)
            return Response(await self.predict(content, deadline), media_type="image/png")
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        finally:
            self.waiting -= 1

    async def read(self, request: Request, deadline: float) -> bytes:
        limit, content = self.options.megabytes * 10**6, bytearray()

        async def receive() -> None:
            async for part in request.stream():
                content.extend(part)
                if len(content) > limit:
                    raise HTTPException(413, f"an image may have {self.options.megabytes} MB")

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
        except (OSError, ValueError, MemoryError) as error:
            raise HTTPException(422, str(error)) from error
        finally:
            run.terminate = True  # ONNX Runtime ends at the next operator; then the worker takes its next turn
            work.cancel()  # or it has not begun

    def segment(self, content: bytes, run: onnxruntime.RunOptions) -> bytes:
        if not content:
            raise OSError("the request has no image in its body")
        check_pixels(content, "the image", self.pixels)
        image = decode_image(content, "the image", self.pixels)
        size = (image.shape[0], image.shape[1])
        (answer,) = self.backend.predict([self.backend.view(image)], size, run=run)
        return index_png(answer.mask, self.backend.classes.palette)


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
    parser.add_argument("--seconds", type=float, default=30, help="from the request to its answer (%(default)s)")
    parser.add_argument("--waiting", type=int, default=16, help="requests at once (%(default)s)")
    return parser.parse_args(arguments)


def warm_up(backend: OnnxBackend) -> None:
    """The first prediction also plans memory; the file is known to run before anybody asks."""
    backend.predict([backend.view(np.zeros((64, 64, 3), np.uint8))], (64, 64))


if __name__ == "__main__":
    chosen = read_options()
    service = Service(chosen)
    warm_up(service.backend)
    uvicorn.run(service.app, host=chosen.host, port=chosen.port, log_level="warning")
