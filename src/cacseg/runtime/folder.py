"""Predicts many files: read ahead in threads, batched by size, written in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from cacseg._files import write_file
from cacseg.runtime.backend import Answer, Backend, Classes, Context
from cacseg.runtime.bands import Pixels, as_picture, read_image, without_data
from cacseg.runtime.colours import Colour, jpeg, overlay, save_index_png
from cacseg.runtime.decode import MAX_PIXELS, max_bytes
from cacseg.runtime.files import read_file
from cacseg.runtime.geojson import geojson_lines
from cacseg.runtime.inputs import Input
from cacseg.runtime.journal import Journal
from cacseg.runtime.opencv import cv2
from cacseg.runtime.places import Coordinates, check_coordinates, place_of
from cacseg.runtime.polygons import SIMPLIFY, coco_part, foreground, labelme_json, write_coco, write_lines
from cacseg.runtime.prefetch import batch_by_key, prefetch
from cacseg.runtime.result import png, to_integers

_Kind = TypeVar("_Kind")

Polygons = Literal["labelme", "coco", "geojson"]
MAX_PATH = 4000  # bytes of a path, which may have 4096 where it is least; unfinished files need some
JPEG_SIDE = 65500  # pixels that a JPEG may be wide or high


@dataclass(frozen=True)
class SaveOptions:
    """What is written for each image beside its mask.

    Args:
        overlays: the mask over the image, `overlays/NAME.jpg`.
        confidence: the probability of the predicted class, `confidence/NAME.png`: 0 to 1 as 0 to 255 (or to 65535).
        entropy: of the probabilities over the logarithm of the class count, `entropy/NAME.png`, scaled likewise.
        opacity: of the overlay's colours.
        bits: 8 or 16, of confidence and entropy maps.
        polygons: `labelme/NAME.json`, `coco/NAME.json` (a part of `coco.json`) or `geojson/NAME.geojson`.
        simplify: pixels that polygons may be off the edges of their regions.
        coordinates: of GeoJSON, where the image has a place on the ground: "wgs84", longitude and latitude; "map", its
            own system; or "pixels".
    """

    overlays: bool = True
    confidence: bool = False
    entropy: bool = False
    opacity: float = 0.5
    bits: int = 8
    polygons: Polygons | None = None
    simplify: float = SIMPLIFY
    coordinates: Coordinates = "wgs84"

    def __post_init__(self) -> None:
        check_coordinates(self.coordinates)
        if self.polygons is not None and self.polygons not in get_args(Polygons):
            raise ValueError(f"polygons are {', '.join(get_args(Polygons))}; got {self.polygons!r}.")
        if self.polygons is not None and cv2 is None:
            raise ModuleNotFoundError("polygons need OpenCV: pip install opencv-python-headless", name="cv2")
        if self.bits not in (8, 16):
            raise ValueError(f"maps have 8 or 16 bits; got {self.bits}.")
        if not 0.0 <= self.opacity <= 1.0:
            raise ValueError(f"opacity must be in [0, 1]; got {self.opacity}.")

    def paths(self, folder: Path, name: str) -> dict[str, Path]:
        kinds = {"masks": (True, "png"), "overlays": (self.overlays, "jpg")}
        kinds |= {"confidence": (self.confidence, "png"), "entropy": (self.entropy, "png")}
        if self.polygons is not None:
            kinds |= {self.polygons: (True, "geojson" if self.polygons == "geojson" else "json")}
        return {kind: folder / kind / f"{name}.{suffix}" for kind, (wanted, suffix) in kinds.items() if wanted}


class Failure(NamedTuple):
    path: Path
    reason: str


class Summary(NamedTuple):
    written: int
    skipped: int  # done by an earlier run
    failed: list[Failure]


class _LoadedImage(NamedTuple):
    item: Input
    stamp: dict[str, str]
    image: Pixels
    view: Any

    def nbytes(self) -> int:
        views = self.view if isinstance(self.view, list | tuple) else [self.view]
        return self.image.nbytes + sum(view.nbytes for view in views)


class Prediction(NamedTuple):
    """An image, its file's stamp from before it was read, and what the model says of it."""

    item: Input
    stamp: dict[str, str]
    image: Pixels
    answer: Answer
    context: Context | None = None  # that is carried after it, in a film

    def nbytes(self) -> int:
        return self.image.nbytes + sum(one.nbytes for one in self.answer if one is not None)


