"""Records a function as a CUDA graph and replays it, which costs the host next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

WARM_UP_CALLS = 4  # before the recording: they create workspaces, optimiser states and compiled kernels

Result = TypeVar("Result")


class Replayed(Generic[Result]):
    """Calls a function that reads nothing from the host and keeps its inputs in place.

    On a GPU the first calls run as usual, the next one is recorded, and later ones replay the recording: the same
    kernels on the same memory. Each replay overwrites the tensors of the result; copy what is to be kept. On other
    devices the function is just called.
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
        if self.calls <= WARM_UP_CALLS:
            return self._on_stream(self.stream)
        if self.recording is None:
            self.recording = self._record(self.stream)
        graph, result = self.recording
        graph.replay()
        return result

    def _on_stream(self, stream: torch.cuda.Stream) -> Result:
        """Runs on the stream that will be recorded: autograd remembers the stream of each weight's first use."""
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
                "graphs."
            ) from error
        return graph, result
