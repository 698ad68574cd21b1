"""mIoU and flicker of a film's frames with carried context: python benchmarks/carry.py runs/camvid --carry 0 0.5 0.9

For validation splits whose images are frames of films in their order, such as CamVid's (0016E5_07959.jpg, the film and
the frame). Flicker is the share of pixels whose predicted class differs from that of the frame before, among those
whose label is the same in both; frames more than `--gap` apart begin a new film.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from cacseg import Predictor
from cacseg._files import write_file
from cacseg.bench.compare import describe_machine
from cacseg.data import SegmentationData
from cacseg.engine.device import choose_device
from cacseg.metrics import confusion, scores
from cacseg.models.saved import find_weights
from cacseg.recipes.protocol import data_to_evaluate, open_split
from cacseg.runtime.result import Bytes


def films(data: SegmentationData, gap: int) -> list[list[int]]:
    """The indices of consecutive frames."""
    names = [data.image_name(index) for index in range(len(data))]
    found: list[list[int]] = []
    before = ("", 0)
    for index in sorted(range(len(data)), key=names.__getitem__):
        film, number = re.fullmatch(r"(.*?)[^\d]*(\d+)[^\d]*", names[index]).groups()  # type: ignore[union-attr]
        if film != before[0] or int(number) - before[1] > gap:
            found.append([])
        found[-1].append(index)
        before = (film, int(number))
    return found


def measure(
    predictor: Predictor, data: SegmentationData, parts: Sequence[Sequence[int]], carry: float, plain: bool = False
) -> tuple[float, float]:
    """mIoU and flicker."""
    count = len(data.class_names)
    counts, changed, still = torch.zeros(count, count, dtype=torch.int64), 0, 0
    for part in parts:
        before: tuple[Bytes, Bytes] | None = None
        images = (data.read(index).image for index in part)
        for index, result in zip(part, predictor.stream(images, carry=carry), strict=True):
            labels, mask = data.read(index).labels, result.plain if plain else result.mask
            counts += confusion(
                torch.from_numpy(mask.copy()), torch.from_numpy(labels.copy()), count, data.ignore_index
            )
            if before is not None:
                same = (labels == before[0]) & (labels != data.ignore_index)
                changed, still = changed + int((mask != before[1])[same].sum()), still + int(same.sum())
            before = labels, mask
    return scores(counts).mean_iou, changed / still


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--carry", type=float, nargs="+", default=[0.0, 0.5, 0.9])
    parser.add_argument("--gap", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    weights = find_weights(options.model)
    data, predictor = open_split(data_to_evaluate(weights), "val"), Predictor(weights)
    parts = films(data, options.gap)
    print(f"{len(data)} frames of {len(parts)} film(s)")
    rows = []
    for carry, plain in [(0.0, True), *((carry, False) for carry in options.carry)]:
        miou, flicker = measure(predictor, data, parts, carry, plain)
        name = "plain classifier" if plain else f"carry {carry:g}"
        print(f"{name}: {100 * miou:.2f} mIoU, {100 * flicker:.2f} % flicker", flush=True)
        rows.append({"row": name, "miou": miou, "flicker": flicker})
    if options.output is not None:
        text = json.dumps({**describe_machine(choose_device("auto")), "rows": rows}, indent=2)
        write_file(options.output, text + "\n")


if __name__ == "__main__":
    main()
