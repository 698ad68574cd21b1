"""What dilation leaves of ImageNet weights: python benchmarks/dilated_blocks.py DATA ROOT WEIGHTS

    python benchmarks/dilated_blocks.py msrc21 data/msrc21 mobilenetv2_100_imagenet.safetensors \\
        --padding same --normalise 0.5

The backbone is not trained. A linear classifier of its last map, by L-BFGS, at the strides of 32, 16 and 8, with the
first block of each stage dilated, as the reference has MobileNetV2, and with all of them; scored as models are, its
logits upsampled to the labels. Beside it how far the features at each stride are those at 32, where both stand at the
same place: their correlation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import cacseg
from cacseg import functional
from cacseg._files import write_file
from cacseg.bench.machine import processor_name
from cacseg.data import SegmentationData, TestTransform, normalise, open_data
from cacseg.metrics import confusion, scores
from cacseg.models.model import SegmentationModel

Blocks = Literal["first", "all"]
FORMS: tuple[tuple[int, Blocks], ...] = ((32, "all"), (16, "first"), (16, "all"), (8, "first"), (8, "all"))
MULTIPLE = 32  # images are padded to it at the lower right, labels with what is ignored


class Row(NamedTuple):
    stride: int
    blocks: Blocks
    miou: float
    correlation: float


@torch.no_grad()
def features_of(model: SegmentationModel, data: SegmentationData) -> tuple[list[Tensor], list[Tensor]]:
    """The last map [d, h, w] of each image, in half precision, and its labels [H, W]."""
    maps, labels = [], []
    for index in range(len(data)):
        sample = data.read(index)
        images = normalise(TestTransform()(sample.image)[None], model.mean, model.std)
        target = torch.from_numpy(sample.labels).long()
        below, right = (-side % MULTIPLE for side in target.shape)
        maps.append(model.backbone(F.pad(images, (0, right, 0, below)))[3][0].half())
        labels.append(F.pad(target, (0, right, 0, below), value=data.ignore_index))
    return maps, labels


def fit(maps: list[Tensor], labels: list[Tensor], classes: int, ignored: int) -> tuple[Tensor, Tensor]:
    """A linear classifier of features, each with the label in the middle of its patch: weight [n, d] and bias [n]."""
    rows, targets = [], []
    for features, target in zip(maps, labels, strict=True):
        small = functional.resize_labels(target[None], features.shape[1:], "centred")[0]
        kept = small != ignored
        rows.append(features.float().permute(1, 2, 0)[kept])
        targets.append(small[kept])
    points, wanted = torch.cat(rows), torch.cat(targets)
    shift, spread = points.mean(0), points.std(0).clamp(min=1e-6)
    points = (points - shift) / spread
    weight, bias = (torch.zeros(*shape, requires_grad=True) for shape in ((classes, points.shape[1]), (classes,)))
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(points, weight, bias), wanted) + 1e-4 * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    found = (weight / spread).detach()
    return found, bias.detach() - found @ shift


@torch.no_grad()
def score(maps: list[Tensor], labels: list[Tensor], weight: Tensor, bias: Tensor, ignored: int) -> float:
    counts = torch.zeros(len(bias), len(bias), dtype=torch.int64)
    for features, target in zip(maps, labels, strict=True):
        logits = F.conv2d(features.float()[None], weight[:, :, None, None], bias)
        whole = F.interpolate(logits, target.shape, mode="bilinear", align_corners=False)
        counts += confusion(whole.argmax(1), target[None], len(bias), ignored)
    return 100.0 * float(scores(counts).mean_iou)


def alike(maps: list[Tensor], at_32: list[Tensor], stride: int, padding: str) -> float:
    """The correlation of features at a stride with those at 32, at their places."""
    step = 32 // stride
    first = step - 1 if padding == "same" else 0  # TensorFlow pads below and to the right
    pairs = ((one[:, first::step, first::step], other) for one, other in zip(maps, at_32, strict=True))
    ours, theirs = (torch.cat([one.flatten().float() for one in found]) for found in zip(*pairs, strict=True))
    return float(torch.corrcoef(torch.stack([ours, theirs]))[0, 1])


def measure(splits: list[SegmentationData], backbone: str, **told: Any) -> Iterator[Row]:
    """A row for each stride and choice of blocks, from the training and the validation split."""
    classes, ignored = len(splits[0].class_names), splits[0].ignore_index
    at_32: list[Tensor] = []
    for stride, blocks in FORMS:
        model = cacseg.create_model(
            "fcn", classes, "plain", backbone=backbone, output_stride=stride, dilated_blocks=blocks, **told
        ).eval()
        (maps, labels), (held, truth) = (features_of(model, data) for data in splits)
        at_32 = at_32 or held
        weight, bias = fit(maps, labels, classes, ignored)
        same = alike(held, at_32, stride, model.arguments["padding"])
        yield Row(stride, blocks, score(held, truth, weight, bias, ignored), same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "root", "weights"):
        parser.add_argument(name)
    parser.add_argument("--backbone", default="mobilenetv2_100", help="a MobileNetV2 of timm")
    parser.add_argument("--padding", default=None, choices=("", "same"), help="that the weights were trained with")
    parser.add_argument(
        "--normalise", type=float, default=None, help="the mean and deviation of all channels, e.g. 0.5"
    )
    parser.add_argument("-o", "--output", type=Path, default=None, help="a JSON file for the rows")
    given = parser.parse_args()
    if given.output is not None and given.output.exists():  # before minutes of work
        parser.error(f"{given.output} exists. Remove it first, or give another file.")
    told: dict[str, Any] = {"backbone_weights": given.weights, "padding": given.padding}
    if given.normalise is not None:
        told |= {"mean": [given.normalise] * 3, "std": [given.normalise] * 3}
    try:
        run(given, told)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def run(given: argparse.Namespace, told: dict[str, Any]) -> None:
    splits = [open_data(given.data, given.root, split) for split in ("train", "val")]
    print(f"torch {torch.__version__}, {processor_name()}\n")
    print("| stride, dilated blocks | mIoU | correlation |\n|---|---|---|")
    rows = []
    for row in measure(splits, given.backbone, **told):
        rows.append(row._asdict())
        print(markdown(row), flush=True)
    if given.output is not None:
        found = {"torch": torch.__version__, "processor": processor_name(), "data": given.data, "rows": rows}
        write_file(given.output, f"{json.dumps(found, indent=2)}\n")


def markdown(row: Row) -> str:
    title = str(row.stride) if row.stride == 32 else f"{row.stride}, {row.blocks}"
    return f"| {title} | {row.miou:.1f} | {row.correlation:.2f} |"


if __name__ == "__main__":
    main()
