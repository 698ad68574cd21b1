"""Time of a training step where every block dilates, beside the first of each stage: python benchmarks/dilated_time.py

A plain FCN-MobileNetV2 at a stride of 8, AdamW, 19 classes; rows in turn, the ratios within the rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

import cacseg
from cacseg._files import write_file
from cacseg.bench.compare import compare, record
from cacseg.bench.steps import usual_model_loss
from cacseg.engine.device import autocast, choose_device


def make_step(blocks: str, precision: str, device: torch.device, batch: int, size: int) -> Callable[[], None]:
    torch.manual_seed(0)
    layout = torch.channels_last
    model = cacseg.create_model("fcn_mobilenetv2", 19, "plain", dilated_blocks=blocks)  # type: ignore[arg-type]
    model = model.to(device, memory_format=layout).train()  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(model.parameters())
    images = torch.randn(batch, 3, size, size, device=device).contiguous(memory_format=layout)
    labels = torch.randint(0, 19, (batch, size, size), device=device)

    def step() -> None:
        with autocast(device, precision):
            loss = usual_model_loss(model, images, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    device = choose_device("auto")
    records = []
    for precision in ("fp32", "bf16"):
        shape = {"precision": precision, "batch": options.batch, "size": options.size}
        steps: dict[str, Callable[[], object]] = {
            blocks: make_step(blocks, precision, device, options.batch, options.size) for blocks in ("first", "all")
        }
        rows = compare(steps, device, rounds=options.rounds)
        for blocks, row in rows.items():
            print(f"{precision} {blocks}: {row.time_ms:.1f} ms, {row.time_ratio:.3f}x, {row.memory_mib or 0:.0f} MiB")
        records.append(record(rows, device, **shape, rounds=options.rounds))
    if options.output is not None:
        write_file(options.output, json.dumps(records, indent=2) + "\n", overwrite=True)


if __name__ == "__main__":
    main()
