"""Polygons of predicted masks, as labelling tools take them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cacseg._files import check_target, scratch_beside
from cacseg.runtime.colours import background_index
from cacseg.runtime.outlines import Region, find_regions

SIMPLIFY = 1.0  # pixels that a polygon may be off the edge of its region
Mask = npt.NDArray[np.uint8]


def foreground(labels: Mask, names: Sequence[str]) -> list[Region]:
    """The regions of all classes but the background, which is what no polygon covers, and of no ignored pixels."""
    background = background_index(names)
    return find_regions(labels, [*range(len(names), 256), *(() if background is None else (background,))])


def labelme_json(labels: Mask, names: Sequence[str], image: Path, target: Path, simplify: float) -> str:
    """The content of a file of LabelMe, which will be at `target` and names the image from there."""
    shapes = [
        {
            "label": names[one.label],
            "points": one.path(simplify).tolist(),
            "group_id": None,
            "shape_type": "polygon",
            "flags": {},
        }
        for one in foreground(labels, names)
    ]
    path = os.path.relpath(image.resolve(), target.resolve().parent)
    content: dict[str, Any] = {
        "version": "5.5.0",
        "flags": {},
        "shapes": shapes,
        "imagePath": Path(path).as_posix(),
        "imageData": None,
    }
    return json.dumps({**content, "imageHeight": labels.shape[0], "imageWidth": labels.shape[1]})


def coco_part(labels: Mask, names: Sequence[str], file_name: str, simplify: float) -> str:
    """What a COCO file says of one image, without ids: a polygon is an annotation, and its area that of the region."""
    annotations = []
    for one in foreground(labels, names):
        points = one.path(simplify)
        low, high = points.min(0).tolist(), points.max(0).tolist()
        annotations.append(
            {
                "category_id": one.label + 1,
                "segmentation": [points.ravel().tolist()],
                "area": one.area,
                "bbox": [*low, high[0] - low[0], high[1] - low[1]],
                "iscrowd": 0,
            }
        )
    image = {"file_name": file_name, "height": labels.shape[0], "width": labels.shape[1]}
    return json.dumps({"image": image, "annotations": annotations})


def write_coco(path: Path, names: Sequence[str], parts: Iterable[str]) -> None:
    """Joins the parts of images into one COCO file, with one of them in memory at a time."""
    write_lines(path, _coco_lines(names, parts))


def _coco_lines(names: Sequence[str], parts: Iterable[str]) -> Iterator[str]:
    categories = [{"id": k + 1, "name": name, "supercategory": ""} for k, name in enumerate(names)]
    images, count = [], 0
    yield f'{{"info": {{}}, "licenses": [], "categories": {json.dumps(categories)}, "annotations": ['
    for number, text in enumerate(parts, 1):
        part = json.loads(text)
        images.append(json.dumps({"id": number, **part["image"]}))
        for one in part["annotations"]:
            yield ",\n" if count else "\n"
            count += 1
            yield json.dumps({"id": count, "image_id": number, **one})
    yield '\n], "images": [\n' + ",\n".join(images) + "\n]}\n"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a file of any length beside its place and moves it there when it is whole."""
    check_target(path, overwrite=True)
    scratch = scratch_beside(path)
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        os.replace(scratch, path)
    except OSError as error:
        raise OSError(f"{path} could not be written ({error}). Is the disk full?") from error
    finally:
        scratch.unlink(missing_ok=True)
