"""Images a second of whole jobs, from files on disk: training and prediction, beside straightforward loops."""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from cacseg.bench.mmsegmentation import MmsegCrops, is_installed
from cacseg.bench.steps import use_usual_pyramid, usual_model_loss
from cacseg.data import SegmentationData, normalise
from cacseg.engine.backend import TorchBackend
from cacseg.engine.decisions import training_device
from cacseg.engine.device import autocast, available_cores, read_clock
from cacseg.engine.inference import Inference
from cacseg.engine.task import SegmentationTask
from cacseg.engine.train import train
from cacseg.models.model import SegmentationModel
from cacseg.recipes.build import decide, make_loaders, make_model
from cacseg.recipes.config import Config, ModelConfig, change
from cacseg.recipes.protocol import open_split
from cacseg.runtime.folder import SaveOptions, predict_files
from cacseg.runtime.inputs import find_images
from cacseg.runtime.journal import Journal

Jobs = dict[str, Callable[[], float]]
LOOP = "straightforward loop"
MMSEG_LOOP = "that loop with mmsegmentation's transforms"
FLOAT_LOOP = "that loop in float32"
WARM_UP = 0.25  # of a round's steps or images, beside those that count


class Rate(NamedTuple):
    """What one row reaches, alone and beside the first one."""

    images_per_second: float  # median over the rounds
    ratio: float  # median of the ratios within each round
    ratio_least: float
    ratio_most: float


def compare_rates(jobs: Jobs, rounds: int, progress: Callable[[], None] = lambda: None) -> dict[str, Rate]:
    """Runs every job in turn, `rounds` times; the first one is what the others are compared with."""
    seen: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            seen[name].append(job())
            progress()
    base = seen[next(iter(jobs))]
    rates = {}
    for name, values in seen.items():
        ratios = [ours / theirs for ours, theirs in zip(values, base, strict=True)]
        rates[name] = Rate(statistics.median(values), statistics.median(ratios), min(ratios), max(ratios))
    return rates


def train_jobs(config: Config, steps: int) -> Jobs:
    """Training a plain model by a loop with torchvision's transforms; by the engine; and the recipe's own model.

    The loop runs in float32 too, and with mmsegmentation's transforms where that is installed.
    """
    plain = change(config, {"model.classifier": "plain"})
    rows: Jobs = {LOOP: partial(_time_loop, plain, steps)}
    if is_installed():
        rows[MMSEG_LOOP] = partial(_time_loop, plain, steps, mmsegmentation=True)
    if config.training.precision != "fp32":
        usual = change(plain, {"training.precision": "fp32", "training.channels_last": False})
        rows[FLOAT_LOOP] = partial(_time_loop, usual, steps)
    for resident in (False, True) if training_device(config.training).type == "cuda" else (False,):
        for kind, chosen in (("plain", plain), (config.model.preset, config)):
            words = f"cacseg train, {kind}, {'images on the GPU' if resident else 'images read by workers'}"
            rows[words] = partial(_time_run, change(chosen, {"data.resident": resident}), steps)
    return rows


class _Measured(Exception):
    """Ends a run whose timed steps are done."""


class _TimedTask(SegmentationTask):
    first, last, seconds = 0, 0, 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.global_step in (self.first, self.last):
            self.seconds = read_clock(self.device) - self.seconds
        if self.trainer.global_step == self.last:
            raise _Measured


def _time_run(config: Config, steps: int) -> float:
    """Of `cacseg train`, after its first steps."""
    train_data, validation_data = (open_split(config.data, split) for split in ("train", "val"))
    warm_up = max(1, round(WARM_UP * steps))
    config = change(config, {"schedule.steps": steps + warm_up + 1, "training.validate_every": steps + warm_up + 1})
    model = make_model(config.model, train_data, _ignore)
    config = decide(config, model, train_data, validation_data, _ignore)
    task = _TimedTask(model, config.optimiser, config.schedule, config.training, Inference())
    task.first, task.last = warm_up, warm_up + steps
    loaders = make_loaders(config, train_data, validation_data, _ignore)
    with TemporaryDirectory() as scratch, suppress(_Measured):
        train(task, loaders, Path(scratch) / "run", report=_ignore, progress=False)
    return steps * loaders.batch / task.seconds


def _ignore(text: str) -> None:
    pass


