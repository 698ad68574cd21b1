"""Work that is the same at every call, recorded once as a CUDA graph: a replay costs the host next to nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_FIRST = 4  # calls before the recording: workspaces, states of the optimiser and compiled kernels come into being


class Replayed:
    """Calls a function that takes nothing from the host and keeps its inputs in place.

    On a GPU the first calls run as they are, the next one is recorded, and from then on the recording is replayed: the
    same kernels on the same memory. The result is the same tensor at every replay; copy what is to be kept. Elsewhere
    every call is a call.
    """

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        self.work, self.device = work, device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Tensor | None = None

    def __call__(self) -> Tensor:
        if self.stream is None:
            return self.work()
        self.calls += 1
        if self.calls <= _FIRST:
            return self._aside(self.stream)
        if self.graph is None:
            self._record(self.stream)
        assert self.graph is not None
        assert self.result is not None
        self.graph.replay()
        return self.result

    def _aside(self, stream: torch.cuda.Stream) -> Tensor:
        """On the stream that will be recorded: autograd remembers where weights were first used."""
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = self.work()
        current.wait_stream(stream)
        return result

    def _record(self, stream: torch.cuda.Stream) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self.result = self.work()
        except RuntimeError as error:
            raise RuntimeError(
                f"a step must be work for the GPU alone to be recorded as a CUDA graph; got: {error}. Run it without "
                "graphs."
            ) from error
        self.graph = graph
