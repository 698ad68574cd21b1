"""One job: a model trained on data that lie on the device, and each of its answers scored.

The settings are those of `cacseg train`, the data pipeline is not: crops are cut on the device
(`engine.resident_crops`), with other random numbers and colours distorted a little differently. A job repeated by
`cacseg train` is the same experiment, not the same numbers.
"""

from __future__ import annotations

import copy
import math
import platform
import time
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cacseg._version import __version__
from cacseg.data import SegmentationData, normalise
from cacseg.engine.device import autocast
from cacseg.engine.randomness import seed_all
from cacseg.engine.resident import Resident, load_resident
from cacseg.engine.resident_crops import cut_crops, draw_crops
from cacseg.engine.task import begin_training
from cacseg.metrics import Scores, confusion, scores
from cacseg.models import SegmentationModel
from cacseg.recipes.build import make_model, open_split, optimiser_of, rate_at, train_transform
from cacseg.recipes.config import Config
from cacseg.study.plan import Job
from cacseg.study.splits import hold_out

LOOK_EVERY = 100  # steps between two looks at the losses, which wait for the device
LAST = 50  # steps at the end whose losses are kept
EVALUATED_AT_ONCE = 16  # images

Progress = Callable[[int], None]  # steps done since the last call


class JobData(NamedTuple):
    """What a job trains on and what it is scored on."""

    source: SegmentationData  # for its classes
    train: Resident
    scored: Resident
    split: str  # what the scored images are, in words


def load_data(config: Config, held_out: float | None, device: torch.device) -> JobData:
    """Both splits on the device."""
    source = open_split(config.data, "train")
    if held_out is None:
        scored = open_split(config.data, "val")
        train, words = list(range(len(source))), scored.split
        indices = list(range(len(scored)))
    else:
        (train, indices), scored, words = hold_out(len(source), held_out), source, f"{source.split}, held out"
    return JobData(source, load_resident(source, train, device), load_resident(scored, indices, device), words)


