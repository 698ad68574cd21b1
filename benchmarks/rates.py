"""What large jobs do beside the network: python benchmarks/rates.py --side 8192 --files 1000000

Megapixels a second of reading windows of a tiled TIFF, of its mask of empty pixels, and of writing masks; seconds to
list a folder of so many empty files and share it out, and to merge eight indexes of as many rows. All in CPU time of
one core, which other programs hardly change; waiting for a disk or a network comes on top.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import rasterio

from cacseg._files import to_csv, write_file
from cacseg.bench.compare import describe_machine
from cacseg.engine.blocks import BlockWriter
from cacseg.engine.device import choose_device
from cacseg.engine.rasters import CACHE, window_of
from cacseg.engine.tiles import Box
from cacseg.runtime.inputs import find_images
from cacseg.runtime.journal import COLUMNS, Journal
from cacseg.runtime.shards import Shard

WORKERS = 8


def boxes(side: int, tile: int = 1024) -> list[Box]:
    starts = range(0, side, tile)
    return [Box(top, left, min(top + tile, side), min(left + tile, side)) for top in starts for left in starts]


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def raster_rates(folder: Path, side: int) -> dict[str, float]:
    """Megapixels a second."""
    numbers, rates = np.random.default_rng(0), {}
    base = {"driver": "GTiff", "height": side, "width": side, "dtype": "uint8", "tiled": True}
    for compress in ("deflate", "jpeg"):
        path = folder / f"{compress}.tif"
        kind: dict[str, Any] = {"compress": compress}
        kind |= {"photometric": "ycbcr"} if compress == "jpeg" else {"nodata": 0}
        with rasterio.open(path, "w", count=3, **base, **kind) as file:
            for box in boxes(side):
                coarse = numbers.integers(0, 240, (3, 128, 128), np.uint8).repeat(8, 1).repeat(8, 2)
                coarse += numbers.integers(1, 16, coarse.shape, np.uint8)
                file.write(coarse[:, : box.bottom - box.top, : box.right - box.left], window=window_of(box))
        with rasterio.open(path) as file:
            windows = list(map(window_of, boxes(side)))
            rates[f"read, {compress}"] = seconds_of(lambda: [file.read(window=one) for one in windows])  # noqa: B023
            rates[f"empty pixels, {compress}"] = seconds_of(lambda: [file.dataset_mask(window=one) for one in windows])  # noqa: B023
    options = {**base, "count": 1, "compress": "deflate", "blockxsize": 256, "blockysize": 256}
    mask = numbers.integers(0, 19, (128, 128), np.uint8).repeat(8, 0).repeat(8, 1)

    def write() -> None:
        with rasterio.open(folder / "mask.tif", "w", **options) as file:
            writer = BlockWriter(file, "uint8")
            for box in boxes(side):
                writer.write(box, mask[: box.bottom - box.top, : box.right - box.left])

    rates["write masks"] = seconds_of(write)
    return {name: side**2 / 1e6 / seconds for name, seconds in rates.items()}


def folder_times(folder: Path, files: int) -> dict[str, float]:
    """Seconds."""
    photos, out = folder / "photos", folder / "out"
    photos.mkdir()
    for index in range(files):
        os.close(os.open(photos / f"{index:07}.jpg", os.O_CREAT | os.O_WRONLY))
    found: list[Any] = []

    def share() -> None:
        shard = Shard(0, WORKERS)
        found.extend(find_images([photos]))
        sum(shard.owns(item.name) for item in found)

    times = {"list": seconds_of(share)}
    Journal(out, {}).__exit__(None)
    for worker in range(WORKERS):
        shard = Shard(worker, WORKERS)
        rows = [(one.name, str(one.path), "683", "512", "100000", "1" * 19) for one in found if shard.owns(one.name)]
        write_file(out / f"index.{worker + 1}-of-{WORKERS}.csv", to_csv([COLUMNS, *rows]))
    times["merge"] = seconds_of(lambda: Journal(out, {}, shard=Shard(0, WORKERS)).__exit__(None))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    with TemporaryDirectory() as scratch, rasterio.Env(GDAL_CACHEMAX=CACHE), warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        rates = raster_rates(Path(scratch), options.side)
        print({name: round(rate) for name, rate in rates.items()}, flush=True)
        times = folder_times(Path(scratch), options.files)
        print({name: round(seconds, 1) for name, seconds in times.items()}, flush=True)
    if options.output is not None:
        facts = {"side": options.side, "files": options.files, "megapixels_per_second": rates, "seconds": times}
        text = json.dumps({**describe_machine(choose_device("cpu")), **facts}, indent=2)
        write_file(options.output, text + "\n")


if __name__ == "__main__":
    main()
