"""Peak memory and time of one large image by tiles: python benchmarks/large_image.py 5000 10000 20000

A generated tiled TIFF of each side is predicted by `cacseg predict --tile 1024` in a process of its own, with a model
of random weights; the figures are what that process holds at most (RSS) and how long it takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import cacseg
from cacseg._files import write_file
from cacseg.bench.compare import describe_machine
from cacseg.engine.device import choose_device


def write_image(path: Path, side: int) -> None:
    """Blurred noise, made and written a block at a time."""
    import rasterio
    from rasterio.windows import Window

    numbers = np.random.default_rng(0)
    kind = {"driver": "GTiff", "count": 3, "height": side, "width": side, "dtype": "uint8", "tiled": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path, "w", **kind, compress="deflate", bigtiff="if_safer") as file:
            for top in range(0, side, 1024):
                for left in range(0, side, 1024):
                    height, width = min(1024, side - top), min(1024, side - left)
                    coarse = numbers.integers(0, 256, (3, 64, 64), np.uint8).repeat(16, 1).repeat(16, 2)
                    file.write(coarse[:, :height, :width], window=Window(left, top, width, height))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", type=int, nargs="+")
    parser.add_argument("--backbone", default="mobilenetv2_100")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    rows = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        model = cacseg.create_model("fcn", 19, backbone=options.backbone, head_channels=options.channels)
        model.save(folder / "model.safetensors")
        for side in options.sides:
            write_image(folder / f"{side}.tif", side)
            command = [sys.executable, "-m", "cacseg.cli", "predict", folder / "model.safetensors"]
            command += [folder / f"{side}.tif", "-o", folder / f"out{side}", "--tile", "1024", "--no-overlays"]
            started = time.perf_counter()
            process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if status != 0:
                raise SystemExit(f"prediction of {side}x{side} failed ({status})")
            seconds, peak = time.perf_counter() - started, usage.ru_maxrss / 1024
            print(f"{side}x{side}: {seconds:.0f} s, {peak:.0f} MiB", flush=True)
            rows.append({"side": side, "seconds": seconds, "peak_mib": peak})
            (folder / f"{side}.tif").unlink()
    if options.output is not None:
        facts = {"backbone": options.backbone, "channels": options.channels, "rows": rows}
        text = json.dumps({**describe_machine(choose_device("auto")), **facts}, indent=2)
        write_file(options.output, text + "\n")


if __name__ == "__main__":
    main()
