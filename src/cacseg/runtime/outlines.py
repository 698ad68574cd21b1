"""Polygons of predicted masks, for labelling tools."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cacseg.runtime.opencv import cv2

SIMPLIFY = 1.0  # pixels that a polygon may be off the edge of its region
BACKGROUND = "background"  # is what no polygon covers


def outlines(labels: npt.NDArray[np.uint8], simplify: float = 0.0) -> list[tuple[int, npt.NDArray[np.floating[Any]]]]:
    """Label and outline [n, 2] of each connected region, the large ones first.

    Holes are not cut out: what lies in them is drawn over them, later in the list. Outlines follow the edges of pixels,
    so drawn in this order they give the mask again; with `simplify` they may be so many pixels off.
    """
    if cv2 is None:
        raise ModuleNotFoundError("outlines need OpenCV: pip install opencv-python-headless", name="cv2")
    found = []
    for label in np.unique(labels).tolist():
        count, regions, boxes, _ = cv2.connectedComponentsWithStats((labels == label).astype(np.uint8), connectivity=4)
        for k in range(1, count):
            left, top, width, height = boxes[k, :4].tolist()
            part = (regions[top : top + height, left : left + width] == k).astype(np.uint8)
            twice = part.repeat(2, 0).repeat(2, 1)  # so that a pixel has two sides
            contour = cv2.findContours(twice, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0][0]
            points = (contour[:, 0] + 1) // 2
            points = points[(points != np.roll(points, 1, 0)).any(1)]
            before, after = points - np.roll(points, 1, 0), np.roll(points, -1, 0) - points
            points = points[before[:, 0] * after[:, 1] != before[:, 1] * after[:, 0]]  # corners alone
            area = cv2.contourArea(points.astype(np.float32))
            if simplify > 0:
                near = cv2.approxPolyDP(points.astype(np.float32)[:, None], simplify, True)[:, 0]
                points = near if len(near) > 2 else points
            found.append((area, label, points + np.array([left, top])))
    return [(label, points) for _, label, points in sorted(found, key=lambda one: -one[0])]


def labelme_json(
    labels: npt.NDArray[np.uint8], names: Sequence[str], image: Path, target: Path, simplify: float
) -> str:
    """The content of a file of LabelMe, which will be at `target` and names the image from there."""
    shapes = [
        {"label": names[label], "points": points.tolist(), "group_id": None, "shape_type": "polygon", "flags": {}}
        for label, points in outlines(labels, simplify)
        if names[label] != BACKGROUND
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


def coco_json(masks: Mapping[str, npt.NDArray[np.uint8]], names: Sequence[str], simplify: float) -> str:
    """A COCO file of images by their file names; a polygon is an annotation."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for name, labels in masks.items():
        height, width = labels.shape
        images.append({"id": len(images) + 1, "file_name": name, "height": height, "width": width})
        for label, points in outlines(labels, simplify):
            if names[label] != BACKGROUND:
                low, high = points.min(0).tolist(), points.max(0).tolist()
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": images[-1]["id"],
                        "category_id": label + 1,
                        "segmentation": [points.ravel().tolist()],
                        "area": float(cv2.contourArea(points.astype(np.float32))),
                        "bbox": [*low, high[0] - low[0], high[1] - low[1]],
                        "iscrowd": 0,
                    }
                )
    categories = [{"id": k + 1, "name": name, "supercategory": ""} for k, name in enumerate(names)]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})
