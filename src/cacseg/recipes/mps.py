"""NVIDIA's Multi-Process Service, for one comparison alone: with it kernels of several processes run on a GPU at once.

Without it processes take turns, and small kernels leave most of a large GPU idle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"


@contextmanager
def mps_service() -> Iterator[dict[str, str]]:
    """The environment for processes that shall share the GPU; the service lives as long as the block."""
    if shutil.which(CONTROL) is None:
        raise FileNotFoundError(f"--mps needs {CONTROL}, which is not on the PATH. Leave --mps out.")
    with tempfile.TemporaryDirectory(prefix="cacseg-mps-", ignore_cleanup_errors=True) as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        everything = {**os.environ, **environment}
        words = Path(folder, "start.log")
        with words.open("wb") as log:  # a file: of a pipe that the service keeps open nobody would see the end
            started = subprocess.run(
                [CONTROL, "-d"], env=everything, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=30
            )
        if started.returncode != 0:
            said = " ".join(words.read_text(errors="replace").split())
            raise OSError(f"{CONTROL} could not be started ({said}). Leave --mps out.")
        try:
            yield environment
        finally:
            subprocess.run([CONTROL], input="quit\n", env=everything, capture_output=True, text=True, timeout=60)
