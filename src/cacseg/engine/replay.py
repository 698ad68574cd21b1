"""Work that is the same at every call, recorded once as a CUDA graph: a replay costs the host next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

FIRST = 4  # calls before the recording: workspaces, states of the optimiser and compiled kernels come into being

Result = TypeVar("Result")


class Replayed(Generic[Result]):
    """Calls a function that takes nothing from the host and keeps its inputs in place.

    On a GPU the first calls run as they are, the next one is recorded, and from then on the recording is replayed: the
    same kernels on the same memory. Tensors in the result are the same at every replay; copy what is to be kept.
    Elsewhere every call is a call.
    """

    def __init__(self, work: Callable[[], Result], device: torch.device) -> None:
        self.work, self.device = work, device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.calls = 0
        self.recording: tuple[torch.cuda.CUDAGraph, Result] | None = None

    def __call__(self) -> Result:
        if self.stream is None:
            return self.work()
        self.calls += 1
        if self.calls <= FIRST:
            return self._aside(self.stream)
        if self.recording is None:
            self.recording = self._record(self.stream)
        graph, result = self.recording
        graph.replay()
        return result

    def _aside(self, stream: torch.cuda.Stream) -> Result:
        """On the stream that will be recorded: autograd remembers where weights were first used."""
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = self.work()
        current.wait_stream(stream)
        return result

    def _record(self, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                result = self.work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                f"a step must be work for the GPU alone to be recorded as a CUDA graph; got: {error}. Run it without "
                "graphs (of a study: --no-graphs)."
            ) from error
        return graph, result
