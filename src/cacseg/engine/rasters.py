"""TIFF and GeoTIFF files of any size: read by windows, predicted by tiles, written by blocks, in bounded memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cacseg._files import check_target, scratch_beside
from cacseg.engine.backend import TorchBackend, confidence_and_entropy
from cacseg.engine.blocks import BLOCK, BlockWriter
from cacseg.engine.device import autocast, explain_memory
from cacseg.engine.inference import normalise_views
from cacseg.engine.tiles import Box, TiledImage
from cacseg.metrics import most_likely
from cacseg.models.model import SegmentationModel, evaluating
from cacseg.runtime.files import check_file
from cacseg.runtime.folder import Failure, SaveOptions, Summary, check_names, longest_name
from cacseg.runtime.geojson import geojson_lines
from cacseg.runtime.inputs import Input
from cacseg.runtime.journal import Journal, stamp
from cacseg.runtime.outlines import Region
from cacseg.runtime.places import place_of_dataset
from cacseg.runtime.polygons import foreground, write_lines
from cacseg.runtime.rasters import check_colours, import_rasterio, read_bands, read_colours
from cacseg.runtime.result import to_integers

CACHE = 64  # MiB of blocks that GDAL holds
WINDOW = 2048  # pixels a side of a part whose polygons are in memory at once
NO_DATA = 255  # in masks: pixels that the image marks as empty, or as outside of it


@dataclass(frozen=True)
class RasterSource:
    """An open file: grey, a palette, or red, green, blue and whatever follows in bytes; or the model's bands."""

    dataset: Any
    backend: TorchBackend

    def __post_init__(self) -> None:
        bands = self.backend.bands
        if bands is None:
            check_colours(self.dataset)
        elif self.dataset.count != bands:
            raise ValueError(f"{self.dataset.name} has {self.dataset.count} band(s); the model takes {bands}.")

    @property
    def height(self) -> int:
        return int(self.dataset.height)

    @property
    def width(self) -> int:
        return int(self.dataset.width)

    def read(self, box: Box) -> Tensor:
        backend, window = self.backend, window_of(box)
        values = read_colours(self.dataset, window) if backend.bands is None else read_bands(self.dataset, window)
        pixels = torch.from_numpy(values)
        return normalise_views([[pixels]], backend.mean, backend.std, backend.dtype, backend.device)[0]


def window_of(box: Box) -> Any:
    from rasterio.windows import Window

    return Window(box.left, box.top, box.right - box.left, box.bottom - box.top)


def predict_rasters(
    backend: TorchBackend,
    inputs: Sequence[Input],
    journal: Journal,
    *,
    save: SaveOptions = SaveOptions(overlays=False),  # noqa: B008 (frozen)
    plain: bool = False,
    step: Callable[[Input, int, int], None] | None = None,
) -> Summary:
    """Writes masks/NAME.tif of each file, with its georeference; confidence and entropy likewise, GeoJSON. No overlays.

    `step` is called after each tile of each pass with the file, the tiles done and how many there are. What the journal
    has is skipped; a file that cannot be read is a `Failure`, and the rest goes on.
    """
    if inputs and save.polygons not in (None, "geojson"):
        raise ValueError(f"polygons of rasters are written as geojson; got {save.polygons}. Use --format geojson.")
    wanted = ["masks", *(["confidence"] if save.confidence else []), *(["entropy"] if save.entropy else [])]
    written, skipped, failed = 0, 0, list[Failure]()
    longest = longest_name(journal.folder)
    for item in inputs:
        targets = {kind: journal.folder / kind / f"{item.name}.tif" for kind in wanted}
        polygons = journal.folder / "geojson" / f"{item.name}.geojson" if save.polygons == "geojson" else None
        outputs = [*targets.values(), *([polygons] if polygons is not None else [])]
        if journal.is_done(item) and all(one.exists() for one in outputs):
            skipped += 1
            continue
        try:
            check_file(item.path)
            check_names(item, outputs, longest)
            before = stamp(item.path)
            size = _predict(backend, item, targets, plain, save.bits, step)
            if polygons is not None:
                write_polygons(targets["masks"], polygons, backend.classes.names, save)
            if stamp(item.path) != before:
                raise OSError("the file must stay as it is while it is read; it changed. Predict it again.")
            journal.add(item, size, before)
            written += 1
        except (OSError, ValueError, MemoryError) as error:
            named = str(error) if str(error).startswith(str(item.path)) else f"{item.path}: {error}"
            failed.append(Failure(item.path, named))
    return Summary(written, skipped, failed)


