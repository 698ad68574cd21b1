"""Peak memory and time of one large image by tiles: python benchmarks/large_image.py 5000 10000 20000

A generated tiled TIFF of each side is predicted by `cacseg predict --tile` in a process of its own, with a model of
random weights; the figures are what that process holds at most (RSS) and how long it takes. `features_mib` is what the
features of all tiles take together, of which `--keep` MiB are kept. glibc is told to give freed memory of a MiB or more
back at once (MALLOC_MMAP_THRESHOLD_): what it holds back otherwise differs by 100 MiB and more from run to run.
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
from cacseg.engine.tiles import Axis
from cacseg.models.model import SegmentationModel


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


@torch.no_grad()
def features_mib(model: SegmentationModel, side: int, tile: int, overlap: int) -> float:
    """Of all tiles, from the size of one small image's."""
    features = model.eval().features(torch.zeros(1, 3, 128, 128))
    axis = Axis(side, tile, overlap)
    pixels = sum(end - start for start, end in map(axis.span, range(len(axis.starts)))) ** 2
    return pixels * features.nbytes / 128**2 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", type=int, nargs="+")
    parser.add_argument("--model", default="fcn")
    parser.add_argument("--backbone", default="mobilenetv2_100")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--overlap", type=int, default=128)
    parser.add_argument("--keep", type=int, default=1024, metavar="MIB")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    rows = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        model = cacseg.create_model(options.model, 19, backbone=options.backbone, head_channels=options.channels)
        model.save(folder / "model.safetensors")
        for side in options.sides:
            write_image(folder / f"{side}.tif", side)
            command = [sys.executable, "-m", "cacseg.cli", "predict", folder / "model.safetensors"]
            command += [folder / f"{side}.tif", "-o", folder / f"out{side}", "--no-overlays"]
            command += ["--tile", options.tile, "--overlap", options.overlap, "--keep", options.keep]
            started = time.perf_counter()
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
            process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            if status != 0:
                raise SystemExit(f"prediction of {side}x{side} failed ({status})")
            seconds, peak = time.perf_counter() - started, usage.ru_maxrss / 1024
            features = features_mib(model, side, options.tile, options.overlap)
            print(f"{side}x{side}: {seconds:.0f} s, {peak:.0f} MiB, features {features:.0f} MiB", flush=True)
            rows.append({"side": side, "seconds": seconds, "peak_mib": peak, "features_mib": features})
            (folder / f"{side}.tif").unlink()
            if options.output is not None:
                keys = ("model", "backbone", "channels", "tile", "overlap", "keep")
                facts = {**{key: getattr(options, key) for key in keys}, "rows": rows}
                text = json.dumps({**describe_machine(choose_device("auto")), **facts}, indent=2)
                write_file(options.output, text + "\n")


if __name__ == "__main__":
    main()
