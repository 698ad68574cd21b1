"""Reports of made-up scores for tests, one of them as large as ADE20K's."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch

from cacseg.data import Sample
from cacseg.engine.evaluate import Evaluation, ImageResult
from cacseg.metrics import Tally
from cacseg.reports.page import Report, RunRecord, make_page
from cacseg.reports.strips import Subject, examine
from compare_runs import scores
from distributed_evaluation import small_model

CLASSES, IMAGES = 150, 2000


def _noisy_masks(model, image, names, **how):
    numbers = np.random.default_rng(int(image[0, 0, 0]))
    return [numbers.integers(0, CLASSES, (12, 16), np.uint8).repeat(20, 0).repeat(20, 1) for _ in names]


def record(arm="plain", seed=0, scored=None, measured=None, steps=10):
    return RunRecord(arm, ("grass", "fcn", steps), {"model": "fcn <small>"}, {"a.b": arm}, scored, measured, seed)


class Noise:
    """2000 images of 150 classes."""

    name, split, ignore_index = "noise", "val", 255
    class_names = tuple(f"class number {k}" for k in range(CLASSES))
    palette = tuple((k, 255 - k, k * 7 % 256) for k in range(CLASSES))

    def __len__(self):
        return IMAGES

    def image_name(self, index):
        return f"folder/image_{index:06d}"

    def read(self, index):
        numbers = np.random.default_rng(index)
        labels = numbers.integers(0, CLASSES, (12, 16), np.uint8).repeat(20, 0).repeat(20, 1)
        return Sample(numbers.integers(0, 256, (240, 320, 3), np.uint8), labels)


@cache
def large_page():
    """A run of 20,000 steps; pictures and masks of noise, which no file is larger with."""
    generator, data = torch.Generator().manual_seed(0), Noise()
    counts = torch.randint(0, 1000, (2, CLASSES, CLASSES), generator=generator)
    hits = torch.randint(0, 50, (IMAGES, 2, CLASSES), generator=generator)
    images = tuple(
        ImageResult(k, data.image_name(k), (240, 320), {name: Tally(one, one + 20, one + 20) for name, one in both})
        for k, found in enumerate(hits)
        for both in [zip(("plain", "context"), found, strict=True)]
    )
    found = Evaluation(data.class_names, dict(zip(("plain", "context"), counts, strict=True)), images, "context")
    subject = Subject("run", lambda: small_model(num_classes=CLASSES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cacseg.reports.strips.segment_each", _noisy_masks)
        seen = examine([subject], data, images=0, device=torch.device("cpu"), evaluations={"run": found})
    iou = torch.rand(CLASSES, generator=generator).tolist()
    scored = scores("context", iou=iou, labelled=[1000] * CLASSES, plain=iou, oracle=iou, train=True)
    scored["splits"]["val"]["images"] = IMAGES
    for name, one in found.counts.items():
        scored["splits"]["val"]["outputs"][name]["confusion"] = one.tolist()
    numbers = np.random.default_rng(0)
    terms = {f"loss/{k}": numbers.random(20000) for k in range(7)}
    measured = pd.DataFrame({"step": range(1, 20001), **terms, "val/context_mean_iou": numbers.random(20000)})
    return make_page(Report("large", [record(scored=scored, measured=measured)], seen, "last.safetensors"))