class _Crops(Dataset[tuple[Tensor, Tensor]]):
    """Random crops by torchvision's v2 transforms, as its own reference scripts make them."""

    def __init__(self, data: SegmentationData, config: Config, mean: Sequence[float], std: Sequence[float]) -> None:
        from torchvision import tv_tensors  # type: ignore[import-untyped]
        from torchvision.transforms import v2  # type: ignore[import-untyped]

        self.data, self.ratios, self.scale, self.kinds = data, config.data.ratios, config.data.scale, tv_tensors
        fill = {tv_tensors.Image: 0, tv_tensors.Mask: data.ignore_index}
        self.transform = v2.Compose(
            [
                v2.RandomCrop(config.data.crop, pad_if_needed=True, fill=fill),
                v2.RandomHorizontalFlip(config.data.flip),
                *([v2.RandomPhotometricDistort()] if config.data.distort else []),
                v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
                v2.Normalize(list(mean), list(std)),
            ]
        )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        from torchvision.transforms.v2 import functional as V2  # type: ignore[import-untyped]

        sample = self.data.read(index)
        image = self.kinds.Image(torch.from_numpy(sample.image).permute(2, 0, 1))
        labels = self.kinds.Mask(torch.from_numpy(sample.labels)[None])
        sides = sample.labels.shape
        ratio = random.uniform(*self.ratios)
        if self.scale is not None:
            ratio *= min(max(self.scale) / max(sides), min(self.scale) / min(sides))
        size = [max(1, round(ratio * side)) for side in sides]
        image, labels = self.transform(V2.resize(image, size), V2.resize(labels, size))
        return image.as_subclass(Tensor), labels[0].as_subclass(Tensor).long()


def _time_loop(config: Config, steps: int, mmsegmentation: bool = False) -> float:
    """A model in a plain PyTorch loop, after its first steps: F.interpolate, F.cross_entropy, AdamW, no graphs.

    torchvision's transforms normalise in the workers; mmsegmentation's crops are bytes, normalised on the device.
    """
    training, data = config.training, open_split(config.data, "train")
    device = training_device(training)
    torch.manual_seed(training.seed)
    layout = torch.channels_last if training.channels_last else torch.contiguous_format
    model = make_model(config.model, data, _ignore).to(device, memory_format=layout).train()  # type: ignore[call-overload]
    use_usual_pyramid(model)
    crops = MmsegCrops(data, config) if mmsegmentation else _Crops(data, config, model.mean, model.std)
    assert training.batch != "auto"
    workers = min(training.workers, available_cores())
    warm_up, started = max(1, round(WARM_UP * steps)), 0.0
    # One long epoch: at the end of each the workers would run dry, of a small data set every few steps.
    order = RandomSampler(crops, replacement=True, num_samples=(warm_up + steps + 1) * training.batch)
    loader = DataLoader(crops, training.batch, sampler=order, num_workers=workers, pin_memory=device.type == "cuda")
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.optimiser.rate)
    for number, (images, labels) in enumerate(loader, 1):
        shown = images.to(device, memory_format=layout, non_blocking=True)
        if mmsegmentation:
            shown = normalise(shown, model.mean, model.std)
        with autocast(device, "fp32" if training.precision == "tf32" else training.precision):
            loss = usual_model_loss(model, shown, labels.to(device, non_blocking=True))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if number == warm_up:
            started = read_clock(device)
        if number == warm_up + steps:
            break
    return steps * len(images) / (read_clock(device) - started)


def random_model(chosen: ModelConfig, classes: int) -> SegmentationModel:
    """The model of a recipe with random weights."""
    chosen = chosen.model_copy(update={"pretrained": False, "weights": None, "backbone_weights": None})
    names = SimpleNamespace(class_names=[f"class {number}" for number in range(classes)], ignore_index=255)
    return make_model(chosen, cast(SegmentationData, names), _ignore)


def predict_jobs(backend: TorchBackend, paths: Sequence[Path], *, batch: int, workers: int) -> Jobs:
    """Masks of files by a loop, in float32 too, by `cacseg predict`, and by that with overlays beside the masks."""
    model, device, inputs = copy.deepcopy(backend.model), backend.device, find_images(paths)
    use_usual_pyramid(model)
    backend.model.to(memory_format=backend.layout)  # type: ignore[call-overload] # as of a model from a file
    mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (backend.mean, backend.std))

    def loop(precision: str) -> float:
        with TemporaryDirectory() as scratch, torch.inference_mode(), autocast(device, precision):
            started = time.perf_counter()
            for number, path in enumerate(paths):
                image = np.array(Image.open(path).convert("RGB"))
                pixels = torch.from_numpy(image).to(device).permute(2, 0, 1) / 255
                mask = model(((pixels - mean) / std)[None]).argmax(1)[0].byte().cpu().numpy()
                Image.fromarray(mask).save(Path(scratch) / f"{number}.png")
            return len(paths) / (time.perf_counter() - started)

    def ours(save: SaveOptions) -> float:
        with TemporaryDirectory() as scratch, Journal(Path(scratch) / "out", {}) as journal:
            started = time.perf_counter()
            found = predict_files(backend, inputs, journal, save=save, batch=batch, workers=workers)
            if found.failed:
                raise ValueError(found.failed[0].reason)
            return len(paths) / (time.perf_counter() - started)

    jobs: Jobs = {LOOP: partial(loop, backend.precision)}
    if backend.precision != "fp32":
        jobs[FLOAT_LOOP] = partial(loop, "fp32")
    return jobs | {
        "cacseg predict, masks": lambda: ours(SaveOptions(overlays=False)),
        "cacseg predict, masks and overlays": lambda: ours(SaveOptions()),
    }
