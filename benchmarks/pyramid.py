"""Whole models on a CPU, each level convolved at its own size beside all concatenated: python benchmarks/pyramid.py

A forward pass of an image of 512x512, and a training step of two crops of 256x256, of plain models with 19 classes in
float32. Rows alternate; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import cacseg
from cacseg._files import write_file
from cacseg.bench.compare import compare, record
from cacseg.bench.steps import use_usual_pyramid
from cacseg.models.model import SegmentationModel

MODELS = {
    "UPerNet-MobileNetV2, 256 channels": {"name": "upernet", "backbone": "mobilenetv2_100", "head_channels": 256},
    "UPerNet-ResNet50": {"name": "upernet_resnet50"},
    "UPerNet-Swin-T": {"name": "upernet_swin_tiny"},
    "OCRNet-HRNet-W48": {"name": "ocrnet_hrnet_w48"},
}


def make_steps(model: str) -> dict[str, dict[str, Callable[[], object]]]:
    steps: dict[str, dict[str, Callable[[], object]]] = {"inference": {}, "training": {}}
    for row in ("concatenated", "apart"):
        torch.manual_seed(0)
        made = cacseg.create_model(num_classes=19, classifier="plain", **MODELS[model])  # type: ignore[arg-type]
        if row == "concatenated":
            use_usual_pyramid(made)
        steps["inference"][row] = partial(infer, made, torch.randn(1, 3, 512, 512))
        steps["training"][row] = partial(train, made, torch.randn(2, 3, 256, 256), torch.randint(0, 19, (2, 256, 256)))
    return steps


def infer(model: SegmentationModel, images: Tensor) -> None:
    with torch.inference_mode():
        model.eval()(images)


def train(model: SegmentationModel, images: Tensor, labels: Tensor) -> None:
    model.train().zero_grad()
    model.loss(images, labels)["total"].backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    records, device = [], torch.device("cpu")
    for model in MODELS:
        for job, steps in make_steps(model).items():
            rows = compare(steps, device, rounds=options.rounds, warm_up=1)
            print(f"{model}, {job}: {rows['concatenated'].time_ms:.0f} ms, apart {rows['apart'].time_ratio:.2f}x")
            records.append(record(rows, device, model=model, job=job, rounds=options.rounds, threads=options.threads))
    if options.output is not None:
        write_file(options.output, json.dumps(records, indent=2) + "\n", overwrite=True)


if __name__ == "__main__":
    main()
