"""Work recorded as a CUDA graph and replayed, which costs the host next to nothing; whole training steps so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from cacseg.engine.resident import Draws
from cacseg.engine.stream import Batch

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
            # Loaders pin memory in a thread of their own meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = self.work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ValueError(
                f"a step must be work for the GPU alone to be recorded as a CUDA graph; got: {error}. Do without: "
                "training.graph=false."
            ) from error
        return graph, result


class RecordedStep:
    """Forward and backward pass, clipping and optimiser: one step on a batch, its loss terms by name.

    Batches must have one shape. The terms are overwritten by the next step.

    Args:
        losses: the named losses of a batch.
        optimiser: gets its learning rates and counts on the device, where recorded kernels read them.
        clip: the largest norm of the gradients.
    """

    def __init__(
        self,
        losses: Callable[[Any], dict[str, Tensor]],
        optimiser: torch.optim.Optimizer,
        clip: float | None,
        device: torch.device,
    ) -> None:
        self.losses, self.optimiser, self.clip = losses, optimiser, clip
        self.parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        self.batch: Batch | Draws | None = None  # where the recording reads
        self.step = Replayed(self._step, device)
        for group in optimiser.param_groups if device.type == "cuda" else ():
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
            if "capturable" in group:
                group["capturable"] = True

    def __call__(self, batch: Batch | Draws) -> dict[str, Tensor]:
        if self.batch is None:
            self.batch = type(batch)(*(one.clone() for one in batch))
        for own, new in zip(self.batch, batch, strict=True):
            own.copy_(new)
        return self.step()

    def _step(self) -> dict[str, Tensor]:
        assert self.batch is not None
        losses = self.losses(self.batch)
        self.optimiser.zero_grad(set_to_none=True)
        losses["total"].backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimiser.step()
        return {name: value.detach() for name, value in losses.items()}