def run_job(job: Job, data: JobData, device: torch.device, progress: Progress | None = None) -> dict[str, Any]:
    """Trains and scores; gives the whole record of the job, as JSON takes it."""
    config = job.config
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    torch.set_float32_matmul_precision("high" if config.training.precision == "tf32" else "highest")
    seed_all(config.training.seed)
    with warnings.catch_warnings(record=True) as caught:  # of weights that are not quite what they should be
        warnings.simplefilter("always")
        model = make_model(config.model, data.source, lambda text: None).to(device)
    start = time.perf_counter()
    # Not with cudnn.benchmark: its search, by fourteen jobs at once, took each of them as long as 400 steps.
    trained = train_model(config, model, data.train, progress)
    seconds_training = time.perf_counter() - start
    start = time.perf_counter()
    found = score_model(config, trained.model, data.scored)
    seconds_evaluation = time.perf_counter() - start
    return {
        **job.describe(),
        "status": "diverged" if trained.diverged else "done",
        "steps_done": trained.steps,
        "split": data.split,
        "images": len(data.scored),
        "images_trained_on": len(data.train),
        "class_names": list(data.source.class_names),
        "own_answer": trained.model.own_answer,
        "answers": {name: percent(one) for name, one in found.items()},
        "losses": trained.losses,
        "seconds_training": round(seconds_training, 2),
        "seconds_evaluation": round(seconds_evaluation, 2),
        "peak_mib": round(torch.cuda.max_memory_allocated(device) / 2**20, 1) if device.type == "cuda" else None,
        "warnings": [str(one.message) for one in caught],
        "versions": {"cacseg": __version__, "torch": torch.__version__, "device": device_name(device)},
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


class Trained(NamedTuple):
    model: SegmentationModel  # the averaged one, where weights are averaged
    losses: dict[str, float | None]  # means over the last steps; None where one is not finite
    steps: int
    diverged: bool


def train_model(config: Config, model: SegmentationModel, split: Resident, progress: Progress | None = None) -> Trained:
    """The steps of a run, none of which waits for the device; a loss that is not finite ends them early."""
    options, device = config.training, split.images.device
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model.to(memory_format=layout)  # type: ignore[call-overload]
    begin_training(model, freeze_batch_norm=options.freeze_batch_norm)
    optimiser = optimiser_of(config.optimiser, model)
    if device.type == "cuda":
        for group in optimiser.param_groups:  # one kernel for a step of all weights
            group["fused"], group["foreach"] = True, False
    rates = [group["lr"] for group in optimiser.param_groups]
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    averaged = None if options.ema_decay is None else Averaged(model, options.ema_decay)
    steps, batch = config.schedule.steps, options.batch
    transform = train_transform(config.data, split.ignore_index)
    crops = draw_crops(transform, split, options.seed, steps * batch, model.mean, model.std)
    seed_all(options.seed, 0, 0)  # as a run of `cacseg train` starts: dropout does not depend on what was built
    terms: list[dict[str, Tensor]] = []  # of the steps since the last look, and of the last few
    for step in range(steps):
        share = rate_at(config.optimiser, config.schedule, step)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * share
        images, labels = cut_crops(split, crops.part(step * batch, (step + 1) * batch), transform.crop)
        with autocast(device, cast(options.precision)):
            losses = model.loss(images.contiguous(memory_format=layout), labels)
        optimiser.zero_grad(set_to_none=True)
        losses["total"].backward()
        if config.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(parameters, config.optimiser.clip)
        optimiser.step()
        if averaged is not None:
            averaged.update()
        terms.append({name: value.detach() for name, value in losses.items()})
        if (step + 1) % LOOK_EVERY == 0 or step + 1 == steps:
            looked_at = (step % LOOK_EVERY) + 1
            totals = torch.stack([one["total"].float() for one in terms[-looked_at:]])
            finite = bool(torch.isfinite(totals).all())
            if progress is not None:
                progress(looked_at)
            if not finite:
                break
            terms = terms[-LAST:]
    kept = model if averaged is None else averaged.finish()
    return Trained(kept, mean_losses(terms[-LAST:]), step + 1, not finite)


class Averaged:
    """An exponential moving average of a model's weights; buffers are the model's last.

    What torch's AveragedModel gives with `get_ema_multi_avg_fn`, which waits for a GPU in each step to send it the
    number of steps.
    """

    def __init__(self, model: SegmentationModel, decay: float) -> None:
        self.model, self.decay, self.average = model, decay, copy.deepcopy(model)
        self.weights: list[Tensor] = list(model.parameters())
        self.averages: list[Tensor] = list(self.average.parameters())
        self.begun = False

    @torch.no_grad()
    def update(self) -> None:
        """After each step; the first is taken as it is."""
        torch._foreach_lerp_(self.averages, self.weights, 1.0 - self.decay if self.begun else 1.0)
        self.begun = True

    def finish(self) -> SegmentationModel:
        for theirs, ours in zip(self.average.buffers(), self.model.buffers(), strict=True):
            theirs.copy_(ours)
        return self.average


def cast(precision: str) -> str:
    """What autocast is told: TF32 is a matter of matrix products, not of types."""
    return "fp32" if precision == "tf32" else precision


def mean_losses(terms: list[dict[str, Tensor]]) -> dict[str, float | None]:
    """The mean of each term."""
    means = {name: torch.stack([one[name].float() for one in terms]).mean().item() for name in terms[0]}
    return {name: value if math.isfinite(value) else None for name, value in means.items()}


@torch.no_grad()
def score_model(config: Config, model: SegmentationModel, split: Resident) -> dict[str, Scores]:
    """The scores of every answer that the model has, from one pass over whole images, at the labels' size."""
    device, n = split.images.device, model.num_classes
    layout = torch.channels_last if config.training.channels_last else torch.contiguous_format
    mean, std = torch.tensor([model.mean, model.std], device=device)
    counts: dict[str, Tensor] = {}
    model.eval()
    for images, labels in split.of_one_size(EVALUATED_AT_ONCE):
        shown = normalise(images, mean, std).contiguous(memory_format=layout)
        with autocast(device, cast(config.training.precision)):
            answers = model.answers(shown, labels.long())
        for name, logits in answers.items():
            large = F.interpolate(logits.float(), size=labels.shape[1:], mode="bilinear", align_corners=False)
            found = confusion(large.argmax(1), labels, n, split.ignore_index)
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