def predict_files(
    backend: Backend,
    inputs: Sequence[Input],
    journal: Journal,
    *,
    palette: Sequence[Colour] | None = None,
    save: SaveOptions = SaveOptions(),  # noqa: B008 (frozen)
    plain: bool = False,
    batch: int = 1,
    workers: int = 4,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Writes the prediction of each image into the journal's folder, at the image's own size.

    Args:
        backend: the model.
        inputs: the images. One whose files are all in place by the journal is skipped; one that cannot be read, has
            more than `max_pixels` or a name too long for its outputs, or does not fit into memory even alone, is a
            `Failure`, and the rest goes on.
        journal: of the folder. A file that cannot be written there raises.
        palette: of masks and overlays; None is the model's.
        save: which files are written.
        plain: with the fixed classifier.
        batch: up to so many images of equal size run together.
        workers: threads that read, and as many that write; `prefetch` bounds the memory of images that wait.
        max_pixels: that an image may have.
        progress: called with the number of finished images, skipped ones included, and how many of them failed.
    """
    classes, maps = backend.classes, save.confidence or save.entropy
    if palette is not None:
        classes = classes._replace(palette=tuple(palette))

    longest = longest_name(journal.folder)

    def is_done(item: Input) -> bool:
        return journal.is_done(item) and all(path.exists() for path in save.paths(journal.folder, item.name).values())

    def read(item: Input) -> _LoadedImage | Failure:
        try:
            check_names(item, save.paths(journal.folder, item.name).values(), longest)
            content, stamp = read_file(item.path, max_bytes(max_pixels, backend.bands))
            image = read_image(content, str(item.path), backend.bands, max_pixels)
            height, width = image.shape[:2]
            if save.overlays and max(height, width) > JPEG_SIDE:
                return Failure(
                    item.path,
                    f"{item.path} is {width}x{height}; overlays are JPEGs, at most {JPEG_SIDE} pixels wide and high. "
                    "Leave them out with --no-overlays.",
                )
            return _LoadedImage(item, stamp, image, backend.view(image))
        except MemoryError:
            return Failure(item.path, f"{item.path} did not fit into memory while it was read. Use fewer --workers.")
        except (OSError, ValueError) as error:
            return Failure(item.path, str(error))

    def predict(group: list[_LoadedImage]) -> list[Prediction | Failure]:
        """Of images of one size; one by one where they do not fit into memory together."""
        size = (group[0].image.shape[0], group[0].image.shape[1])
        try:
            answers = backend.predict([one.view for one in group], size, maps=maps, plain=plain)
            found = zip(group, answers, strict=True)
            return [
                Prediction(one.item, one.stamp, one.image, answer._replace(mask=without_data(answer.mask, one.image)))
                for one, answer in found
            ]
        except MemoryError as error:
            if len(group) == 1:
                return [Failure(group[0].item.path, f"{group[0].item.path}: {error}")]
        return [found for one in group for found in predict([one])]

    def write(one: Prediction) -> Prediction | Failure:
        try:
            write_prediction(one, journal.folder, classes, save)
        except (ValueError, MemoryError) as error:  # of this image; what the disk refuses is an OSError
            return Failure(one.item.path, f"{one.item.path}: {error}")
        return one

    failed: list[Failure] = []

    def without_failures(results: Iterable[_Kind | Failure]) -> Iterator[_Kind]:
        for one in results:
            if isinstance(one, Failure):
                failed.append(one)
            else:
                yield one

    todo = [item for item in inputs if not is_done(item)]
    images = without_failures(prefetch(read, todo, workers, nbytes=_nbytes))
    groups = batch_by_key(images, lambda one: one.image.shape, batch, nbytes=_nbytes)
    predicted = prefetch(predict, groups, backend.threads, nbytes=lambda group: sum(map(_nbytes, group)))
    predictions = without_failures(one for group in predicted for one in group)
    written, skipped = 0, len(inputs) - len(todo)
    if progress is not None:
        progress(skipped, 0)
    for one in without_failures(prefetch(write, predictions, workers, nbytes=_nbytes)):
        journal.add(one.item, (one.image.shape[0], one.image.shape[1]), one.stamp)
        written += 1
        if progress is not None:
            progress(skipped + written + len(failed), len(failed))
    return Summary(written, skipped, failed)


def longest_name(folder: Path) -> int:
    """Bytes that the name of a file may have there."""
    try:
        return os.pathconf(folder, "PC_NAME_MAX")
    except (AttributeError, OSError, ValueError):  # Windows; a file system that does not say
        return 255


def check_names(item: Input, outputs: Iterable[Path], longest: int) -> None:
    """An error where an output cannot be called as it has to be."""
    for path in outputs:
        if len(os.fsencode(path)) > MAX_PATH:
            raise OSError(
                f"{item.path} needs a shorter path: {path} has more than {MAX_PATH} bytes. Choose another -o."
            )
        if len(os.fsencode(path.name)) > longest:
            raise OSError(
                f"{item.path} needs a shorter name: its output {path.parent.name}/{path.name} would have "
                f"{len(os.fsencode(path.name))} bytes, and a name has at most {longest}. Rename the image."
            )


def _nbytes(one: _LoadedImage | Prediction | Failure) -> int:
    return 0 if isinstance(one, Failure) else one.nbytes()


def write_prediction(one: Prediction, folder: Path, classes: Classes, save: SaveOptions) -> None:
    paths, answer, path = save.paths(folder, one.item.name), one.answer, one.item.path
    for kind, values in (("confidence", answer.confidence), ("entropy", answer.entropy)):
        if kind in paths and values is not None:
            write_file(paths[kind], png(to_integers(values, save.bits)))
    if save.polygons == "labelme":
        text = labelme_json(answer.mask, classes.names, path, paths["labelme"], save.simplify)
        write_file(paths["labelme"], text)
    elif save.polygons == "coco":
        name = one.item.name if one.item.name.endswith(path.suffix) else one.item.name + path.suffix
        write_file(paths["coco"], coco_part(answer.mask, classes.names, name, save.simplify))
    elif save.polygons == "geojson":
        regions = foreground(answer.mask, classes.names)
        try:
            place = place_of(path, save.coordinates)
        except OSError as error:
            raise ValueError(
                f"where it lies on the ground cannot be read ({error}); use --coordinates pixels."
            ) from error
        write_lines(paths["geojson"], geojson_lines([(regions, (0, 0))], classes.names, place, save.simplify))
    if save.overlays:
        write_file(paths["overlays"], jpeg(overlay(as_picture(one.image), answer.mask, classes.palette, save.opacity)))
    save_index_png(paths["masks"], answer.mask, classes.palette, overwrite=True)


def join_coco(folder: Path, names: Sequence[str], save: SaveOptions) -> Callable[[Sequence[str]], None]:
    """Writes `coco.json` of the images of these names; `Journal` calls it. Images whose part is gone are left out."""

    def finish(images: Sequence[str]) -> None:
        if save.polygons == "coco":
            parts = (save.paths(folder, name)["coco"] for name in images)
            write_coco(folder / "coco.json", names, (path.read_text() for path in parts if path.is_file()))

    return finish
