"""Settings that a run decides for itself: whether images stay on the device, whether steps are recorded, the batch."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence

import torch

from cacseg.data import SegmentationData
from cacseg.data.sample import has_annotators
from cacseg.engine.device import autocast
from cacseg.engine.options import TrainingOptions
from cacseg.engine.resident import SHARE_OF_MEMORY, estimate_bytes
from cacseg.models import SegmentationModel

LARGEST_BATCH = 1024
SHARE_FOR_STEPS = 0.85  # of a device's memory that a step may take: validation and fragments need the rest


def training_device(training: TrainingOptions) -> torch.device:
    """Where the run trains: on a GPU if there is one and none forbids it."""
    on_gpu = training.accelerator != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def decide_resident(splits: Sequence[SegmentationData], device: torch.device) -> tuple[bool, str]:
    """Whether images should be kept on the device, and why; the same in every process of a run."""
    if any(map(has_annotators, splits)):
        return False, "images are read by workers: some have labels of several annotators (data.resident)"
    if device.type != "cuda":
        return False, "images are read by workers: there is no CUDA device to keep them on (data.resident)"
    needed, room = sum(map(estimate_bytes, splits)), torch.cuda.get_device_properties(device).total_memory
    fits = needed <= SHARE_OF_MEMORY * room
    words = f"about {needed / 2**20:.0f} MiB, {'within' if fits else 'beyond'} a tenth of {room / 2**30:.0f} GiB"
    return fits, f"images are {'kept on the GPU' if fits else 'read by workers'}: {words} (data.resident)"


def decide_graph(training: TrainingOptions, device: torch.device) -> bool:
    """Whether steps are recorded as a CUDA graph, where the choice is "auto"."""
    return device.type == "cuda" and not _reasons_against_graph(training)


def check_graph(training: TrainingOptions) -> None:
    """That steps can be recorded with these settings."""
    reasons = _reasons_against_graph(training)
    if training.graph is True and reasons:
        raise ValueError(
            f"a recorded step is one whole batch on one device; got {' and '.join(reasons)}. Set training.graph=false."
        )


def _devices(training: TrainingOptions) -> int:
    """Of the whole run; within torchrun its number of processes."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    shown = 1 if training.accelerator == "cpu" else max(1, torch.cuda.device_count())
    return training.nodes * (shown if training.devices == "auto" else training.devices)


def _reasons_against_graph(training: TrainingOptions) -> list[str]:
    devices = _devices(training)
    found = {
        f"{devices} devices": devices > 1,
        "training.precision=fp16": training.precision == "fp16",
        f"training.accumulate={training.accumulate}": training.accumulate > 1,
        "training.compile=true": training.compile,
    }
    return [reason for reason, holds in found.items() if holds]


def find_batch(model: SegmentationModel, crop: tuple[int, int], training: TrainingOptions, device: torch.device) -> int:
    """The largest power of two of crops whose training step fits into the device's memory, times the parts of a step.

    Steps of growing batches are run on a copy of the model. The learning rate is left as it is.
    """
    if device.type != "cuda" or _devices(training) > 1:
        raise ValueError(
            f"training.batch=auto finds what fits on one GPU; this run is on {device.type}, with {_devices(training)} "
            "device(s). Give a number, or set training.devices=1 on a machine with a GPU."
        )
    room = torch.cuda.get_device_properties(device).total_memory * SHARE_FOR_STEPS
    copied = copy.deepcopy(model).to(device).train()
    states = 2 * sum(one.nbytes for one in copied.parameters())
    batch, found = 1, 0
    try:
        while batch <= LARGEST_BATCH:
            torch.cuda.reset_peak_memory_stats(device)
            images = torch.zeros(max(batch, 2), len(model.mean), *crop, device=device)  # batch statistics need two
            labels = torch.zeros(max(batch, 2), *crop, dtype=torch.long, device=device)
            with autocast(device, "fp32" if training.precision == "tf32" else training.precision):
                copied.loss(images, labels)["total"].backward()
            if torch.cuda.max_memory_reserved(device) + states > room:
                break
            found, batch = batch, 2 * batch
    except torch.OutOfMemoryError:
        pass
    finally:
        del copied
        torch.cuda.empty_cache()
    if found == 0:
        raise ValueError(
            f"{device} has too little memory for one crop of {crop[0]}x{crop[1]}. Lower data.crop, or use bf16."
        )
    return found * training.accumulate
