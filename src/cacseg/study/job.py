"""One job: a model trained on data that lie on the device, and each of its answers scored.

The settings are those of `cacseg train`, the data pipeline is not: crops are cut on the device
(`engine.resident_crops`), with other random numbers and colours distorted a little differently. A job repeated by
`cacseg train` is the same experiment, not the same numbers.
"""

from __future__ import annotations

import hashlib
import math
import platform
import time
import warnings
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cacseg._version import __version__
from cacseg.data import SegmentationData, normalise
from cacseg.engine.device import autocast
from cacseg.engine.inference import Inference, networks_of, output_names, predict_each
from cacseg.engine.randomness import seed_all
from cacseg.engine.resident import Resident, load_resident
from cacseg.metrics import Scores, confusion, scores
from cacseg.models import SegmentationModel
from cacseg.recipes.build import make_model, open_split, untrained_tap_notes_for
from cacseg.recipes.config import Config
from cacseg.study.halfway import Halfway
from cacseg.study.plan import Job
from cacseg.study.splits import hold_out
from cacseg.study.training import Progress, cast, train_model

EVALUATED_AT_ONCE = 16  # images, or windows of them


class JobData(NamedTuple):
    """What a job trains on and what it is scored on."""

    source: SegmentationData  # for its classes
    train: Resident
    scored: Resident
    split: str  # what the scored images are, in words
    digest: str  # of both splits' labels: other data have another


def load_data(config: Config, held_out: float | None, device: torch.device) -> JobData:
    """Both splits on the device."""
    source = open_split(config.data, "train")
    if held_out is None:
        scored = open_split(config.data, "val")
        train, words = list(range(len(source))), scored.split
        indices = list(range(len(scored)))
    else:
        (train, indices), scored, words = hold_out(len(source), held_out), source, f"{source.split}, held out"
    splits = load_resident(source, train, device), load_resident(scored, indices, device)
    for split, name in zip(splits, (source.split, words), strict=True):
        if bool((split.labels == split.ignore_index).all()):
            raise ValueError(
                f"no pixel of the split {name!r} is labelled: all are {split.ignore_index}, which is ignored. Look at "
                "the files: cacseg data check."
            )
    return JobData(source, *splits, words, _digest(source, splits))


def _digest(source: SegmentationData, splits: Sequence[Resident]) -> str:
    found = hashlib.blake2b("\n".join(source.class_names).encode(), digest_size=8)
    for split in splits:
        found.update(split.sizes.tobytes())
        found.update(split.labels.cpu().numpy().tobytes())
    return found.hexdigest()


def run_job(
    job: Job,
    data: JobData,
    device: torch.device,
    progress: Progress | None = None,
    *,
    graphs: bool = True,
    halfway: Halfway | None = None,
) -> dict[str, Any]:
    """Trains and scores; gives the whole record of the job, as JSON takes it."""
    config = job.config
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    torch.set_float32_matmul_precision("high" if config.training.precision == "tf32" else "highest")
    seed_all(config.training.seed)
    with warnings.catch_warnings(record=True) as caught:  # of weights that are not quite what they should be
        warnings.simplefilter("always")
        model = make_model(config.model, data.source, lambda text: None).to(device)
    noted = [str(one.message) for one in caught]
    noted += untrained_tap_notes_for(config.data, model, map(tuple, data.scored.sizes.tolist()))
    # Not with cudnn.benchmark: its search, by fourteen jobs at once, took each of them as long as 400 steps.
    trained = train_model(config, model, data.train, progress, graphs=graphs, halfway=halfway)
    start = time.perf_counter()
    found = score_model(config, trained.model, data.scored)
    seconds_evaluation = time.perf_counter() - start
    return {
        **job.describe(),
        "status": "diverged" if trained.diverged else "done",
        "steps_done": trained.steps,
        "split": data.split,
        "data_digest": data.digest,
        "images": len(data.scored),
        "images_trained_on": len(data.train),
        "class_names": list(data.source.class_names),
        "default_output": trained.model.default_output,
        "answers": {name: percent(one) for name, one in found.items()},
        "losses": trained.losses,
        "graphs": graphs and device.type == "cuda",
        "resumed": trained.resumed,
        "seconds_training": round(trained.seconds, 2),
        "seconds_evaluation": round(seconds_evaluation, 2),
        "peak_mib": round(torch.cuda.max_memory_allocated(device) / 2**20, 1) if device.type == "cuda" else None,
        "warnings": noted,
        "versions": {"cacseg": __version__, "torch": torch.__version__, "device": device_name(device)},
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@torch.no_grad()
def score_model(config: Config, model: SegmentationModel, split: Resident) -> dict[str, Scores]:
    """The scores of every answer that the model has, from one pass over the images, at the labels' size."""
    device, n = split.images.device, model.num_classes
    layout = torch.channels_last if config.training.channels_last else torch.contiguous_format
    mean, std = torch.tensor([model.mean, model.std], device=device)
    inference = Inference(window=config.data.window, stride=config.data.stride, window_batch=EVALUATED_AT_ONCE)
    names = output_names(model, oracle=True)
    networks = networks_of(model, names)
    counts: dict[str, Tensor] = {}
    model.eval()
    for images, labels in split.batches_by_size(EVALUATED_AT_ONCE):
        shown = normalise(images, mean, std).contiguous(memory_format=layout)
        with autocast(device, cast(config.training.precision)):
            size = labels.shape[1], labels.shape[2]
            answers = predict_each(networks, [shown], size, inference, labels.long())
            for name, logits in zip(names, answers, strict=True):
                found = confusion(logits.argmax(1), labels, n, split.ignore_index)
                counts[name] = counts[name] + found if name in counts else found
    return {name: scores(one) for name, one in counts.items()}


def percent(found: Scores) -> dict[str, Any]:
    """Scores as JSON takes them, in percent; None where there is nothing to divide by."""
    return {
        "miou": _number(found.mean_iou),
        "mean_accuracy": _number(found.mean_accuracy),
        "pixel_accuracy": _number(found.pixel_accuracy),
        "iou": [_number(value) for value in found.iou.tolist()],
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.machine()}"


def _number(share: float) -> float | None:
    return round(100.0 * share, 4) if math.isfinite(share) else None
