"""Photographs and weights that are too large for the repository."""

import os
from pathlib import Path

SHARED = Path(os.environ.get("CACSEG_SHARED") or Path(__file__).parents[2] / "shared")
CAMVID = SHARED / "data" / "camvid"
MOBILENETV2 = SHARED / "weights" / "mobilenetv2_100_imagenet.safetensors"
MISSING = f"set CACSEG_SHARED to a folder with data/ and weights/; none is at {SHARED}"
