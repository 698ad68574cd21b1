"""Exports a trained model in each precision and records mIoU, size and time of the files: docs/export.md.

python benchmarks/export_precision.py RUN -o benchmarks/results/export_precision.json

mIoU is that on up to 100 validation images, as `cacseg export --score 100` prints it; int8 is calibrated on 32 training
images. Time is that of one image on one core: the median processor time of interleaved rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cacseg
from cacseg.bench.compare import as_rows, describe_machine, take_times
from cacseg.bench.onnx import choose_clock
from cacseg.bench.steps import Steps
from cacseg.engine.export import Precision, export
from cacseg.engine.export.formats import open_onnx
from cacseg.engine.export.quantise import evenly, mean_iou, prepare
from cacseg.models.saved import find_weights
from cacseg.recipes.protocol import data_to_evaluate, open_split

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
CALIBRATION, SCORED, ROUNDS = 32, 100, 40
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a run, or a file of weights in it")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    weights = find_weights(options.run)
    model, protocol = cacseg.load(weights, "cpu"), data_to_evaluate(weights)
    train, val = open_split(protocol, "train"), open_split(protocol, "val")
    images = [train.read(i).image for i in evenly(len(train), CALIBRATION)]
    score = partial(mean_iou, data=val, most=SCORED)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        steps: Steps = {}
        for precision in PRECISIONS:
            written = export(
                model,
                Path(folder) / f"{precision}.onnx",
                precision=precision,
                calibration=images if precision == "int8" else None,
                score=score,
                accept=True,
            )
            assert written.scores is not None
            mib = written.path.stat().st_size / 2**20
            found[precision] = {"miou": written.scores.of_file, "miou_of_model": written.scores.of_model, "mib": mib}
            print(precision, found[precision], flush=True)
            shown = prepare(val.read(0).image, written.described)
            steps[precision] = partial(open_onnx(written.path, 1), shown)
        times = take_times(steps, CPU, rounds=ROUNDS, warm_up=2, clock=choose_clock(1)[1])
    for name, row in as_rows(times, {}).items():
        found[name] |= {
            "time_ms": row.time_ms,
            "time_ratio": row.time_ratio,
            "quartiles": row.time_ratio_quartiles,
        }
    facts = {
        "data": protocol.name,
        "scored": min(SCORED, len(val)),
        "calibration": len(images),
        "image": list(shown.shape[2:]),
        "rounds": ROUNDS,
    }
    options.output.write_text(json.dumps({**describe_machine(CPU), **facts, "rows": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