def _predict(
    backend: TorchBackend,
    item: Input,
    targets: dict[str, Path],
    plain: bool,
    bits: int,
    step: Callable[[Input, int, int], None] | None,
) -> tuple[int, int]:
    rasterio, model, tiling = import_rasterio(), backend.model, backend.inference.tiling
    assert isinstance(model, SegmentationModel)
    assert tiling is not None
    if backend.scale is not None or backend.inference.averages:
        raise ValueError("rasters are shown at their own size, without flip. Use --scale own, and leave out --flip.")
    drafts = {kind: scratch_beside(path) for kind, path in targets.items()}
    for path in targets.values():
        check_target(path, overwrite=True)
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if step is not None:
            step(item, done, total)

    try:
        with ExitStack() as stack:
            stack.enter_context(rasterio.Env(GDAL_CACHEMAX=CACHE))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)  # TIFF files of any kind
            dataset = stack.enter_context(rasterio.open(item.path, driver="GTiff"))  # no list of other files
            source = RasterSource(dataset, backend)
            image = TiledImage(model, source, tiling, ["plain" if plain else model.default_output])
            total = image.passes * image.tiles
            files = {
                kind: stack.enter_context(rasterio.open(path, "w", **_profile(dataset, kind, bits)))
                for kind, path in drafts.items()
            }
            files["masks"].write_colormap(1, dict(enumerate(backend.classes.palette)))
            writers = {kind: BlockWriter(file, file.dtypes[0]) for kind, file in files.items()}
            stack.enter_context(explain_memory(f"a tile of {tiling.tile}x{tiling.tile}", backend.device))
            stack.enter_context(autocast(backend.device, backend.precision))
            stack.enter_context(evaluating(model))
            for box, (scores,) in image.parts(count):
                window = window_of(box)
                mask = most_likely(scores, 0).to(torch.uint8).cpu().numpy()
                if backend.bands is None:
                    empty = dataset.dataset_mask(window=window) == 0
                else:
                    empty = ~np.isfinite(read_bands(dataset, window)).all(axis=0)
                writers["masks"].write(box, np.where(empty, NO_DATA, mask))
                if len(files) > 1:
                    maps = confidence_and_entropy(scores, are_logits=True)
                    for kind, values in zip(("confidence", "entropy"), maps, strict=True):
                        if kind in writers:
                            writers[kind].write(box, to_integers(values.cpu().numpy(), bits))
            size = (source.height, source.width)
        for kind, path in targets.items():
            os.replace(drafts[kind], path)
    finally:
        for path in drafts.values():
            with suppress(FileNotFoundError):
                path.unlink()
    return size


def write_polygons(mask: Path, path: Path, names: Sequence[str], save: SaveOptions) -> None:
    """GeoJSON of a mask that was written, by windows: a region is cut where one ends."""
    rasterio = import_rasterio()
    with ExitStack() as stack:
        stack.enter_context(rasterio.Env(GDAL_CACHEMAX=CACHE))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        dataset = stack.enter_context(rasterio.open(mask))

        def regions() -> Iterator[tuple[list[Region], tuple[int, int]]]:
            for top in range(0, dataset.height, WINDOW):
                for left in range(0, dataset.width, WINDOW):
                    box = Box(top, left, min(top + WINDOW, dataset.height), min(left + WINDOW, dataset.width))
                    yield foreground(dataset.read(1, window=window_of(box)), names), (left, top)

        place = place_of_dataset(dataset, save.coordinates)
        write_lines(path, geojson_lines(regions(), names, place, save.simplify))


def _profile(dataset: Any, kind: str, bits: int) -> dict[str, Any]:
    """Of a file of one band with the place of the image on the ground."""
    from rasterio.crs import CRS

    gcps, gcps_crs = dataset.gcps
    place: dict[str, Any] = {"gcps": gcps, "crs": gcps_crs or CRS()} if gcps else {}
    if not gcps and not dataset.transform.is_identity:
        place = {"crs": dataset.crs, "transform": dataset.transform}
    return {
        "driver": "GTiff",
        "width": dataset.width,
        "height": dataset.height,
        "count": 1,
        "dtype": "uint8" if kind == "masks" or bits == 8 else "uint16",
        "nodata": NO_DATA if kind == "masks" else None,
        "compress": "deflate",
        "tiled": True,
        "blockxsize": BLOCK,
        "blockysize": BLOCK,
        "bigtiff": "if_safer",
        **place,
    }
