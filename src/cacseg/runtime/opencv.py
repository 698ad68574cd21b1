"""OpenCV where it is installed: what reads an exported model needs numpy, Pillow and onnxruntime alone."""

from __future__ import annotations

from typing import Any

cv2: Any
try:
    import cv2
except ModuleNotFoundError:
    cv2 = None
