"""Images a second of one worker and of several: python benchmarks/shards.py --workers 1 2 --images 120

Generated JPEGs of 512x384 are predicted by `cacseg predict --shard K/N` in N processes at once, each with one thread
(OMP_NUM_THREADS=1) and on Linux bound to a core of its own, by a model of random weights. The rate is counted from the
first mask to the last, so without the start of Python. Rounds alternate, and the cores that other programs took
meanwhile are printed (on Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import cacseg
from cacseg._files import write_file
from cacseg.bench.compare import describe_machine
from cacseg.engine.device import choose_device
from cacseg.runtime.colours import jpeg


def busy_seconds() -> float:
    """Of all cores, by all programs but the children of this one that ended."""
    numbers = [int(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    ours = os.times()
    return (sum(numbers[:3]) + sum(numbers[5:8])) / os.sysconf("SC_CLK_TCK") - ours.children_user - ours.children_system


def measure(folder: Path, out: Path, workers: int, arguments: list[str]) -> tuple[float, float]:
    """Images a second, and the cores that others took."""
    start, busy = time.perf_counter(), busy_seconds()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cacseg.cli", "predict", str(folder / "model.safetensors"), str(folder / "photos")]
    processes = [
        subprocess.Popen(
            [*command, "-o", str(out), "--shard", f"{index + 1}/{workers}", *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Linux shares a busy machine out by sessions
        )
        for index in range(workers)
    ]
    if hasattr(os, "sched_setaffinity"):  # else one worker decodes and writes on the cores of the others
        cores = sorted(os.sched_getaffinity(0))
        for index, process in enumerate(processes):
            os.sched_setaffinity(process.pid, {cores[index % len(cores)]})
    if any(one.wait() for one in processes):
        raise SystemExit(f"a worker of {workers} failed")
    times = sorted(path.stat().st_mtime for path in (out / "masks").iterdir())
    others = (busy_seconds() - busy) / (time.perf_counter() - start)
    return (len(times) - 1) / (times[-1] - times[0]), others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backbone", default="mobilenetv2_100")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    rates: dict[int, list[float]] = {workers: [] for workers in options.workers}
    busy: dict[int, list[float]] = {workers: [] for workers in options.workers}
    with TemporaryDirectory() as scratch:
        folder, numbers = Path(scratch), np.random.default_rng(0)
        torch.manual_seed(0)
        model = cacseg.create_model("fcn", 19, backbone=options.backbone, head_channels=64)
        model.save(folder / "model.safetensors")
        for index in range(options.images):
            coarse = numbers.integers(0, 256, (24, 32, 3), np.uint8).repeat(16, 0).repeat(16, 1)
            write_file(folder / "photos" / f"{index}.jpg", jpeg(coarse))
        for number in range(options.rounds):
            for workers in options.workers:
                out = folder / f"out{number}-{workers}"
                arguments = ["--workers", "1", "--batch", "1", "--device", options.device]
                rate, others = measure(folder, out, workers, arguments)
                rates[workers].append(rate)
                busy[workers].append(others)
                print(f"{workers} worker(s): {rate:.2f} images a second; others took {others:.2f} cores", flush=True)
    first = options.workers[0]
    for workers, found in rates.items():
        ratio = statistics.median(one / base for one, base in zip(found, rates[first], strict=True))
        print(f"{workers} worker(s): {statistics.median(found):.2f} images a second, {ratio:.2f}x")
    if options.output is not None:
        facts = {"backbone": options.backbone, "images": options.images, "rates": rates, "cores_of_others": busy}
        text = json.dumps({**describe_machine(choose_device(options.device)), **facts}, indent=2)
        write_file(options.output, text + "\n")


if __name__ == "__main__":
    main()
